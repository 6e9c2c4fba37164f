// Hostile attention problems: one table that the tests of ref, CPU decode, CPU prefill and other backends
// walk, legal for every backend.
//
// A problem owns its memory, and everything in it that no row may read is poison: K and V beyond every row's
// position, unselected or out of the window, unused blocks and the padding between blocks and heads are NaN;
// table entries that no row needs are a slot that does not exist.
#pragma once

#include <fovea/kernels/attention.h>
#include <fovea/kernels/limits.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/common/convert.h"
#include "kernels/noise_cases.h"
#include "kernels/row_cases.h"

namespace fovea::testing {

struct AttentionCase {
  std::string name;
  int32_t heads = 4;
  int32_t kv_heads = 2;
  int32_t head_dim = 64;
  int32_t block_size = 16;
  std::vector<SeqShape> seqs;
  DType dtype = DType::bf16;
  KvLayout layout = KvLayout::hnd;
  bool table_per_head = false;  // table.head_stride != 0: another permutation of slots for each KV head
  bool head_major = false;      // memory [kv_heads, slots, ...] (a pool per head) instead of [slots, kv_heads, ...]
  bool token_major = false;     // memory [slots, bs, kv_heads, d] (NHD); hnd only
  float soft_cap = 0;
  int32_t window = 0;
  bool alibi = false;

  bool select = false;  // the fields below hold
  Selection::Kind kind = Selection::Kind::list;
  HeadGroups groups = HeadGroups::per_kv_head;
  int32_t tokens_per_unit = 16;
  int32_t rows_per_list = 0;  // 0: a list per query row, row_indptr null; else that many rows share one (or fewer)
  double keep = 0.3;          // share of units in a list; 0: every list is empty; 1: all
};

// Memory and Params of one case. Not movable: params point into it.
class AttentionProblem {
 public:
  explicit AttentionProblem(const AttentionCase& c, uint64_t seed = 1) : c_(c), rng_(seed), rows_(c.seqs) {
    build_queries();
    if (c.select) lists_.draw({c.kind, c.groups, num_groups(), c.tokens_per_unit, c.rows_per_list, c.keep}, rows_, rng_);
    build_tables();
    build_memory();
    fill_params();
  }
  AttentionProblem(const AttentionProblem&) = delete;
  AttentionProblem& operator=(const AttentionProblem&) = delete;

  const AttentionCase& shape() const { return c_; }
  AttentionParams& params() { return params_; }
  int32_t rows() const { return rows_.size(); }
  int32_t row_seq(int32_t row) const { return rows_.row_seq[row]; }
  int64_t row_pos(int32_t row) const { return rows_.row_pos[row]; }
  // Which row of the Selection it reads through; 0 where every row reads all.
  int32_t row_list(int32_t row) const { return lists_.row_list(row); }
  int32_t kv_head_of(int32_t head) const { return head / (c_.heads / c_.kv_heads); }
  std::vector<float>& q() { return q_; }      // [T, H, d]
  std::vector<float>& out() { return out_; }  // [T, H, d], NaN until written
  std::vector<float>& lse() { return lse_; }  // [T, H]
  float slope(int32_t head) const { return c_.alibi ? slopes_[head] : 0.0f; }

  // The arrays that params() points into, for a copy of the problem on a device.
  const std::vector<uint8_t>& k_memory() const { return k_; }
  const std::vector<uint8_t>& v_memory() const { return v_; }
  const std::vector<int32_t>& table() const { return table_; }
  const std::vector<int32_t>& q_indptr() const { return rows_.q_indptr; }
  const std::vector<int32_t>& seq_len() const { return rows_.seq_len; }
  const std::vector<float>& slopes() const { return slopes_; }
  const std::vector<float>& k_scales() const { return k_scales_; }  // [kv_heads]; fp8 only, else empty
  const std::vector<float>& v_scales() const { return v_scales_; }
  const CaseLists& lists() const { return lists_; }

  // Keys and values as the cache's dtype and scales hold them, contiguous: [kv_heads, len, d] of one
  // sequence.
  const std::vector<float>& keys(int32_t seq) const { return keys_[seq]; }
  const std::vector<float>& values(int32_t seq) const { return values_[seq]; }

