// CarryOverParams on the host (fovea/kernels/select.h).
#pragma once

#include <fovea/kernels/select.h>

#include <cstdint>

namespace fovea {

// `from`: `count` ascending blocks, chosen when there were fewer blocks or as many. Writes min(k, blocks) ascending ones to
// `to` and returns how many. The last `local` blocks are always there: a block that was opened since takes the place of the
// one that left the local window. Where k has grown with the context, the latest of the blocks left out come back.
int32_t carry_list(const int32_t* from, int32_t count, int32_t blocks, int32_t k, int32_t local, int32_t* to);

void carry_over(const CarryOverParams& p);

}  // namespace fovea
