#include "kernels/cuda/prefill/tensor_map.h"

#include <cuda_runtime_api.h>

#include <climits>

#include "base/check.h"

namespace fovea::cuda::prefill {

CUtensorMap make_tensor_map(EncodeTensorMap encode, const KvView& kv, const void* data, int32_t box_keys) {
  const uint64_t element = dtype_bytes(kv.dtype);
  // How many slots there are is not known here, and nothing reads a slot that the page table does not name.
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(kv.head_dim), static_cast<cuuint64_t>(kv.block_size),
                              static_cast<cuuint64_t>(kv.kv_heads), INT_MAX};
  const cuuint64_t strides[] = {kv.tokens_apart() * element, kv.head_stride * element, kv.block_stride * element};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(128 / element), static_cast<cuuint32_t>(box_keys), 1, 1};
  const cuuint32_t steps[] = {1, 1, 1, 1};
  CUtensorMap map;
  const CUtensorMapDataType type = kv.dtype == DType::bf16  ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                   : kv.dtype == DType::f16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                            : CU_TENSOR_MAP_DATA_TYPE_UINT8;
  const CUresult result = encode(&map, type, 4, const_cast<void*>(data), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                 CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  FOVEA_CHECK(result == CUDA_SUCCESS && "strides that the TMA takes: multiples of 16 bytes");
  return map;
}

EncodeTensorMap find_tensor_map_encoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  constexpr unsigned kSince = 12000;  // CUDA 12.0
  const cudaError_t e = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, kSince, cudaEnableDefault, &found);
  if (e != cudaSuccess || found != cudaDriverEntryPointSuccess) return nullptr;
  return reinterpret_cast<EncodeTensorMap>(function);
}

}  // namespace fovea::cuda::prefill