  // May this row and query head read the key at `pos`?
  bool sees(int32_t row, int32_t head, int64_t pos) const {
    if (pos > row_pos(row) || (c_.window > 0 && pos <= row_pos(row) - c_.window)) return false;
    return !c_.select || lists_.holds(row, group_of(head), pos);
  }

  // Overwrites K and V of one token, all heads, in the cache alone.
  void write_token(int32_t seq, int64_t pos, float k_value, float v_value) {
    for (int32_t h = 0; h < c_.kv_heads; ++h) {
      if (!needed_[seq][h * lens(seq) + pos]) continue;
      for (int32_t i = 0; i < c_.head_dim; ++i) {
        store_f32(k_.data(), c_.dtype, k_index(seq, h, pos, i), k_value);
        store_f32(v_.data(), c_.dtype, v_index(seq, h, pos, i), v_value);
      }
    }
  }

 private:
  int32_t lens(int32_t seq) const { return c_.seqs[seq].len; }
  int32_t group_of(int32_t head) const {
    return c_.groups == HeadGroups::all ? 0 : c_.groups == HeadGroups::per_kv_head ? kv_head_of(head) : head;
  }
  int32_t num_groups() const {
    return c_.groups == HeadGroups::all ? 1 : c_.groups == HeadGroups::per_kv_head ? c_.kv_heads : c_.heads;
  }
  float normal() { return noise(rng_); }

  void build_queries() {
    const size_t size = static_cast<size_t>(rows()) * c_.heads;
    for (size_t i = 0; i < size * c_.head_dim; ++i) q_.push_back(normal());
    out_.assign(size * c_.head_dim, std::numeric_limits<float>::quiet_NaN());
    lse_.assign(size, std::numeric_limits<float>::quiet_NaN());
    for (int32_t h = 0; h < c_.heads; ++h) slopes_.push_back(std::exp2(-8.0f * (h + 1) / c_.heads));
  }

  // Which (KV head, token) some row reads, and a random slot for every block that holds one.
  void build_tables() {
    const auto seqs = static_cast<int32_t>(c_.seqs.size());
    const int32_t heads_in_table = c_.table_per_head ? c_.kv_heads : 1;
    for (int32_t s = 0; s < seqs; ++s) max_blocks_ = std::max(max_blocks_, lens(s) / c_.block_size + 2);
    table_.assign(static_cast<size_t>(seqs) * heads_in_table * max_blocks_, kNoSlot);
    for (int32_t s = 0; s < seqs; ++s) needed_.emplace_back(static_cast<size_t>(c_.kv_heads) * lens(s), false);
    for (int32_t row = 0; row < rows(); ++row) {
      for (int32_t h = 0; h < c_.heads; ++h) {
        for (int64_t pos = 0; pos <= row_pos(row); ++pos) {
          if (!sees(row, h, pos)) continue;
          const int32_t s = row_seq(row), kv_head = kv_head_of(h);
          needed_[s][static_cast<int64_t>(kv_head) * lens(s) + pos] = true;
          slot_entry(s, kv_head, pos) = 0;
        }
      }
    }
    slots_ = deal_slots(table_, rng_);
  }
  int32_t& slot_entry(int32_t seq, int32_t kv_head, int64_t pos) {
    const int32_t heads_in_table = c_.table_per_head ? c_.kv_heads : 1;
    const int32_t head = c_.table_per_head ? kv_head : 0;
    return table_[(static_cast<int64_t>(seq) * heads_in_table + head) * max_blocks_ + pos / c_.block_size];
  }

  int64_t block_base(int32_t seq, int32_t head, int64_t pos) {
    return slot_entry(seq, head, pos) * params_.kv.block_stride + head * params_.kv.head_stride;
  }
  int64_t k_index(int32_t seq, int32_t head, int64_t pos, int64_t i) {
    const int64_t off = pos % c_.block_size;
    if (c_.layout == KvLayout::hnd) return block_base(seq, head, pos) + off * params_.kv.tokens_apart() + i;
    const int64_t x = 16 / static_cast<int64_t>(dtype_bytes(c_.dtype));
    return block_base(seq, head, pos) + ((i / x) * c_.block_size + off) * x + i % x;
  }
  int64_t v_index(int32_t seq, int32_t head, int64_t pos, int64_t i) {
    const int64_t off = pos % c_.block_size;
    if (c_.layout == KvLayout::hnd) return block_base(seq, head, pos) + off * params_.kv.tokens_apart() + i;
    return block_base(seq, head, pos) + i * c_.block_size + off;
  }

