// A random life of one layer's residency tables, for the tests of every backend: pins come and go, waves of random lists resolve.
#pragma once

#include <fovea/kernels/residency.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace fovea::testing {

struct ResidencyCase {
  std::string name;
  int32_t heads = 2;
  int32_t columns = 24;
  int32_t blocks = 64;  // BlockIds
  int32_t seqs = 3;
  int32_t len = 30;  // blocks of a sequence
  int32_t k = 4;     // blocks of a list
  int32_t rows = 3;  // of a wave
  HeadGroups groups = HeadGroups::per_kv_head;
  int32_t group_size = 1;  // query heads of a KV head
  int32_t window = 0;
  bool slots_by_row = false;
  uint32_t fresh_age = 0;
  int32_t lent = 0;  // the last columns, withheld at times
};

inline std::vector<ResidencyCase> residency_cases() {
  using enum HeadGroups;
  return {{.name = "plain"},
          {.name = "one_head_one_row", .heads = 1, .rows = 1},
          {.name = "exactly_fits", .columns = 14, .k = 4, .rows = 3},
          {.name = "all_heads_share", .heads = 3, .groups = all},
          {.name = "list_per_query_head", .columns = 40, .groups = per_query_head, .group_size = 2},
          {.name = "window", .window = 75},
          {.name = "slots_by_row", .columns = 30, .rows = 5, .slots_by_row = true},
          {.name = "fresh_age", .columns = 40, .fresh_age = 7},
          {.name = "lent_columns", .columns = 40, .fresh_age = 2, .lent = 14},
          {.name = "many_columns", .heads = 4, .columns = 500, .blocks = 900, .seqs = 2, .len = 800, .k = 40, .rows = 8}};
}

// Tables, lists and page tables of one case; two worlds of the same seed stay equal as long as resolve() does.
class ResidencyWorld {
 public:
  ResidencyWorld(const ResidencyCase& c, uint64_t seed) : c_(c), rng_(seed) {
    slot_of.assign(size_t(c.heads) * c.blocks, -1);
    owner.assign(size_t(c.heads) * c.columns, -1);
    stamp.assign(size_t(c.heads) * c.columns, 0);
    misses.resize(owner.size());
    num_misses.resize(c.heads);
    scratch_.resize(owner.size());
    table.assign(size_t(c.slots_by_row ? c.rows : c.seqs) * c.heads * c.len, kUnwritten);
    std::vector<int32_t> ids(c.blocks);
    for (int32_t b = 0; b < c.blocks; ++b) ids[b] = b;
    for (int32_t s = 0; s < c.seqs; ++s) {  // sequences share blocks, as forks do
      std::shuffle(ids.begin(), ids.end(), rng_);
      blocks_.insert(blocks_.end(), ids.begin(), ids.begin() + c.len);
    }
    pinned_.assign(c.columns, false);
  }

  // A few columns are pinned to a block or unpinned, as the host does between steps: at most `columns - rows * k` are pinned. Those
  // that are lent never are: they are withheld, and given back.
  void move_pins() {
    const int32_t lists = c_.groups == HeadGroups::per_query_head ? c_.group_size : 1;
    const auto most = first_lent() - c_.rows * c_.k * lists;
    if (c_.lent > 0 && draw(4) == 0) withhold(!withheld_);
    for (int i = 0; i < 3; ++i) {
      const int32_t column = draw(first_lent()), block = draw(c_.blocks);
      const auto pins = std::count(pinned_.begin(), pinned_.end(), true);
      if (pinned_[column]) {
        pinned_[column] = false;
        for (int32_t h = 0; h < c_.heads; ++h) stamp[h * c_.columns + column] = wave_ - 1;
      } else if (pins < most && !holds_pinned(block)) {
        pinned_[column] = true;
        for (int32_t h = 0; h < c_.heads; ++h) pin(h, column, block);
      }
    }
  }

  ResolveParams next_wave() {
    const int32_t groups = c_.groups == HeadGroups::all ? 1 : c_.heads * c_.group_size;
    units_.assign(size_t(c_.rows) * groups * c_.k, -1);
    counts_.assign(size_t(c_.rows) * groups, 0);
    row_seq_.clear(), row_len_.clear();
    for (int32_t r = 0; r < c_.rows; ++r) {
      row_seq_.push_back(draw(c_.seqs));
      const int32_t len = draw(8) == 0 ? 0 : 1 + draw(c_.len * kBlock);
      row_len_.push_back(len);
      for (int32_t g = 0; g < groups; ++g) draw_list((len + kBlock - 1) / kBlock, r * groups + g);
    }
    selection_ = {.kind = Selection::Kind::list, .heads = c_.groups, .tokens_per_unit = kBlock, .rows = c_.rows, .groups = groups};
    selection_.capacity = c_.k;
    selection_.units = units_.data();
    selection_.counts = counts_.data();
    ResolveParams p;
    p.tables = {slot_of.data(), owner.data(), stamp.data(), c_.heads, c_.blocks, c_.columns};
    p.wave = wave_++;
    p.fresh_age = c_.fresh_age;
    p.selection = &selection_;
    p.rows = c_.rows;
    p.block_size = kBlock;
    p.window = c_.window;
    p.row_seq = row_seq_.data(), p.row_len = row_len_.data();
    p.blocks = {blocks_.data(), c_.len, 0};
    p.slots = table.data();
    p.slots_by_row = c_.slots_by_row;
    p.seq_stride = int64_t{c_.heads} * c_.len, p.head_stride = c_.len;
    p.misses = misses.data(), p.num_misses = num_misses.data(), p.scratch = scratch_.data();
    return p;
  }

