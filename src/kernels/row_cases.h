// What the tables of attention problems (attention_cases.h, mla_cases.h) have in common: rows of sequences, random lists of
// units for them, and slots for the blocks that are read.
#pragma once

#include <fovea/selection.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

namespace fovea::testing {

inline constexpr int32_t kNoSlot = -7;  // an address far outside, should a kernel follow it

struct SeqShape {
  int32_t rows;  // query rows; the last sits at position len - 1
  int32_t len;   // keys, the rows' own included
};

// Rows of all sequences. A sequence of length 0 has rows that pad a batch, at position -1 or below.
struct CaseRows {
  std::vector<int32_t> q_indptr = {0}, seq_len, row_seq;
  std::vector<int64_t> row_pos;

  explicit CaseRows(const std::vector<SeqShape>& seqs) {
    for (size_t s = 0; s < seqs.size(); ++s) {
      const auto [rows, len] = seqs[s];
      seq_len.push_back(len);
      for (int32_t i = 0; i < rows; ++i) {
        row_seq.push_back(static_cast<int32_t>(s));
        row_pos.push_back(len - rows + i);
      }
      q_indptr.push_back(size());
    }
  }
  int32_t size() const { return static_cast<int32_t>(row_seq.size()); }
};

// How lists are drawn.
struct ListShape {
  Selection::Kind kind = Selection::Kind::list;
  HeadGroups heads = HeadGroups::all;
  int32_t groups = 1;  // lists a row of the Selection
  int32_t tokens_per_unit = 16;
  int32_t rows_per_list = 0;  // 0: a list per query row, row_indptr null; else that many rows share one (or fewer)
  double keep = 0.3;          // share of units in a list; 0: every list is empty; 1: all
};

// A random set of units for every list; rows that share one never cross a sequence. The Selection points into it.
class CaseLists {
 public:
  void draw(const ListShape& shape, const CaseRows& rows, std::mt19937_64& rng) {
    sel_ = {.kind = shape.kind, .heads = shape.heads, .tokens_per_unit = shape.tokens_per_unit};
    if (shape.kind == Selection::Kind::all) return;
    const int32_t share = std::max(1, shape.rows_per_list);
    for (size_t s = 0; s + 1 < rows.q_indptr.size(); ++s) {
      for (int32_t first = rows.q_indptr[s]; first < rows.q_indptr[s + 1]; first += share) {
        const int32_t last = std::min(first + share, rows.q_indptr[s + 1]) - 1;
        indptr_.push_back(first);
        for (int32_t r = first; r <= last; ++r) row_list_.push_back(static_cast<int32_t>(lists_.size()));
        const int64_t keys = std::max<int64_t>(0, rows.row_pos[last] + 1);
        const auto units = static_cast<int32_t>((keys + shape.tokens_per_unit - 1) / shape.tokens_per_unit);
        lists_.emplace_back();
        for (int32_t g = 0; g < shape.groups; ++g) lists_.back().push_back(draw_units(shape, units, rng));
      }
    }
    indptr_.push_back(rows.size());
    pack(shape);
  }

  const Selection& selection() const { return sel_; }
  // Which row of the Selection a query row reads through; 0 where every row reads all.
  int32_t row_list(int32_t row) const { return row_list_.empty() ? 0 : row_list_[row]; }
  const std::vector<int32_t>& list(int32_t row, int32_t group) const { return lists_[row_list_[row]][group]; }
  bool holds(int32_t row, int32_t group, int64_t pos) const {
    if (sel_.kind == Selection::Kind::all) return true;
    return std::binary_search(list(row, group).begin(), list(row, group).end(), static_cast<int32_t>(pos / sel_.tokens_per_unit));
  }

  // The arrays that the Selection points into.
  const std::vector<int32_t>& indptr() const { return indptr_; }
  const std::vector<int32_t>& units() const { return units_; }
  const std::vector<int32_t>& counts() const { return counts_; }
  const std::vector<int32_t>& begins() const { return begins_; }
  const std::vector<int32_t>& ends() const { return ends_; }

 private:
  static std::vector<int32_t> draw_units(const ListShape& shape, int32_t units, std::mt19937_64& rng) {
    std::vector<int32_t> list;
    if (shape.keep <= 0 || units <= 0) return list;
    if (shape.kind == Selection::Kind::range) {
      const auto size = std::max(1, static_cast<int32_t>(units * shape.keep));
      const auto begin = std::uniform_int_distribution<int32_t>(0, units - size)(rng);
      for (int32_t u = begin; u < begin + size; ++u) list.push_back(u);
      return list;
    }
    std::bernoulli_distribution kept(shape.keep);
    for (int32_t u = 0; u < units; ++u) {
      if (kept(rng)) list.push_back(u);
    }
    return list;
  }

  void pack(const ListShape& shape) {
    size_t capacity = 1;
    for (const auto& row : lists_) {
      for (const auto& list : row) capacity = std::max(capacity, list.size() + 1);  // room that holds no unit
    }
    for (const auto& row : lists_) {
      for (const auto& list : row) {
        counts_.push_back(static_cast<int32_t>(list.size()));
        begins_.push_back(list.empty() ? 0 : list.front());
        ends_.push_back(list.empty() ? 0 : list.back() + 1);
        std::vector<int32_t> padded(list);
        padded.resize(capacity, kNoSlot);
        units_.insert(units_.end(), padded.begin(), padded.end());
      }
    }
    const bool list = shape.kind == Selection::Kind::list;
    sel_.rows = static_cast<int32_t>(lists_.size());
    sel_.groups = shape.groups;
    sel_.capacity = static_cast<int32_t>(capacity);
    sel_.row_indptr = shape.rows_per_list > 0 ? indptr_.data() : nullptr;
    sel_.units = list ? units_.data() : nullptr;
    sel_.counts = list ? counts_.data() : nullptr;
    sel_.begins = list ? nullptr : begins_.data();
    sel_.ends = list ? nullptr : ends_.data();
  }

  Selection sel_;
  std::vector<int32_t> indptr_, row_list_, units_, counts_, begins_, ends_;
  std::vector<std::vector<std::vector<int32_t>>> lists_;  // [row of the Selection][group]
};

// A random slot for every entry of a page table that is not kNoSlot. Returns the number of slots, a few more than used.
inline int32_t deal_slots(std::vector<int32_t>& table, std::mt19937_64& rng) {
  const auto slots = static_cast<int32_t>(table.size() - std::count(table.begin(), table.end(), kNoSlot)) + 3;
  std::vector<int32_t> order;
  for (int32_t i = 0; i < slots; ++i) order.push_back(i);
  std::shuffle(order.begin(), order.end(), rng);
  size_t next = 0;
  for (int32_t& entry : table) {
    if (entry != kNoSlot) entry = order[next++];
  }
  return slots;
}

}  // namespace fovea::testing
