// A panel of index keys, once per Highway target: up to 3 vectors of keys side by side, [dim][kPanel] in float32, through
// the page table.
#if defined(FOVEA_KERNELS_CPU_DSA_PANEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FOVEA_KERNELS_CPU_DSA_PANEL_INL_H_
#undef FOVEA_KERNELS_CPU_DSA_PANEL_INL_H_
#else
#define FOVEA_KERNELS_CPU_DSA_PANEL_INL_H_
#endif

#include <fovea/kernels/indexer.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <hwy/highway.h>
#include "kernels/common/convert.h"
#include "kernels/cpu/dsa/dsa_sweep.h"

HWY_BEFORE_NAMESPACE();
namespace fovea::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<float, 16>;
using V = hn::Vec<D>;
constexpr int32_t kLanes = static_cast<int32_t>(hn::MaxLanes(D()));
constexpr int32_t kPanel = 3 * kLanes;
static_assert(kPanel <= kIndexPanel);

#if HWY_TARGET != HWY_SCALAR

HWY_INLINE V widen(const hwy::bfloat16_t* p) { return hn::PromoteTo(D(), hn::LoadU(hn::Rebind<hwy::bfloat16_t, D>(), p)); }
// e4m3 moved to the top of a float's mantissa and exponent is the value times 2^-120, subnormals among them.
HWY_INLINE V widen(const uint8_t* p) {
  const D d;
  const hn::RebindToUnsigned<D> du;
  const auto x = hn::PromoteTo(du, hn::LoadU(hn::Rebind<uint8_t, D>(), p));
  const auto magnitude = hn::And(x, hn::Set(du, 0x7f));
  const V value = hn::Mul(hn::BitCast(d, hn::ShiftLeft<20>(magnitude)), hn::Set(d, 0x1p120f));
  const V number = hn::IfThenElse(hn::RebindMask(d, hn::Eq(magnitude, hn::Set(du, 0x7f))), hn::NaN(d), value);
  return hn::Or(number, hn::BitCast(d, hn::ShiftLeft<24>(hn::AndNot(hn::Set(du, 0x7f), x))));
}

// Four dimensions of kLanes keys to four rows of a panel. Block b of piece j is key 4b + j, so a transposition inside blocks
// of 128 bits is the whole of it.
HWY_INLINE void transpose_4(V a, V b, V c, V e, float* panel) {
  const D d;
  const hn::Repartition<double, D> d2;
  const auto ab_low = hn::BitCast(d2, hn::InterleaveLower(d, a, b)), ab_high = hn::BitCast(d2, hn::InterleaveUpper(d, a, b));
  const auto ce_low = hn::BitCast(d2, hn::InterleaveLower(d, c, e)), ce_high = hn::BitCast(d2, hn::InterleaveUpper(d, c, e));
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d2, ab_low, ce_low)), d, panel);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d2, ab_low, ce_low)), d, panel + kPanel);
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d2, ab_high, ce_high)), d, panel + 2 * kPanel);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d2, ab_high, ce_high)), d, panel + 3 * kPanel);
}

// Piece j of floats: a load that fills every block, and for each block after the first a blend.
HWY_INLINE V piece_of(const float* const* keys, int32_t j, int32_t i) {
  const D d;
  V piece = hn::LoadDup128(d, keys[j] + i);
  if constexpr (kLanes > 4) {
    const auto first = hn::FirstN(d, 4);
    piece = hn::IfThenElse(first, piece, hn::LoadDup128(d, keys[4 + j] + i));
  }
  if constexpr (kLanes > 8) {
    piece = hn::IfThenElse(hn::FirstN(d, 8), piece, hn::LoadDup128(d, keys[8 + j] + i));
    piece = hn::IfThenElse(hn::FirstN(d, 12), piece, hn::LoadDup128(d, keys[12 + j] + i));
  }
  return piece;
}

// kLanes keys to one vector's width of a panel. (Prefetching the keys after them gained nothing.)
HWY_INLINE void pack_keys(const float* const* keys, int32_t dim, float* panel) {
  for (int32_t i = 0; i < dim; i += 4)
    transpose_4(piece_of(keys, 0, i), piece_of(keys, 1, i), piece_of(keys, 2, i), piece_of(keys, 3, i),
                panel + int64_t{i} * kPanel);
}

// The same for narrow types: pieces are staged and widened.
template <typename T>
void pack_keys(const T* const* keys, int32_t dim, float* panel) {
  constexpr int32_t kColumns = 64;  // staged at once, so that no vector load waits for the stores of its parts
  alignas(64) T pieces[kColumns * kLanes];
  for (int32_t c = 0; c < dim; c += kColumns) {
    const int32_t columns = std::min(kColumns, dim - c);
    for (int32_t key = 0; key < kLanes; ++key) {
      const T* from = keys[key] + c;
      T* to = pieces + key % 4 * kLanes + key / 4 * 4;
      for (int32_t i = 0; i < columns; i += 4) std::memcpy(static_cast<void*>(to + i * kLanes), from + i, 4 * sizeof(T));
    }
    for (int32_t i = 0; i < columns; i += 4) {
      const T* p = pieces + i * kLanes;
      transpose_4(widen(p), widen(p + kLanes), widen(p + 2 * kLanes), widen(p + 3 * kLanes), panel + int64_t{c + i} * kPanel);
    }
  }
}

#else

template <typename T>
void pack_keys(const T* const* keys, int32_t dim, float* panel) {
  constexpr DType dtype = sizeof(T) == 4 ? DType::f32 : sizeof(T) == 2 ? DType::bf16 : DType::fp8_e4m3;
  for (int32_t i = 0; i < dim; ++i) panel[int64_t{i} * kPanel] = load_as_f32(keys[0], dtype, i);
}

#endif  // HWY_TARGET != HWY_SCALAR

inline int64_t index_slot(const IndexKeysView& view, int32_t seq, int32_t position) {
  const int64_t block = view.block_table[seq * view.table_stride + position / view.block_size];
  return block * view.block_size + position % view.block_size;
}

// Keys that do not exist are zeros, never what lies in memory there.
template <typename T>
void pack_panel_of(const IndexKeysView& view, int32_t seq, int32_t first, int32_t keys, float* panel) {
  alignas(64) static constexpr std::byte kZeros[kMaxIndexDim * sizeof(float)] = {};
  const T* memory = static_cast<const T*>(view.k);
  const T* from[kLanes];
  for (int32_t key = 0; key < kPanel; ++key) {
    from[key % kLanes] = key < keys ? memory + index_slot(view, seq, first + key) * view.dim : reinterpret_cast<const T*>(kZeros);
    if (key % kLanes == kLanes - 1) pack_keys(from, view.dim, panel + key / kLanes * kLanes);
  }
}

// Keys [first, first + keys) of a sequence, and their scales in fp8.
inline void pack_panel(const IndexKeysView& view, int32_t seq, int32_t first, int32_t keys, float* panel, float* scales) {
  switch (view.precision) {
    case IndexPrecision::exact:
      pack_panel_of<float>(view, seq, first, keys, panel);
      return;
    case IndexPrecision::bf16:
      pack_panel_of<hwy::bfloat16_t>(view, seq, first, keys, panel);
      return;
    case IndexPrecision::fp8:
      break;
  }
  pack_panel_of<uint8_t>(view, seq, first, keys, panel);
  for (int32_t i = 0; i < kPanel; ++i) scales[i] = i < keys ? view.scale[index_slot(view, seq, first + i)] : 0.0f;
}

}  // namespace fovea::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // the include guard
