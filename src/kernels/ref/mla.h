// Multi-head latent attention, scalar: the definitions that faster kernels are compared with. Sums in float64.
#pragma once

#include "kernels/ops/mla.h"

namespace fovea::ref {

// See kernels/ops/mla.h. They allocate and are not for speed.
void mla_write(const MlaWriteParams& p);
void mla_absorb(const MlaAbsorbParams& p);
void mla_unabsorb(const MlaUnabsorbParams& p);
void mla_attend(const MlaAttendParams& p);
void mla_gather(const MlaGatherParams& p);

// Rotates x [dim] in place: interleaved pairs (2i, 2i+1), else (i, i + dim/2). cos, sin: [dim / 2].
void mla_rope(float* x, int32_t dim, bool interleaved, const float* cos, const float* sin);

// Aborts where the plane is not a latent plane as kernels/ops/mla.h defines it.
void check_latent_plane(const KvView& kv, int32_t latent);

}  // namespace fovea::ref