  void build_memory() {
    KvView& kv = params_.kv;
    const int64_t tile = static_cast<int64_t>(c_.block_size) * c_.head_dim;
    const int64_t pad = 16;  // between heads, or between blocks of a head: strides are not the shape's product
    kv.head_dim = c_.head_dim;
    kv.head_stride = c_.head_major ? slots_ * (tile + pad) + 2 * pad : tile + pad;
    kv.block_stride = c_.head_major ? tile + pad : c_.kv_heads * (tile + pad) + 2 * pad;
    if (c_.token_major) {
      kv.head_stride = c_.head_dim + pad;
      kv.token_stride = c_.kv_heads * kv.head_stride + pad;
      kv.block_stride = c_.block_size * kv.token_stride + 2 * pad;
    }
    const int64_t size = c_.head_major ? c_.kv_heads * kv.head_stride : slots_ * kv.block_stride;
    k_.resize(size * dtype_bytes(c_.dtype));
    v_.resize(size * dtype_bytes(c_.dtype));
    for (int64_t i = 0; i < size; ++i) {
      store_f32(k_.data(), c_.dtype, i, std::numeric_limits<float>::quiet_NaN());
      store_f32(v_.data(), c_.dtype, i, std::numeric_limits<float>::quiet_NaN());
    }
    if (is_fp8(c_.dtype)) {  // of few bits: an element times its scale is exact in float32
      for (int32_t h = 0; h < c_.kv_heads; ++h) {
        k_scales_.push_back(static_cast<float>(2 * h + 3) / 128);
        v_scales_.push_back(static_cast<float>(2 * h + 5) / 64);
      }
    }
    for (int32_t s = 0; s < static_cast<int32_t>(c_.seqs.size()); ++s) {
      keys_.emplace_back(static_cast<size_t>(c_.kv_heads) * lens(s) * c_.head_dim);
      values_.emplace_back(keys_.back().size());
      for (int64_t e = 0; e < static_cast<int64_t>(keys_[s].size()); ++e) fill_element(s, e);
    }
  }
  void fill_element(int32_t s, int64_t e) {
    const int64_t i = e % c_.head_dim, pos = e / c_.head_dim % lens(s);
    const auto head = static_cast<int32_t>(e / c_.head_dim / lens(s));
    // Through the cache's dtype, so that the contiguous copy holds what the cache holds.
    const float k_scale = k_scales_.empty() ? 1.0f : k_scales_[head];
    const float v_scale = v_scales_.empty() ? 1.0f : v_scales_[head];
    const float key = through_cache(normal() / k_scale), value = through_cache(normal() / v_scale);
    keys_[s][e] = key * k_scale;
    values_[s][e] = value * v_scale;
    if (!needed_[s][static_cast<int64_t>(head) * lens(s) + pos]) return;
    store_f32(k_.data(), c_.dtype, k_index(s, head, pos, i), key);
    store_f32(v_.data(), c_.dtype, v_index(s, head, pos, i), value);
  }
  float through_cache(float x) const {
    uint32_t bits = 0;
    store_f32(&bits, c_.dtype, 0, x);
    return load_as_f32(&bits, c_.dtype, 0);
  }

  void fill_params() {
    params_.q = q_.data();
    params_.out = out_.data();
    params_.lse = lse_.data();
    params_.num_heads = c_.heads;
    params_.rows = rows();
    params_.num_seqs = static_cast<int32_t>(c_.seqs.size());
    params_.q_indptr = rows_.q_indptr.data();
    params_.seq_len = rows_.seq_len.data();
    params_.max_len = *std::max_element(rows_.seq_len.begin(), rows_.seq_len.end());
    params_.scale = 1.0f / std::sqrt(static_cast<float>(c_.head_dim));
    params_.soft_cap = c_.soft_cap;
    params_.window = c_.window;
    params_.alibi_slopes = c_.alibi ? slopes_.data() : nullptr;
    params_.selection = c_.select ? &lists_.selection() : nullptr;
    KvView& kv = params_.kv;
    kv.k = k_.data();
    kv.v = v_.data();
    kv.dtype = c_.dtype;
    kv.layout = c_.layout;
    kv.block_size = c_.block_size;
    kv.kv_heads = c_.kv_heads;
    kv.k_scale = k_scales_.empty() ? nullptr : k_scales_.data();
    kv.v_scale = v_scales_.empty() ? nullptr : v_scales_.data();
    const int32_t heads_in_table = c_.table_per_head ? c_.kv_heads : 1;
    kv.table = {table_.data(), static_cast<int64_t>(heads_in_table) * max_blocks_, c_.table_per_head ? max_blocks_ : 0};
  }

