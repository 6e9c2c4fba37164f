#include "kernels/cuda/linear/config.h"

#include <algorithm>

#include "kernels/cuda/quant/config.h"

namespace fovea::cuda {
namespace {

constexpr int32_t kSkinnyDepthMax = 4096;
constexpr int64_t kSkinnySizeMax = 32 << 20;  // weights, where there are more than 8 rows

// One scale a row, or one for 128 columns, alike in all weights: x is rounded once for the call.
bool takes_fp8(const LinearParams& p) {
  const int32_t group = p.weights[0].w.group;
  if (p.k > kFp8DepthMax || (group != p.k && group != kFp8Group)) return false;
  return std::all_of(p.weights, p.weights + p.count,
                     [&](const LinearWeight& w) { return w.w.type == WeightType::fp8_e4m3 && w.w.group == group; });
}

bool aligned16(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

// Where the library was slower, on an H200: it splits small products badly and takes q, k and v one by one (17.7 us where one
// launch takes 5.8); from a depth of 8192 on, and for many rows of a large product, it wins by a fifth.
bool takes_skinny(const LinearShape& s) {
  if (s.numerics != Numerics::bf16 || !s.all_bf16 || s.rows < 2 || s.rows > kSkinnyRowsMax || s.k > kSkinnyDepthMax) return false;
  return s.rows <= 8 || s.elements <= kSkinnySizeMax;
}

}  // namespace

LinearShape describe(const LinearParams& p, Numerics numerics, bool fp8) {
  const bool by_row_alone = p.full_precision || (p.as_many && numerics == Numerics::f32);
  LinearShape s{.numerics = numerics, .full_precision = by_row_alone, .rows = p.rows, .k = p.k};
  s.on_vectors = aligned16(p.x) && p.k % 4 == 0;
  for (int32_t i = 0; i < p.count; ++i) {
    const LinearWeight& w = p.weights[i];
    s.quantised = s.quantised || !is_plain(w.w.type);
    s.on_vectors = s.on_vectors && aligned16(w.w.data) && (s.quantised ? p.k % 32 == 0 : w.w.row_bytes() % 16 == 0);
    s.all_bf16 = s.all_bf16 && w.dtype() == DType::bf16;
    s.elements += w.w.rows * p.k;
  }
  s.fp8 = fp8 && p.count > 0 && takes_fp8(p);
  return s;
}

LinearPath choose(const LinearShape& s) {
  if (s.quantised) {
    const bool few = s.on_vectors && !s.full_precision && s.rows <= quant::rows_max(s.numerics == Numerics::f32);
    if (few) return LinearPath::few;
    return s.fp8 && s.on_vectors && !s.full_precision ? LinearPath::fp8 : LinearPath::unpacked;
  }
  if (s.full_precision) return LinearPath::tiled;  // gemv's bits change with the number of rows
  if (s.on_vectors && takes_skinny(s)) return LinearPath::skinny;
  // With Numerics::bf16 few rows go to gemv only where the library has nothing better: one row, or weights to widen.
  const bool for_gemv = s.numerics == Numerics::f32 || s.rows == 1 || !s.all_bf16;
  if (s.on_vectors && s.rows <= kGemvRowsMax && for_gemv) return LinearPath::gemv;
  return s.numerics == Numerics::bf16 ? LinearPath::library : LinearPath::tiled;
}

std::string to_string(LinearPath path) {
  constexpr const char* kNames[] = {"skinny", "gemv", "library", "tiled", "few", "unpacked", "fp8"};
  return kNames[static_cast<int>(path)];
}

}  // namespace fovea::cuda
