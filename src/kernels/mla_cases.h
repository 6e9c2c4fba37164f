// Hostile problems of latent attention: one table that the tests of every backend walk.
//
// A problem owns its memory, and everything in it that no row may read is poison: entries beyond every row's position or
// not selected, unused blocks and the padding between blocks are NaN; table entries that no row needs are a slot that
// does not exist.
#pragma once

#include <fovea/kernels/limits.h>
#include <fovea/kernels/mla.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/common/convert.h"
#include "kernels/noise_cases.h"
#include "kernels/row_cases.h"

namespace fovea::testing {

struct MlaCase {
  std::string name;
  int32_t heads = 4;
  MlaShape shape = {32, 6, 8, 10};
  int32_t block_size = 16;
  std::vector<SeqShape> seqs;
  DType dtype = DType::bf16;  // of the plane

  bool select = false;  // the fields below hold
  Selection::Kind kind = Selection::Kind::list;
  int32_t tokens_per_unit = 1;
  int32_t rows_per_list = 0;  // 0: a list per query row, row_indptr null; else that many rows share one (or fewer)
  double keep = 0.3;          // share of units in a list; 0: every list is empty; 1: all
};

// Memory and Params of one case. Not movable: params point into it.
class MlaProblem {
 public:
  explicit MlaProblem(const MlaCase& c, uint64_t seed = 1) : c_(c), rng_(seed), rows_(c.seqs) {
    build_queries();
    if (c.select) lists_.draw({c.kind, HeadGroups::all, 1, c.tokens_per_unit, c.rows_per_list, c.keep}, rows_, rng_);
    build_table();
    build_plane();
    fill_params();
  }
  MlaProblem(const MlaProblem&) = delete;
  MlaProblem& operator=(const MlaProblem&) = delete;

  const MlaCase& shape() const { return c_; }
  MlaAttendParams& params() { return params_; }
  KvView& kv() { return kv_; }
  int32_t rows() const { return rows_.size(); }
  int32_t entry() const { return c_.shape.latent + c_.shape.rope; }
  int32_t row_seq(int32_t row) const { return rows_.row_seq[row]; }
  int64_t row_pos(int32_t row) const { return rows_.row_pos[row]; }
  int32_t row_list(int32_t row) const { return lists_.row_list(row); }
  std::vector<float>& q() { return q_; }      // [T, H, latent + rope]
  std::vector<float>& out() { return out_; }  // [T, H, latent], NaN until written
  std::vector<float>& lse() { return lse_; }  // [T, H]
  // What Params point to.
  const std::vector<uint8_t>& plane() const { return plane_; }
  const std::vector<int32_t>& table() const { return table_; }
  const std::vector<int32_t>& q_indptr() const { return rows_.q_indptr; }
  const std::vector<int32_t>& seq_len() const { return rows_.seq_len; }
  const CaseLists& lists() const { return lists_; }
  // Entries as the plane's dtype holds them: [len, latent + rope] of one sequence.
  const std::vector<float>& entries(int32_t seq) const { return entries_[seq]; }

  bool sees(int32_t row, int64_t pos) const { return pos <= row_pos(row) && (!c_.select || lists_.holds(row, 0, pos)); }

  // Overwrites the entry of one token in the plane alone, where it lies in a block that some row reads.
  void write_token(int32_t seq, int64_t pos, float value) {
    if (slot_entry(seq, pos) == kNoSlot) return;
    for (int32_t i = 0; i < entry(); ++i) store_f32(plane_.data(), c_.dtype, element(seq, pos) + i, value);
  }

 private:
  float normal() { return noise(rng_); }

  void build_queries() {
    const size_t size = static_cast<size_t>(rows()) * c_.heads;
    const float spread = 4.0f / std::sqrt(static_cast<float>(entry()));  // scores of several units: no flat softmax
    for (size_t i = 0; i < size * entry(); ++i) q_.push_back(normal() * spread);
    out_.assign(size * c_.shape.latent, std::numeric_limits<float>::quiet_NaN());
    lse_.assign(size, std::numeric_limits<float>::quiet_NaN());
  }