  AttentionCase c_;
  std::mt19937_64 rng_;
  CaseRows rows_;
  CaseLists lists_;
  AttentionParams params_;
  int32_t slots_ = 0, max_blocks_ = 0;
  std::vector<int32_t> table_;
  std::vector<std::vector<bool>> needed_;  // [seq]: [kv_heads, len]
  std::vector<float> q_, out_, lse_, slopes_, k_scales_, v_scales_;
  std::vector<std::vector<float>> keys_, values_;
  std::vector<uint8_t> k_, v_;
};

// q and out from their n'th (row, head) on.
inline void skip_row_heads(AttentionParams& p, int64_t n) {
  const int64_t bytes = n * p.kv.head_dim * static_cast<int64_t>(dtype_bytes(p.dtype));
  p.q = static_cast<const uint8_t*>(p.q) + bytes;
  p.out = static_cast<uint8_t*>(p.out) + bytes;
}

// A problem's q and results in 16 bits. Its own q is rounded too, so that both ask the same: what comes out is what comes out in
// float32, rounded.
class NarrowActivations {
 public:
  NarrowActivations(AttentionProblem& problem, DType dtype)
      : params_(problem.params()), dtype_(dtype), q_(problem.q().size()), out_(problem.out().size(), 0xffff) {
    for (size_t i = 0; i < q_.size(); ++i) {
      store_f32(q_.data(), dtype, i, problem.q()[i]);
      problem.q()[i] = load_as_f32(q_.data(), dtype, i);
    }
    params_.q = q_.data();
    params_.out = out_.data();
    params_.dtype = dtype;
  }
  NarrowActivations(const NarrowActivations&) = delete;

  const AttentionParams& params() const { return params_; }
  const std::vector<uint16_t>& q() const { return q_; }
  const std::vector<uint16_t>& out() const { return out_; }
  std::vector<uint16_t> rounded(const std::vector<float>& out) const {
    std::vector<uint16_t> bits(out.size());
    for (size_t i = 0; i < out.size(); ++i) store_f32(bits.data(), dtype_, i, out[i]);
    return bits;
  }

