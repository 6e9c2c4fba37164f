#include "kernels/cuda/residency/residency.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/cuda/gpu_test_util.h"
#include "kernels/ref/residency.h"
#include "kernels/residency_cases.h"

namespace fovea {
namespace {

using testing::device_ok;
using testing::DeviceArray;
using testing::ResidencyCase;
using testing::ResidencyWorld;

template <typename T>
DeviceArray<T> upload(const T* from, size_t count) {
  return DeviceArray<T>(std::vector<T>(from, from + count));
}

// The wave of a world on the GPU; what it changed comes back into the world. counts [rows, 2].
void resolve_on_device(ResidencyWorld& world, const ResidencyCase& c, std::vector<int64_t>* counts) {
  ResolveParams p = world.next_wave();
  const Selection& s = *p.selection;
  const size_t lists = size_t(s.rows) * s.groups;
  const auto units = upload(s.units, lists * s.capacity), list_counts = upload(s.counts, lists);
  const auto row_seq = upload(p.row_seq, c.rows), row_len = upload(p.row_len, c.rows);
  const DeviceArray<int32_t> blocks(world.blocks()), slot_of(world.slot_of), owner(world.owner), table(world.table);
  const DeviceArray<uint32_t> stamp(world.stamp), base(std::vector<uint32_t>{p.wave - 1});
  const DeviceArray<BlockMiss> misses(world.misses);
  const DeviceArray<int32_t> num_misses(world.num_misses);
  const DeviceArray<uint64_t> scratch(std::vector<uint64_t>(world.owner.size(), ~uint64_t{0}));
  const DeviceArray<int64_t> device_counts(std::vector<int64_t>(2 * static_cast<size_t>(c.rows), 0));
  Selection selection = s;
  selection.units = units.data(), selection.counts = list_counts.data();
  p.selection = &selection;
  p.tables = {slot_of.data(), owner.data(), stamp.data(), p.tables.heads, p.tables.blocks, p.tables.columns};
  p.wave = 1, p.wave_base = base.data();
  p.row_seq = row_seq.data(), p.row_len = row_len.data();
  p.blocks.slots = blocks.data();
  p.slots = table.data(), p.misses = misses.data(), p.num_misses = num_misses.data();
  p.scratch = scratch.data(), p.counts = device_counts.data();
  cuda::resolve(p, {nullptr, cuda::runs_code_for_hopper()});
  ASSERT_TRUE(device_ok());
  world.slot_of = slot_of.download(), world.owner = owner.download(), world.stamp = stamp.download();
  world.table = table.download(), world.misses = misses.download(), world.num_misses = num_misses.download();
  *counts = device_counts.download();
}

class CudaResolve : public testing::WithGpu<::testing::TestWithParam<ResidencyCase>> {};

TEST_P(CudaResolve, EqualsTheReference) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    ResidencyWorld got(GetParam(), seed), want(GetParam(), seed);
    for (int wave = 0; wave < 40; ++wave) {
      got.move_pins(), want.move_pins();
      std::vector<int64_t> counts, want_counts(2 * static_cast<size_t>(GetParam().rows), 0);
      resolve_on_device(got, GetParam(), &counts);
      ResolveParams p = want.next_wave();
      p.counts = want_counts.data();
      ref::resolve(p);
      ASSERT_EQ(got.difference(want), "") << "wave " << wave;
      int64_t misses = 0, want_misses = 0;
      for (size_t r = 0; r < counts.size(); r += 2) {
        ASSERT_EQ(counts[r], want_counts[r]) << "row " << r / 2;
        misses += counts[r + 1], want_misses += want_counts[r + 1];
      }
      ASSERT_EQ(misses, want_misses);
    }
  }
}

std::vector<ResidencyCase> cases() {
  std::vector<ResidencyCase> all = testing::residency_cases();
  all.push_back({.name = "more_columns_than_threads",
                 .heads = 2,
                 .columns = 2500,
                 .blocks = 6000,
                 .seqs = 2,
                 .len = 5000,
                 .k = 300,
                 .rows = 7});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Cases, CudaResolve, ::testing::ValuesIn(cases()), [](const auto& info) { return info.param.name; });

// ---- copies ----

struct Shape {
  DType dtype;
  int32_t block_size, head_dim, heads;
};

