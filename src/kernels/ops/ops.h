// Ops: every numeric operation of a forward pass, behind one interface. One plain Params struct per operation.
//
// Pointers are device memory of the backend (host memory for ref and cpu), arrays of lengths, indices and counts among
// them; the Params structs themselves, Selection and LinearParams::weights are host memory, read before the call returns.
// Shapes are row-major, innermost last; T is the number of token rows, H query heads, KV heads, d head_dim, bs block size
// in tokens. Activations are float32.
// Operations are enqueued on `stream` in order; on the CPU they are finished when the call returns. They allocate
// nothing and wait for nothing: prepare() sizes all scratch once, and what a launch looks like follows from the plain
// numbers of Params alone, never from an array, so that a captured launch replays with other lengths.
// Input that violates a stated bound is a bug and asserts (where the host can see it).
#pragma once

#include <fovea/status.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "kernels/ops/attention.h"
#include "kernels/ops/dsa.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/kv_write.h"
#include "kernels/ops/limits.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/mla.h"
#include "kernels/ops/moe.h"
#include "kernels/ops/sample.h"
#include "kernels/ops/select.h"
#include "kernels/ops/xattention.h"

namespace fovea {

class Stream;

class Ops {
 public:
  virtual ~Ops() = default;
  virtual std::string_view name() const = 0;
  virtual Numerics numerics() const = 0;
  virtual Status prepare(const OpsLimits& limits) = 0;

  virtual void embed(const EmbedParams& p, Stream& stream) = 0;
  virtual void rms_norm(const RmsNormParams& p, Stream& stream) = 0;
  virtual void linear(const LinearParams& p, Stream& stream) = 0;
  virtual void silu_mul(const SiluMulParams& p, Stream& stream) = 0;
  virtual void rope_angles(const RopeAnglesParams& p, Stream& stream) = 0;
  virtual void kv_write(const KvWriteParams& p, Stream& stream) = 0;
  virtual void hash_select(const HashSelectParams& p, Stream& stream) = 0;

  // Each row on its own, memory-bound, split over blocks and merged; splits depend on the row's length alone.
  virtual void paged_decode(const AttentionParams& p, Stream& stream) = 0;
  // Tiles of query rows, compute-bound; a row's result does not depend on which rows share its tile, bit for bit.
  virtual void paged_prefill(const AttentionParams& p, Stream& stream) = 0;
  virtual void sample(const SampleParams& p, Stream& stream) = 0;

  // MLA and MoE: cpu and ref only.
  virtual void mla_write(const MlaWriteParams&, Stream&) { not_of_this_backend("mla_write"); }
  virtual void mla_absorb(const MlaAbsorbParams&, Stream&) { not_of_this_backend("mla_absorb"); }
  virtual void mla_unabsorb(const MlaUnabsorbParams&, Stream&) { not_of_this_backend("mla_unabsorb"); }
  virtual void mla_attend(const MlaAttendParams&, Stream&) { not_of_this_backend("mla_attend"); }
  virtual void mla_gather(const MlaGatherParams&, Stream&) { not_of_this_backend("mla_gather"); }
  virtual void ragged_attend(const RaggedAttentionParams&, Stream&) { not_of_this_backend("ragged_attend"); }
  virtual void lse_merge(const LseMergeParams&, Stream&) { not_of_this_backend("lse_merge"); }
  virtual void moe_route(const MoeRouteParams&, Stream&) { not_of_this_backend("moe_route"); }
  virtual void moe_experts(const MoeExpertsParams&, Stream&) { not_of_this_backend("moe_experts"); }

  // The DSA indexer: cpu and ref only.
  virtual void index_write(const IndexWriteParams&, Stream&) { not_of_this_backend("index_write"); }
  virtual void index_topk(const IndexTopkParams&, Stream&) { not_of_this_backend("index_topk"); }
  virtual void index_transform(const IndexTransformParams&, Stream&) { not_of_this_backend("index_transform"); }

  // Block summaries and what chooses by them: ref and cpu only. A method that needs them refuses other devices.
  virtual void block_summaries(const BlockSummariesParams&, Stream&) { not_of_this_backend("block_summaries"); }
  virtual void encode_codes(const EncodeCodesParams&, Stream&) { not_of_this_backend("encode_codes"); }
  virtual void summary_select(const SummarySelectParams&, Stream&) { not_of_this_backend("summary_select"); }
  virtual void attention_mass(const AttentionMassParams&, Stream&) { not_of_this_backend("attention_mass"); }
  virtual void block_topk(const BlockTopkParams&, Stream&) { not_of_this_backend("block_topk"); }

  // Sparse prefill's choice of blocks: ref and cpu only. A method that needs it refuses other devices.
  virtual void xattention_select(const XAttentionParams&, Stream&) { not_of_this_backend("xattention_select"); }

 protected:
  // Calling an operation that a backend lacks is a bug: callers check the device first.
  [[noreturn]] void not_of_this_backend(const char* op) const {
    std::fprintf(stderr, "fovea: %s: not an operation of backend %s\n", op, std::string(name()).c_str());
    std::abort();
  }
};

}  // namespace fovea