 private:
  AttentionParams params_;
  const DType dtype_;
  std::vector<uint16_t> q_, out_;
};

// Problems that are attended to in partitions: rows of no, one and many of them, that end in the middle of one or with it.
inline std::vector<AttentionCase> partition_cases() {
  std::vector<AttentionCase> cases;
  const std::vector<SeqShape> seqs = {{1, 1}, {1, 0}, {3, 130}, {0, 9}, {1, 128}, {2, 700}};
  for (const DType t : {DType::bf16, DType::f16, DType::f32, DType::fp8_e5m2}) {
    for (const int32_t d : {32, 112, 128, 256}) cases.push_back({.heads = 6, .head_dim = d, .seqs = seqs, .dtype = t});
  }
  cases.push_back({.heads = 40, .kv_heads = 1, .head_dim = 128, .seqs = seqs, .soft_cap = 2.0f, .alibi = true});
  cases.push_back({.heads = 3, .kv_heads = 3, .seqs = seqs, .layout = KvLayout::classic, .table_per_head = true});
  for (AttentionCase& c : cases) c.name = "partitions of d " + std::to_string(c.head_dim) + " " + std::string(dtype_name(c.dtype));
  return cases;
}

// Room for the partitions of a problem; NaN until written.
struct PartitionMemory {
  PartitionMemory(AttentionProblem& problem, int32_t partition_size, int32_t more) {
    params.attention = problem.params();
    params.partition_size = partition_size;
    params.max_partitions = static_cast<int32_t>(problem.params().max_len / partition_size) + more;
    const size_t row_heads = static_cast<size_t>(problem.rows()) * problem.shape().heads;
    exp_sums.assign(row_heads * params.max_partitions, NAN);
    max_logits = exp_sums;
    tmp_out.assign(exp_sums.size() * problem.shape().head_dim, NAN);
  }
  PartitionedAttentionParams params;  // without the arrays
  std::vector<float> exp_sums, max_logits, tmp_out;
};

// Problems that rows in 16 bits are tried on: every path of the kernels, and rows without keys.
inline std::vector<AttentionCase> narrow_cases() {
  std::vector<AttentionCase> cases;
  for (const DType kv : {DType::bf16, DType::f16, DType::f32, DType::fp8_e4m3}) {
    for (const int32_t d : {32, 80, 128, 256}) {
      cases.push_back({.name = "narrow_" + std::string(dtype_name(kv)) + "_" + std::to_string(d),
                       .heads = 6,
                       .head_dim = d,
                       .seqs = {{1, 1}, {0, 9}, {5, 130}, {1, 1500}},
                       .dtype = kv});
    }
  }
  cases.push_back({.name = "narrow_classic", .seqs = {{7, 40}}, .layout = KvLayout::classic});
  cases.push_back({.name = "narrow_empty_list", .seqs = {{3, 90}}, .select = true, .keep = 0});
  return cases;
}
inline std::vector<AttentionCase> narrow_decode_cases() {
  std::vector<AttentionCase> cases = narrow_cases();
  cases.push_back({.name = "narrow_padding", .seqs = {{1, 0}, {1, 20}}});
  return cases;
}

// The table. Lengths straddle blocks (bs - 1, bs, bs + 1) and the partitions and tiles of the kernels;
// head_dim 32 to 256 in steps of 16; any group. Every row of it is legal for every kernel of the contract.
inline std::vector<AttentionCase> attention_cases() {
  using enum HeadGroups;
  using Kind = Selection::Kind;
  const std::vector<SeqShape> edges = {{1, 1}, {1, 15}, {0, 0}, {1, 16}, {1, 17}, {0, 9}, {1, 33}};
  const std::vector<SeqShape> growing = {{5, 5}, {3, 40}, {7, 130}};
  const std::vector<SeqShape> deep = {{1, 1023}, {1, 1024}, {1, 1025}, {2, 2100}};
  std::vector<AttentionCase> cases;
  auto add = [&](AttentionCase c) { cases.push_back(std::move(c)); };

  // Shapes: groups of 1, 2, 3, 4, 5, 7, 8, 16 heads; odd head counts; every head_dim; block sizes 8 to 256.
  add({.name = "edges", .seqs = edges});
  add({.name = "growing_rows", .seqs = growing});
  add({.name = "deep", .seqs = deep});
  add({.name = "mha_odd_heads", .heads = 3, .kv_heads = 3, .seqs = growing});
  add({.name = "mqa_7", .heads = 7, .kv_heads = 1, .seqs = growing});
  add({.name = "group_3", .heads = 9, .kv_heads = 3, .head_dim = 128, .seqs = growing});
  add({.name = "group_5", .heads = 5, .kv_heads = 1, .seqs = edges});
  add({.name = "group_8", .heads = 16, .kv_heads = 2, .head_dim = 128, .seqs = growing});
  add({.name = "group_16", .heads = 16, .kv_heads = 1, .seqs = {{2, 300}}});
  add({.name = "block_8", .block_size = 8, .seqs = growing});
  add({.name = "block_64", .block_size = 64, .seqs = {{1, 63}, {1, 64}, {1, 65}, {3, 200}}});
  add({.name = "block_256", .block_size = 256, .seqs = {{1, 255}, {1, 257}, {2, 600}}});
  for (int32_t d = 32; d <= 256; d += 16) {
    const DType t = d % 48 == 0 ? DType::f16 : d % 32 == 0 ? DType::bf16 : DType::f32;
    add({.name = "dim_" + std::to_string(d), .head_dim = d, .seqs = {{1, 37}, {2, 90}}, .dtype = t});
    add({.name = "dim_bf16_" + std::to_string(d), .heads = 6, .head_dim = d, .seqs = {{1, 70}}});
  }
  add({.name = "only_empty", .seqs = {{0, 0}, {0, 5}}});

  // Layouts, dtypes, tables.
  for (DType t : {DType::bf16, DType::f16, DType::f32}) {
    const std::string dtype(dtype_name(t));
    add({.name = "hnd_" + dtype, .head_dim = 128, .seqs = growing, .dtype = t});
    add({.name = "classic_" + dtype, .seqs = growing, .dtype = t, .layout = KvLayout::classic});
    add({.name = "nhd_" + dtype, .heads = 6, .kv_heads = 3, .head_dim = 80, .seqs = growing, .dtype = t, .token_major = true});
    add({.name = "nhd_list_" + dtype,
         .head_dim = 128,
         .block_size = 32,
         .seqs = growing,
         .dtype = t,
         .token_major = true,
         .select = true,
         .tokens_per_unit = 32,
         .keep = 0.5});
    add({.name = "classic_list_" + dtype,
         .head_dim = 80,
         .block_size = 32,
         .seqs = growing,
         .dtype = t,
         .layout = KvLayout::classic,
         .select = true,
         .tokens_per_unit = 8,
         .keep = 0.5});
  }
  // fp8, with a scale for each KV head.
  for (DType t : {DType::fp8_e4m3, DType::fp8_e5m2}) {
    const auto fp8 = [&](AttentionCase c) {
      c.name += "_" + std::string(dtype_name(t));
      c.dtype = t;
      add(std::move(c));
    };
    fp8({.name = "nhd", .head_dim = 64, .seqs = growing, .token_major = true});
    for (int32_t d : {32, 64, 80, 112, 128, 256}) fp8({.name = "dim_" + std::to_string(d), .head_dim = d, .seqs = growing});
    fp8({.name = "deep", .heads = 8, .head_dim = 128, .seqs = deep});
    fp8({.name = "classic", .head_dim = 96, .seqs = growing, .layout = KvLayout::classic});
    fp8({.name = "list", .heads = 6, .kv_heads = 3, .head_dim = 128, .seqs = growing, .select = true, .keep = 0.5});
    fp8({.name = "tokens_per_query_head",
         .seqs = growing,
         .select = true,
         .groups = per_query_head,
         .tokens_per_unit = 1,
         .keep = 0.5});
    fp8({.name = "all_of_it", .head_dim = 80, .seqs = growing, .soft_cap = 2.0f, .window = 50, .alibi = true});
  }
  add({.name = "table_per_head", .heads = 6, .kv_heads = 3, .seqs = growing, .table_per_head = true});
  add({.name = "pool_per_head", .seqs = growing, .table_per_head = true, .head_major = true, .select = true});
  add({.name = "head_major_shared_table", .seqs = growing, .head_major = true});

  // Masks and biases.
  add({.name = "alibi", .heads = 6, .kv_heads = 2, .seqs = growing, .alibi = true});
  add({.name = "soft_cap", .seqs = growing, .soft_cap = 0.7f});
  add({.name = "window_1", .seqs = growing, .window = 1});
  add({.name = "window_20", .seqs = growing, .window = 20});
  add({.name = "window_deep", .seqs = deep, .window = 1030});
  add({.name = "all_of_it",
       .heads = 6,
       .head_dim = 96,
       .seqs = growing,
       .dtype = DType::f16,
       .soft_cap = 2.0f,
       .window = 50,
       .alibi = true,
       .select = true,
       .groups = per_query_head,
       .keep = 0.6});

  // Selections: kinds x head groups x units below, equal to and above a block.
  add({.name = "select_all_kind", .seqs = growing, .select = true, .kind = Kind::all});
  for (Kind kind : {Kind::range, Kind::list}) {
    for (HeadGroups groups : {all, per_kv_head, per_query_head}) {
      for (int32_t tokens : {1, 16, 128}) {
        const std::string name = std::string(kind == Kind::range ? "range_" : "list_") +
                                 (groups == all           ? "all_"
                                  : groups == per_kv_head ? "kv_"
                                                          : "q_") +
                                 std::to_string(tokens);
        add({.name = name,
             .seqs = {{3, 40}, {1, 129}, {4, 700}},
             .select = true,
             .kind = kind,
             .groups = groups,
             .tokens_per_unit = tokens});
        add({.name = name + "_shared_rows",
             .heads = 6,
             .seqs = {{3, 40}, {0, 0}, {9, 300}},
             .select = true,
             .kind = kind,
             .groups = groups,
             .tokens_per_unit = tokens,
             .rows_per_list = 4});
      }
    }
  }
  add({.name = "list_units_of_24", .seqs = growing, .select = true, .tokens_per_unit = 24, .keep = 0.6});
  add({.name = "list_empty", .seqs = growing, .select = true, .keep = 0});
  add({.name = "range_empty", .seqs = growing, .select = true, .kind = Kind::range, .keep = 0});
  add({.name = "list_everything", .seqs = {{1, 16}, {1, 1000}}, .select = true, .keep = 1});
  add({.name = "list_window", .seqs = growing, .window = 33, .select = true, .keep = 0.5});
  add({.name = "list_deep",
       .heads = 8,
       .kv_heads = 2,
       .head_dim = 128,
       .seqs = {{1, 5000}, {2, 2600}},
       .select = true,
       .keep = 0.5});
  add({.name = "tokens_deep", .seqs = {{1, 3000}}, .select = true, .tokens_per_unit = 1, .keep = 0.5});
  return cases;
}

// KV heads [first, first + count) of a problem as a call of their own, through q_heads: pointers move, strides stay.
struct HeadRange {
  HeadRange(const AttentionParams& whole, int32_t first, int32_t count) : params(whole) {
    AttentionParams& p = params;
    KvView& kv = p.kv;
    const int32_t group = whole.num_heads / kv.kv_heads;
    const int64_t head = int64_t{first} * group, bytes = first * kv.head_stride * static_cast<int64_t>(dtype_bytes(kv.dtype));
    p.q_heads = whole.num_heads;
    p.num_heads = count * group;
    if (p.q) skip_row_heads(p, head);  // no rows: no memory
    if (p.lse) p.lse += head;
    if (p.alibi_slopes) p.alibi_slopes += head;
    kv.kv_heads = count;
    if (kv.k) kv.k = static_cast<std::byte*>(kv.k) + bytes;  // an empty pool has none
    if (kv.v) kv.v = static_cast<std::byte*>(kv.v) + bytes;
    if (kv.k_scale) kv.k_scale += first;
    if (kv.v_scale) kv.v_scale += first;
    kv.table.slots += first * kv.table.head_stride;
    if (!p.selection || p.selection->kind == Selection::Kind::all) return;
    selection = *p.selection;
    const int64_t lists = selection.heads == HeadGroups::all ? 0 : selection.heads == HeadGroups::per_kv_head ? first : head;
    if (selection.units) selection.units += lists * selection.capacity;
    if (selection.counts) selection.counts += lists;
    if (selection.begins) selection.begins += lists;
    if (selection.ends) selection.ends += lists;
    p.selection = &selection;
  }
  HeadRange(const HeadRange&) = delete;