// Columns and what lies below, of random bytes.
struct Extents {
  static constexpr int32_t kColumns = 9, kBlocks = 30;

  Extents(const Shape& s, uint32_t seed) : rng(seed) {
    piece = s.block_size * s.head_dim * static_cast<int64_t>(dtype_bytes(s.dtype));
    for (auto* plane : {&k, &v}) fill(*plane, size_t(kColumns) * s.heads * piece);
    fill(below, size_t(s.heads) * kBlocks * 2 * piece);
    kv.dtype = s.dtype, kv.block_size = s.block_size, kv.kv_heads = s.heads, kv.head_dim = s.head_dim;
    kv.head_stride = int64_t{s.block_size} * s.head_dim, kv.block_stride = kv.head_stride * s.heads;
  }
  void fill(std::vector<uint8_t>& bytes, size_t count) {
    bytes.resize(count);
    for (auto& b : bytes) b = static_cast<uint8_t>(rng());
  }
  ExtentsBelow view(const uint8_t* data) const { return {reinterpret_cast<const std::byte*>(data), kBlocks * 2 * piece}; }

  std::mt19937 rng;
  std::vector<uint8_t> k, v, below;
  int64_t piece = 0;
  KvView kv;
};

class CudaExtents : public testing::WithGpu<::testing::TestWithParam<Shape>> {};

TEST_P(CudaExtents, FetchEqualsTheReference) {
  const Shape& s = GetParam();
  Extents e(s, 3);
  std::vector<BlockMiss> misses(size_t(s.heads) * Extents::kColumns);
  std::vector<int32_t> counts;
  for (int32_t h = 0; h < s.heads; ++h) {
    counts.push_back(h % 4 == 1 ? 0 : 1 + h % Extents::kColumns);
    for (int32_t i = 0; i < counts.back(); ++i)
      misses[h * Extents::kColumns + i] = {(7 * h + 3 * i) % Extents::kBlocks, (h + i) % 9};
  }
  const DeviceArray<uint8_t> k(e.k), v(e.v);
  Result<Buffer> pinned = device_->allocate_pinned(e.below.size(), "test");
  ASSERT_TRUE(pinned.ok());
  std::copy(e.below.begin(), e.below.end(), pinned->as<uint8_t>());
  const DeviceArray<BlockMiss> device_misses(misses);
  const DeviceArray<int32_t> device_counts(counts);
  FetchParams p{.kv = e.kv, .misses = device_misses.data(), .num_misses = device_counts.data(), .columns = Extents::kColumns};
  p.kv.k = k.data(), p.kv.v = v.data(), p.below = e.view(pinned->as<uint8_t>());
  cuda::fetch_extents(p, {nullptr, cuda::runs_code_for_hopper()});
  ASSERT_TRUE(device_ok());
  p.kv.k = e.k.data(), p.kv.v = e.v.data(), p.below = e.view(e.below.data());
  p.misses = misses.data(), p.num_misses = counts.data();
  ref::fetch_extents(p);
  EXPECT_EQ(k.download(), e.k);
  EXPECT_EQ(v.download(), e.v);
}