  // Which tokens some row reads, and a random slot for every block that holds one.
  void build_table() {
    const auto seqs = static_cast<int32_t>(c_.seqs.size());
    for (const SeqShape& s : c_.seqs) max_blocks_ = std::max(max_blocks_, s.len / c_.block_size + 2);
    table_.assign(static_cast<size_t>(seqs) * max_blocks_, kNoSlot);
    for (int32_t s = 0; s < seqs; ++s) needed_.emplace_back(c_.seqs[s].len, false);
    for (int32_t row = 0; row < rows(); ++row) {
      for (int64_t pos = 0; pos <= row_pos(row); ++pos) {
        if (!sees(row, pos)) continue;
        needed_[row_seq(row)][pos] = true;
        slot_entry(row_seq(row), pos) = 0;
      }
    }
    slots_ = deal_slots(table_, rng_);
  }
  int32_t& slot_entry(int32_t seq, int64_t pos) { return table_[static_cast<int64_t>(seq) * max_blocks_ + pos / c_.block_size]; }
  int64_t element(int32_t seq, int64_t pos) { return slot_entry(seq, pos) * kv_.block_stride + pos % c_.block_size * entry(); }

  void build_plane() {
    kv_.block_stride = static_cast<int64_t>(c_.block_size) * entry() + 32;  // not the shape's product
    const int64_t size = slots_ * kv_.block_stride;
    plane_.resize(size * dtype_bytes(c_.dtype));
    for (int64_t i = 0; i < size; ++i) store_f32(plane_.data(), c_.dtype, i, std::numeric_limits<float>::quiet_NaN());
    for (int32_t s = 0; s < static_cast<int32_t>(c_.seqs.size()); ++s) {
      entries_.emplace_back(static_cast<size_t>(c_.seqs[s].len) * entry());
      for (int64_t pos = 0; pos < c_.seqs[s].len; ++pos) {
        for (int32_t i = 0; i < entry(); ++i) {
          uint32_t bits = 0;  // through the plane's dtype
          store_f32(&bits, c_.dtype, 0, normal());
          const float x = load_as_f32(&bits, c_.dtype, 0);
          entries_[s][pos * entry() + i] = x;
          if (needed_[s][pos]) store_f32(plane_.data(), c_.dtype, element(s, pos) + i, x);
        }
      }
    }
  }

  void fill_params() {
    kv_.k = plane_.data();
    kv_.dtype = c_.dtype;
    kv_.block_size = c_.block_size;
    kv_.kv_heads = 1;
    kv_.head_dim = entry();
    kv_.table = {table_.data(), max_blocks_, 0};
    params_.q = q_.data();
    params_.out = out_.data();
    params_.lse = lse_.data();
    params_.num_heads = c_.heads;
    params_.rows = rows();
    params_.num_seqs = static_cast<int32_t>(c_.seqs.size());
    params_.q_indptr = rows_.q_indptr.data();
    params_.seq_len = rows_.seq_len.data();
    params_.kv = &kv_;
    params_.latent = c_.shape.latent;
    params_.scale = 0.9f;
    params_.selection = c_.select ? &lists_.selection() : nullptr;
  }

