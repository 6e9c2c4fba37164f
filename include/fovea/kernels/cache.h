// Writing a cache: rope, norm of q and k, paged write and hash codes in one pass. Whole blocks copied and swapped, and elements
// converted. fovea/kernels.h has the conventions.
#pragma once

#include <fovea/kernels/attention.h>

#include <cstdint>

namespace fovea {

// Sign-rotation hash of a head vector (docs/algorithms.md, "Rotation and code"): `rotations` rotations of n bits each, n = d
// rounded up to a power of two; each is three rounds of (signs, Walsh-Hadamard); bits = sign; truncated to `bits`.
struct HashCodec {
  int32_t head_dim = 0;
  int32_t bits = 0;              // a multiple of 64 up to 256
  int32_t n = 0;                 // power of two >= head_dim
  int32_t rotations = 0;         // ceil(bits / n)
  const float* signs = nullptr;  // [rotations, 3, n], each +1 or -1, in the order applied
  float scale = 1.0f;            // n^-1.5: makes a rotation orthonormal
  // A key's code has its length factor with it: scale * (sum y^2 / sum |y|) over the `bits` elements y of the rotated key, as bf16;
  // 0 for a zero key and where that is no finite number. Sums run in float32 in an order that is part of the definition: element
  // i goes to partial sum i % 32, and the 32 are folded by halves (l += l + 16, l += l + 8, ...).
  bool length_factor = false;
  // What scores keys (it does not change their codes). false: signs of the query, too (bits - 2 * hamming). true: the query in
  // 4 bits an element, docs/hash-selection.md.
  bool asymmetric = false;
};

// u64 of one block and KV head in the plane of codes: [words, bs] codes, words = bits / 64, word-major so that one vector holds a
// word of many tokens; then, with length factors, [bs] bf16.
constexpr int64_t head_code_words(const HashCodec& codec, int32_t block_size) {
  return int64_t{codec.bits} / 64 * block_size + (codec.length_factor ? block_size / 4 : 0);
}

// The plane of codes of one layer: [num_blocks, kv_heads, head_code_words] u64, indexed by BlockId (resident).
struct CodesView {
  uint64_t* codes = nullptr;
  int64_t block_stride = 0;  // u64 elements
  int64_t head_stride = 0;   // u64 elements
  HashCodec codec;
};

// With neither norms, rope, codes nor heads of q: vLLM's reshape_and_cache.
struct KvWriteParams {
  int32_t tokens = 0;             // T
  int32_t num_heads = 0;          // of q; 0: none is given
  void* q = nullptr;              // [T, H, d] in: projection; out: normed and rotated, in place
  const void* k = nullptr;        // [T, kv_heads, d] projection
  const void* v = nullptr;        // [T, kv_heads, d]
  DType dtype = DType::f32;       // of q, k and v: f32, f16 or bf16
  const float* q_norm = nullptr;  // [d] RMSNorm weight per head, or null
  const float* k_norm = nullptr;  // [d] or null
  float norm_eps = 1e-6f;
  int32_t rope_dim = 0;                   // first rope_dim of d are rotated; 0: none
  bool rope_interleaved = false;          // false: pairs (i, i + rope_dim/2), as Llama; true: (2i, 2i+1)
  const float* cos = nullptr;             // [T, rope_dim / 2], attention scaling included
  const float* sin = nullptr;             // [T, rope_dim / 2]
  const int64_t* slot_mapping = nullptr;  // [T] slot * bs + offset; -1: do not write this token
  KvView kv;                              // kv.table is not used
  const int64_t* code_mapping = nullptr;  // [T] block * bs + offset for codes; null: slot_mapping
  const CodesView* codes = nullptr;       // null: no codes. Encodes k after rounding to the cache dtype.
};

// One array of blocks, as a copy sees it: K or V of a layer, or a summary. Where a pool lies by head, each head is a plane.
struct BlockPlane {
  const void* from = nullptr;  // block b at from + b * from_stride
  void* to = nullptr;
  int64_t from_stride = 0, to_stride = 0;  // bytes
  int64_t bytes = 0;                       // of a block
};

// Copies blocks of all planes in one launch: within a cache (vLLM's copy_blocks), or between a GPU's cache and pinned host memory,
// which the GPU reads and writes itself (swap_blocks). No block is where two pairs copy to, or where one does and another copies
// from. On a GPU pointers, strides and sizes are multiples of 16 bytes.
struct CopyBlocksParams {
  const BlockPlane* planes = nullptr;  // [num_planes]
  int32_t num_planes = 0;
  const int64_t* pairs = nullptr;  // [count, 2] block of `from`, block of `to`
  int32_t count = 0;
};

// Elements in another type: rows to 16 bits and back, a cache to fp8 and back (vLLM's convert_fp8). An element stands for itself
// times its head's scale: out = in * in_scale / out_scale, product and quotient rounded to float32, then rounded to nearest even;
// fp8 saturates, a NaN stays a NaN. In place only between types of one size.
struct ConvertParams {
  const void* in = nullptr;  // [rows, heads, elements]
  void* out = nullptr;       // likewise
  DType in_dtype = DType::f32, out_dtype = DType::f32;  // is_kv_dtype()
  int64_t rows = 0;                                     // blocks of an HND cache; tokens of NHD
  int32_t heads = 1;
  int64_t elements = 0;              // of a head of a row
  const float* in_scale = nullptr;   // [heads] or null: 1
  const float* out_scale = nullptr;  // likewise
};

}  // namespace fovea
