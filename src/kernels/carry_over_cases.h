// Problems for lists that are carried over from step to step: what the tests of every backend walk.
#pragma once

#include <fovea/kernels/select.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

namespace fovea::testing {

// Rows of all kinds: of a request's first step, below another row, and by a list kept from an earlier step; some pad a batch.
struct CarryOverProblem {
  static constexpr int32_t kGroups = 3, kPlaces = 6, kKeptCapacity = 400;

  explicit CarryOverProblem(uint32_t seed) : rng(seed) {
    const int32_t bs = 8 << draw(3);
    kept.assign(size_t{kPlaces} * kGroups * kKeptCapacity, -9);
    int32_t blocks = 0;
    for (int32_t place = 0; place < kPlaces; ++place) {
      const bool read = place % 2 == 0, padding = !read && draw(2) == 0;
      blocks = padding ? 0 : 1 + draw(draw(2) == 0 ? 8 : 300);
      add_row(bs, blocks, read ? place : CarryOverParams::kOwn, read ? place + 1 : -1);
      for (int32_t below = draw(3); !padding && below > 0; --below) add_row(bs, blocks += draw(3), CarryOverParams::kAbove, -1);
    }
    p.rows = static_cast<int32_t>(row_len.size());
    p.groups = kGroups;
    p.block_size = bs;
    p.local_blocks = draw(5);
    p.capacity = *std::max_element(k.begin(), k.end());
    p.kept_capacity = kKeptCapacity;
    chosen.assign(size_t(p.rows) * kGroups * static_cast<size_t>(p.capacity), -9);
    for (int32_t row = 0; row < p.rows; ++row) draw_lists(row);
    units.assign(chosen.size(), -9);
    p.row_len = row_len.data(), p.k = k.data(), p.chosen = chosen.data();
    p.from = from.data(), p.from_count = from_count.data(), p.keep_at = keep_at.data();
    p.kept = kept.data(), p.units = units.data();
  }
  CarryOverProblem(const CarryOverProblem&) = delete;
  CarryOverProblem& operator=(const CarryOverProblem&) = delete;

  int32_t draw(int32_t below) { return static_cast<int32_t>(rng() % static_cast<uint32_t>(below)); }
  int32_t blocks_of(int32_t row) const { return (row_len[static_cast<size_t>(row)] + p.block_size - 1) / p.block_size; }

  std::mt19937 rng;
  std::vector<int32_t> row_len, k, chosen, from, from_count, keep_at, kept, units;
  CarryOverParams p;

 private:
  void add_row(int32_t bs, int32_t blocks, int32_t source, int32_t keep) {
    row_len.push_back(std::max(0, blocks * bs - draw(bs)));
    k.push_back(1 + draw(blocks + 20));
    from.push_back(source);
    from_count.push_back(0);
    keep_at.push_back(keep);
  }
  // `count` ascending blocks of `blocks`.
  void draw_list(int32_t blocks, int32_t count, int32_t* to) {
    std::vector<int32_t> all(static_cast<size_t>(blocks));
    std::iota(all.begin(), all.end(), 0);
    std::shuffle(all.begin(), all.end(), rng);
    std::sort(all.begin(), all.begin() + count);
    std::copy_n(all.begin(), count, to);
  }
  void draw_lists(int32_t row) {
    const auto r = static_cast<size_t>(row);
    const int32_t blocks = blocks_of(row), before = std::max(0, blocks - draw(4));
    if (from[r] >= 0) from_count[r] = draw(before + 1);
    for (int32_t group = 0; group < kGroups; ++group) {
      draw_list(blocks, std::min(k[r], blocks), chosen.data() + (int64_t{row} * kGroups + group) * p.capacity);
      if (from[r] >= 0) draw_list(before, from_count[r], kept.data() + (int64_t{from[r]} * kGroups + group) * kKeptCapacity);
    }
  }
};

}  // namespace fovea::testing