  MlaCase c_;
  std::mt19937_64 rng_;
  CaseRows rows_;
  CaseLists lists_;
  MlaAttendParams params_;
  KvView kv_;
  int32_t slots_ = 0, max_blocks_ = 0;
  std::vector<int32_t> table_;
  std::vector<std::vector<bool>> needed_;
  std::vector<float> q_, out_, lse_;
  std::vector<std::vector<float>> entries_;
  std::vector<uint8_t> plane_;
};

// The table. Lengths straddle blocks, key tiles and partitions; head counts are odd, large and one; the main shape is
// latent 512 and rope 64.
inline std::vector<MlaCase> mla_cases() {
  using Kind = Selection::Kind;
  const MlaShape full = {512, 64, 128, 128};
  const std::vector<SeqShape> edges = {{1, 1}, {1, 15}, {0, 0}, {1, 16}, {1, 17}, {0, 9}, {1, 33}};
  const std::vector<SeqShape> growing = {{5, 5}, {3, 40}, {70, 130}};
  const std::vector<SeqShape> padded = {{1, 0}, {1, 33}, {3, 0}, {2, 200}, {1, 0}};
  std::vector<MlaCase> cases;
  const auto add = [&](MlaCase c) { cases.push_back(std::move(c)); };
  add({.name = "edges", .seqs = edges});
  add({.name = "growing_rows", .seqs = growing});
  add({.name = "padded", .seqs = padded});
  add({.name = "only_empty", .seqs = {{0, 0}, {0, 5}}});
  for (int32_t heads : {1, 2, 3, 5, 16, 64, 128, 130}) {
    add({.name = "heads_" + std::to_string(heads), .heads = heads, .seqs = {{1, 17}, {3, 70}, {1, 0}}});
  }
  for (int32_t heads : {1, 3, 4, 16, 128}) {
    add({.name = "full_heads_" + std::to_string(heads), .heads = heads, .shape = full, .seqs = {{1, 65}, {4, 90}}});
  }
  for (DType t : {DType::f16, DType::f32}) {
    add({.name = "full_" + std::string(dtype_name(t)), .shape = full, .seqs = {{9, 80}}, .dtype = t});
    add({.name = "small_" + std::string(dtype_name(t)), .heads = 3, .seqs = growing, .dtype = t});
  }
  for (int32_t latent : {16, 48, 64, 272, 496}) {
    add({.name = "latent_" + std::to_string(latent), .shape = {latent, 2, 4, 4}, .seqs = {{1, 37}, {6, 90}}});
    add({.name = "latent_rope_" + std::to_string(latent), .heads = 7, .shape = {latent, 128, 4, 4}, .seqs = {{6, 90}}});
  }
  add({.name = "no_rope", .shape = {64, 0, 4, 4}, .seqs = growing});
  add({.name = "block_8", .block_size = 8, .seqs = growing});
  add({.name = "block_256", .block_size = 256, .seqs = {{1, 255}, {1, 257}, {2, 600}}});
  add({.name = "partitions", .seqs = {{1, 511}, {1, 512}, {1, 513}, {3, 1026}, {1, 2600}}});
  add({.name = "partitions_rows", .heads = 2, .seqs = {{70, 1050}}});

  for (Kind kind : {Kind::range, Kind::list}) {
    for (int32_t tokens : {1, 16, 24}) {
      const std::string name = std::string(kind == Kind::range ? "range_" : "list_") + std::to_string(tokens);
      add({.name = name, .seqs = {{3, 40}, {1, 129}, {4, 700}}, .select = true, .kind = kind, .tokens_per_unit = tokens});
      add({.name = name + "_shared_rows",
           .heads = 6,
           .seqs = {{3, 40}, {0, 0}, {40, 300}},
           .select = true,
           .kind = kind,
           .tokens_per_unit = tokens,
           .rows_per_list = 17});
    }
  }
  add({.name = "select_all_kind", .seqs = growing, .select = true, .kind = Kind::all});
  add({.name = "list_empty", .seqs = growing, .select = true, .keep = 0});
  add({.name = "list_padded", .seqs = padded, .select = true});
  add({.name = "list_everything", .seqs = {{1, 16}, {4, 700}}, .select = true, .keep = 1});
  add({.name = "list_full", .heads = 5, .shape = full, .seqs = {{20, 600}}, .select = true, .keep = 0.2});
  add({.name = "list_full_16", .heads = 16, .shape = full, .seqs = {{6, 600}}, .select = true, .keep = 0.5});
  add({.name = "list_partitions", .seqs = {{1, 3000}, {2, 1500}}, .select = true, .keep = 0.7});
  return cases;
}

// Of the projections beside attention, with sizes of which no tile is made up.
inline std::vector<MlaShape> mla_projection_shapes() {
  return {{16, 2, 1, 1}, {48, 6, 10, 13}, {80, 0, 7, 5}, {512, 64, 128, 128}, {272, 16, 33, 40}, {64, 16, 72, 40}};
}

// Sequences to gather from: of a dense problem all of their tokens are readable but those of one without rows, which is not.
inline const std::vector<SeqShape> kGatheredSeqs = {{3, 40}, {0, 9}, {7, 7}, {1, 100}, {40, 130}};

// What is asked of them: own tokens, and runs that end before, within and behind the prefixes.
inline std::vector<MlaGatherParams> mla_gathers() {
  std::vector<MlaGatherParams> all;
  all.push_back({.own = true});
  for (const auto& [first, count] : std::vector<std::pair<int32_t, int32_t>>{{0, 1}, {0, 37}, {30, 64}, {64, 26}, {98, 500}, {99, 7}})
    all.push_back({.first = first, .count = count});
  return all;
}

// Results of a gather, from the problem's entries.
struct GatheredEntries {
  GatheredEntries(const MlaProblem& problem, const MlaGatherParams& asked) {
    const auto& seqs = problem.shape().seqs;
    for (size_t s = 0; s < seqs.size(); ++s) {
      const auto [first, end] = asked.range(seqs[s].rows, seqs[s].len);
      for (int64_t pos = first; pos < end; ++pos) {
        const float* entry = problem.entries(static_cast<int32_t>(s)).data() + pos * problem.entry();
        latent.insert(latent.end(), entry, entry + problem.shape().shape.latent);
        rope.insert(rope.end(), entry + problem.shape().shape.latent, entry + problem.entry());
      }
      cu_lengths.push_back(static_cast<int32_t>(latent.size()) / problem.shape().shape.latent);
    }
  }
  GatheredEntries empty_copy() const {
    GatheredEntries copy = *this;
    copy.cu_lengths.assign(cu_lengths.size(), -1);
    copy.latent.assign(latent.size(), std::numeric_limits<float>::quiet_NaN());
    copy.rope.assign(rope.size(), std::numeric_limits<float>::quiet_NaN());
    return copy;
  }
  MlaGatherParams params(MlaProblem& problem, MlaGatherParams p) {
    p.kv = &problem.kv();
    p.num_seqs = problem.params().num_seqs;
    p.q_indptr = problem.q_indptr().data();
    p.seq_len = problem.seq_len().data();
    p.latent = problem.shape().shape.latent;
    p.tokens = static_cast<int32_t>(latent.size()) / p.latent;
    p.cu_lengths = cu_lengths.data();
    p.latent_out = latent.data();
    p.rope_out = rope.data();
    return p;
  }