TEST_P(CudaExtents, StageEqualsTheReference) {
  const Shape& s = GetParam();
  Extents e(s, 4);
  std::vector<int32_t> slot_of(size_t(s.heads) * Extents::kBlocks), blocks(Extents::kBlocks);
  for (auto& slot : slot_of) slot = static_cast<int32_t>(e.rng() % 14) - 5, slot = slot < 0 ? -1 : slot;
  std::iota(blocks.begin(), blocks.end(), 0);
  std::shuffle(blocks.begin(), blocks.end(), e.rng);
  const DeviceArray<uint8_t> k(e.k), v(e.v);
  Result<Buffer> pinned = device_->allocate_pinned(e.below.size(), "test");
  ASSERT_TRUE(pinned.ok());
  std::copy(e.below.begin(), e.below.end(), pinned->as<uint8_t>());
  const DeviceArray<int32_t> device_slots(slot_of), device_blocks(blocks);
  std::vector<uint8_t> want(size_t(s.heads) * Extents::kBlocks * 2 * e.piece, 0x5a);
  const DeviceArray<uint8_t> out(want);
  StageParams p{.kv = e.kv, .slot_of = device_slots.data(), .slot_blocks = Extents::kBlocks, .heads = s.heads};
  p.first_head = s.heads > 1, p.heads = s.heads - p.first_head;
  p.blocks = device_blocks.data(), p.first = 4, p.count = Extents::kBlocks - 1;
  p.kv.k = k.data(), p.kv.v = v.data(), p.below = e.view(pinned->as<uint8_t>());
  // Heads apart, the blocks of each in an order of its own.
  std::vector<int32_t> places;
  for (int32_t h = 0; h < p.heads; ++h)
    for (int32_t i = 0; i < p.count; ++i) places.push_back((7 * i + h) % p.count);
  const DeviceArray<int32_t> device_places(places);
  const int64_t extent = 2 * int64_t{s.block_size} * s.head_dim;
  p.out = p.kv, p.out.kv_heads = p.heads, p.out.block_stride = extent, p.out.head_stride = Extents::kBlocks * extent;
  p.out.k = out.data(), p.out.v = out.data() + e.piece;
  p.out.table = {device_places.data(), 0, p.count};
  cuda::stage_extents(p, {nullptr, cuda::runs_code_for_hopper()});
  ASSERT_TRUE(device_ok());
  p.kv.k = e.k.data(), p.kv.v = e.v.data(), p.below = e.view(e.below.data());
  p.slot_of = slot_of.data(), p.blocks = blocks.data(), p.out.k = want.data(), p.out.v = want.data() + e.piece;
  p.out.table.slots = places.data();
  ref::stage_extents(p);
  EXPECT_EQ(out.download(), want);
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaExtents,
                         ::testing::Values(Shape{DType::bf16, 16, 128, 8}, Shape{DType::f32, 16, 64, 2},
                                           Shape{DType::bf16, 16, 80, 1}, Shape{DType::fp8_e4m3, 8, 64, 40}),
                         [](const auto& info) {
                           return std::string(dtype_name(info.param.dtype)) + "_d" + std::to_string(info.param.head_dim) + "_h" +
                                  std::to_string(info.param.heads);
                         });

// ---- moves ----

class CudaMoves : public testing::WithGpu<::testing::Test> {};

TEST_F(CudaMoves, EqualTheReference) {
  constexpr int32_t kHeads = 13, kBlocks = 150, kColumns = 90;
  std::mt19937 rng(5);
  std::vector<int32_t> slot_of(kHeads * kBlocks, -1), owner(kHeads * kColumns, -1);
  std::vector<uint32_t> stamp(kHeads * kColumns, 0);
  const ResidencyView host{slot_of.data(), owner.data(), stamp.data(), kHeads, kBlocks, kColumns};
  const DeviceArray<int32_t> device_slots(slot_of), device_owner(owner);
  const DeviceArray<uint32_t> device_stamp(stamp);
  for (int round = 0; round < 60; ++round) {
    std::vector<ColumnMove> moves;
    const int kind = round % 7;  // runs of one kind, and mixtures
    for (int i = 0; i < 1 + static_cast<int>(rng() % 100); ++i) {
      const int32_t what = kind == 6 ? static_cast<int32_t>(rng() % 6) : kind;
      // A run of forgets or unpins names each block or column once.
      const bool once = what == ColumnMove::forget || what == ColumnMove::unpin;
      moves.push_back({what, once ? i : static_cast<int32_t>(rng() % kBlocks),
                       once ? i % kColumns : static_cast<int32_t>(rng() % kColumns), static_cast<uint32_t>(rng() % 50)});
    }
    const DeviceArray<ColumnMove> device_moves(moves);
    cuda::move_columns({{device_slots.data(), device_owner.data(), device_stamp.data(), kHeads, kBlocks, kColumns},
                        device_moves.data(),
                        static_cast<int32_t>(moves.size())},
                       {});
    ASSERT_TRUE(device_ok());
    ref::move_columns({host, moves.data(), static_cast<int32_t>(moves.size())});
    ASSERT_EQ(device_slots.download(), slot_of) << "round " << round;
    ASSERT_EQ(device_owner.download(), owner) << "round " << round;
    ASSERT_EQ(device_stamp.download(), stamp) << "round " << round;
  }
}

}  // namespace
}  // namespace fovea