  AttentionParams params;
  Selection selection;
};

// What paged_decode() is prepared with for a case.
inline OpsLimits decode_limits(const AttentionCase& c) {
  OpsLimits limits;
  limits.num_heads = c.heads;
  limits.kv_heads = c.kv_heads;
  limits.head_dim = c.head_dim;
  limits.block_size = c.block_size;
  for (const SeqShape& s : c.seqs) limits.max_len = std::max<int64_t>(limits.max_len, s.len);
  for (const SeqShape& s : c.seqs) limits.max_decode_rows += s.rows;
  return limits;
}

// Rows of sequences of length 0, as they pad a batch to a fixed number of rows.
inline std::vector<AttentionCase> padded_attention_cases() {
  const std::vector<SeqShape> padded = {{1, 0}, {1, 33}, {1, 0}, {3, 0}, {2, 200}, {1, 0}};
  std::vector<AttentionCase> cases;
  cases.push_back({.name = "padded_rows", .seqs = padded});
  cases.push_back({.name = "padded_only", .seqs = {{1, 0}, {2, 0}}});
  cases.push_back({.name = "padded_f32_window_alibi", .seqs = padded, .dtype = DType::f32, .window = 20, .alibi = true});
  cases.push_back({.name = "padded_list", .seqs = padded, .select = true});
  cases.push_back(
      {.name = "padded_range_shared", .seqs = padded, .select = true, .kind = Selection::Kind::range, .rows_per_list = 2});
  return cases;
}

}  // namespace fovea::testing