  std::vector<int32_t> cu_lengths = {0};
  std::vector<float> latent, rope;
};

// What Ops is prepared with for a case.
inline OpsLimits mla_limits(const MlaCase& c) {
  OpsLimits limits;
  limits.num_heads = c.heads;
  limits.block_size = c.block_size;
  limits.mla = c.shape;
  limits.max_rows = 0;
  for (const SeqShape& s : c.seqs) {
    limits.max_len = std::max<int64_t>(limits.max_len, s.len);
    limits.max_rows += s.rows;
  }
  limits.max_rows = std::max(1, limits.max_rows);
  return limits;
}

// One row of a problem's call by itself; lengths and results are the caller's. It points into itself.
struct MlaRowAlone {
  MlaRowAlone(const MlaProblem& problem, const MlaAttendParams& all, int32_t row) : params(all), kv(*all.kv) {
    params.rows = params.num_seqs = 1;
    params.q += int64_t{row} * all.num_heads * problem.entry();
    params.keys_read = nullptr;
    kv.table.slots += problem.row_seq(row) * kv.table.seq_stride;
    params.kv = &kv;
    if (all.selection == nullptr || all.selection->kind == Selection::Kind::all) return;
    selection = *all.selection;
    const int64_t list = problem.row_list(row);
    if (selection.units) selection.units += list * selection.capacity, selection.counts += list;
    if (selection.begins) selection.begins += list, selection.ends += list;
    selection.rows = 1;
    selection.row_indptr = nullptr;
    params.selection = &selection;
  }
  MlaRowAlone(const MlaRowAlone&) = delete;
  MlaRowAlone& operator=(const MlaRowAlone&) = delete;

  MlaAttendParams params;
  KvView kv;
  Selection selection;
};

}  // namespace fovea::testing
