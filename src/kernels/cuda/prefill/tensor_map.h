// How the TMA is told where paged K and V lie.
#pragma once

#include <fovea/kernels/attention.h>

#include <cuda.h>

#include <cstdint>

namespace fovea::cuda::prefill {

// [slots, kv_heads, block_size, head_dim] at `data`, read in boxes of 128 bytes of box_keys keys. bf16, f16 or fp8, hnd.
// Dims beyond head_dim read as zeros. Pure: computes on the host, allocates nothing.
using EncodeTensorMap = decltype(&cuTensorMapEncodeTiled);
CUtensorMap make_tensor_map(EncodeTensorMap encode, const KvView& kv, const void* data, int32_t box_keys);

// The driver's encoder; null where the driver has none.
EncodeTensorMap find_tensor_map_encoder();

}  // namespace fovea::cuda::prefill
