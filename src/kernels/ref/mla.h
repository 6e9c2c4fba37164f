// Multi-head latent attention, scalar: the definitions that faster kernels are compared with. Sums in float64.
#pragma once

#include <fovea/kernels/mla.h>

namespace fovea::ref {

// See fovea/kernels/mla.h. They allocate and are not for speed.
void mla_write(const MlaWriteParams& p);
void mla_absorb(const MlaAbsorbParams& p);
void mla_unabsorb(const MlaUnabsorbParams& p);
void mla_attend(const MlaAttendParams& p);
void mla_gather(const MlaGatherParams& p);

}  // namespace fovea::ref