  // Empty, or which table contradicts another.
  std::string contradiction() const {
    for (int32_t h = 0; h < c_.heads; ++h) {
      for (int32_t b = 0; b < c_.blocks; ++b) {
        const int32_t column = slot_of[h * c_.blocks + b];
        if (column < -1 || column >= c_.columns) return "slot_of of block " + std::to_string(b);
        if (column >= 0 && owner[h * c_.columns + column] != b) return "block " + std::to_string(b) + " is not in its column";
      }
      for (int32_t c = 0; c < c_.columns; ++c) {
        const int32_t block = owner[h * c_.columns + c];
        if (block >= 0 && slot_of[h * c_.blocks + block] != c) return "column " + std::to_string(c) + " is not its block's";
        const bool kept = pinned_[c] || (withheld_ && c >= first_lent());
        if (kept && !pinned_[c] && block >= 0) return "column " + std::to_string(c) + " is withheld and has an owner";
        if (kept != (stamp[h * c_.columns + c] == kPinnedStamp)) return "pin of column " + std::to_string(c);
      }
    }
    return "";
  }
  // The first thing in which it differs from what it should be, after a wave; else empty.
  std::string difference(const ResidencyWorld& want) const {
    if (num_misses != want.num_misses) return "num_misses";
    for (int32_t h = 0; h < c_.heads; ++h) {
      const auto first = misses.begin() + int64_t{h} * c_.columns;
      if (!std::equal(first, first + num_misses[h], want.misses.begin() + int64_t{h} * c_.columns))
        return "misses of head " + std::to_string(h);
    }
    return slot_of != want.slot_of ? "slot_of"
           : owner != want.owner   ? "owner"
           : stamp != want.stamp   ? "stamp"
           : table != want.table   ? "table"
                                   : "";
  }
  const std::vector<int32_t>& blocks() const { return blocks_; }  // [seqs, len]
  int32_t block_at(int32_t seq, int32_t unit) const { return blocks_[seq * c_.len + unit]; }

  static constexpr int32_t kBlock = 16, kUnwritten = -7;
  std::vector<int32_t> slot_of, owner, table, num_misses;
  std::vector<uint32_t> stamp;
  std::vector<BlockMiss> misses;

 private:
  int32_t draw(int32_t n) { return static_cast<int32_t>(rng_() % static_cast<uint64_t>(n)); }
  bool holds_pinned(int32_t block) const {
    const int32_t column = slot_of[block];
    return column >= 0 && pinned_[column];
  }
  void pin(int32_t h, int32_t column, int32_t block) {
    int32_t* slots = &slot_of[h * c_.blocks];
    int32_t* owners = &owner[h * c_.columns];
    if (owners[column] >= 0) slots[owners[column]] = -1;
    if (slots[block] >= 0) owners[slots[block]] = -1;
    owners[column] = block;
    slots[block] = column;
    stamp[h * c_.columns + column] = kPinnedStamp;
  }
  int32_t first_lent() const { return c_.columns - c_.lent; }
  void withhold(bool yes) {
    withheld_ = yes;
    for (int32_t h = 0; h < c_.heads; ++h) {
      for (int32_t c = h * c_.columns + first_lent(); c < (h + 1) * c_.columns; ++c) {
        if (owner[c] >= 0) slot_of[h * c_.blocks + owner[c]] = -1;
        owner[c] = -1;
        stamp[c] = yes ? kPinnedStamp : 0;
      }
    }
  }
  // k units below `units`, in favour of the last ones, as attention is.
  void draw_list(int32_t units, int32_t list) {
    std::vector<int32_t> all;
    for (int32_t u = 0; u < units; ++u) all.push_back(u);
    std::shuffle(all.begin(), all.end() - units / 2, rng_);
    std::reverse(all.begin(), all.end());
    all.resize(std::min(units, c_.k));
    std::sort(all.begin(), all.end());
    counts_[list] = static_cast<int32_t>(all.size());
    std::copy(all.begin(), all.end(), units_.begin() + int64_t{list} * c_.k);
  }

  const ResidencyCase c_;
  std::mt19937_64 rng_;
  uint32_t wave_ = 1;
  std::vector<int32_t> blocks_, units_, counts_, row_seq_, row_len_;
  std::vector<uint64_t> scratch_;
  std::vector<bool> pinned_;
  bool withheld_ = false;
  Selection selection_;
};

}  // namespace fovea::testing
