// Bounds that callers of an operation keep, asserted the same by every backend.
#pragma once

#include <fovea/kernels/indexer.h>
#include <fovea/kernels/mla.h>

#include <cstdint>

namespace fovea {

// A latent plane as fovea/kernels/mla.h defines it.
void check_latent_plane(const KvView& kv, int32_t latent);

void check_index_write(const IndexWriteParams& p);
void check_index_topk(const IndexTopkParams& p);
void check_index_lengths(const IndexTopkParams& p);  // which lie on the host
void check_index_transform(const IndexTransformParams& p);
// Rows of a chunk of index_topk's materialised form: as many as p.logits has room for, at least one.
int32_t logits_rows_at_once(const IndexTopkParams& p);

}  // namespace fovea
