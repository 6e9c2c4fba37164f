// Hostile problems for the DSA indexer's choice of tokens: one table that the tests of every backend walk.
//
// A problem owns its memory. What no row may read is poison: index keys and scales at and beyond every sequence's length and
// in unused blocks are NaN, and table entries that no row needs name a block that does not exist.
#pragma once

#include <fovea/kernels/indexer.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/common/convert.h"
#include "kernels/noise_cases.h"

namespace fovea::testing {

enum class IndexData : uint8_t {
  normal,    // random: few ties
  integers,  // small whole numbers: sums are exact in any order, and many scores are equal
  constant,  // every score is equal
  zeros,     // every score is exactly 0, but for the first 100 of every 8,320 tokens
};

struct IndexRows {
  int32_t rows;  // the last `rows` tokens of the sequence
  int32_t len;
};

struct DsaCase {
  std::string name;
  int32_t heads = 4;
  int32_t dim = 128;
  int32_t block_size = 16;
  IndexPrecision precision = IndexPrecision::exact;
  std::vector<IndexRows> seqs;
  int32_t topk = 32;
  IndexData data = IndexData::normal;
};

// What a run writes.
struct DsaLists {
  std::vector<int32_t> positions, counts, mapped;
  bool operator==(const DsaLists&) const = default;
};

// Memory and Params of one case. Not movable: params point into it.
class DsaProblem {
 public:
  // The same `seed` gives the same tokens and rows; `pages_seed` says only where they lie.
  explicit DsaProblem(const DsaCase& c, uint64_t seed = 1, uint64_t pages_seed = 1) : c_(c), rng_(seed), pages_rng_(pages_seed) {
    for (size_t s = 0; s < c.seqs.size(); ++s) {
      for (int32_t i = 0; i < c.seqs[s].rows; ++i) {
        row_seq_.push_back(static_cast<int32_t>(s));
        row_len_.push_back(std::max(0, c.seqs[s].len - c.seqs[s].rows + 1 + i));
        ragged_start_.push_back(static_cast<int32_t>(1000 * s));
      }
      max_len_ = std::max(max_len_, c.seqs[s].len);
    }
    build_tables();
    build_keys();
    build_queries();
  }
  DsaProblem(const DsaProblem&) = delete;
  DsaProblem& operator=(const DsaProblem&) = delete;

  const DsaCase& shape() const { return c_; }
  int32_t rows() const { return static_cast<int32_t>(row_len_.size()); }
  int32_t max_len() const { return max_len_; }
  int64_t slots() const { return int64_t{blocks_} * c_.block_size; }  // of the planes
  const std::vector<int32_t>& row_len() const { return row_len_; }
  const std::vector<int32_t>& row_seq() const { return row_seq_; }
  const std::vector<int32_t>& ragged_start() const { return ragged_start_; }
  std::vector<float>& weights() { return weights_; }

  IndexTopkParams params() const {
    IndexTopkParams p;
    p.rows = rows();
    p.heads = c_.heads;
    p.q = q_.data();
    p.weights = weights_.data();
    p.row_seq = row_seq_.data();
    p.row_len = row_len_.data();
    p.topk = c_.topk;
    p.max_len = max_len_;
    p.keys = keys_;
    p.out.rows = p.rows;
    p.out.capacity = c_.topk;
    return p;
  }

  // Runs fn(params) with lists of this object's making. `space` position: nothing is mapped.
  template <typename Run>
  DsaLists run(const Run& fn, IndexSpace space = IndexSpace::position, int32_t logits_rows = 0) const {
    IndexTopkParams p = params();
    DsaLists lists{std::vector<int32_t>(int64_t{p.rows} * p.topk, -7), std::vector<int32_t>(p.rows, -7), {}};
    p.out.indices = lists.positions.data();
    p.out.counts = lists.counts.data();
    if (space != IndexSpace::position) {
      lists.mapped.assign(lists.positions.size(), -7);
      p.mapped = {space, p.rows, p.topk, lists.mapped.data(), nullptr};
      p.ragged_start = ragged_start_.data();
    }
    std::vector<float> logits(int64_t{logits_rows} * max_len_);
    if (logits_rows > 0) {
      p.logits = logits.data();
      p.logits_floats = static_cast<int64_t>(logits.size());
    }
    fn(p);
    return lists;
  }

  // The same list by the transform that follows the choice. counts: [rows], as the transform leaves them.
  template <typename Transform>
  std::vector<int32_t> transformed(const Transform& fn, DsaLists after, IndexSpace space, std::vector<int32_t>* counts) const {
    const IndexTopkParams p = params();
    std::vector<int32_t> mapped(after.positions.size(), -7);
    counts->assign(p.rows, -7);
    IndexTransformParams t;
    t.in = {IndexSpace::position, p.rows, p.topk, after.positions.data(), after.counts.data()};
    t.out = {space, p.rows, p.topk, mapped.data(), counts->data()};
    t.row_seq = p.row_seq;
    t.block_table = p.keys.block_table;
    t.table_stride = p.keys.table_stride;
    t.block_size = p.keys.block_size;
    t.ragged_start = ragged_start_.data();
    fn(t);
    return mapped;
  }

 private:
  void build_tables() {
    const int32_t bs = c_.block_size;
    const int32_t wide = (max_len_ + bs - 1) / bs + 1;
    int32_t used = 0;
    for (const IndexRows& s : c_.seqs) used += (s.len + bs - 1) / bs;
    blocks_ = used + 3;
    std::vector<int32_t> ids(blocks_);
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), pages_rng_);
    table_.assign(c_.seqs.size() * wide, 1 << 24);
    for (size_t s = 0, next = 0; s < c_.seqs.size(); ++s) {
      for (int32_t b = 0; b < (c_.seqs[s].len + bs - 1) / bs; ++b) table_[s * wide + b] = ids[next++];
    }
    keys_.block_table = table_.data();
    keys_.table_stride = wide;
  }

  float key_value(int32_t position) {
    switch (c_.data) {
      case IndexData::normal:
        return noise(rng_);
      case IndexData::integers:
        return static_cast<float>(static_cast<int32_t>(rng_() % 5) - 2);
      case IndexData::constant:
        return 1.0f;
      case IndexData::zeros:
        return position % 8320 < 100 ? 1.0f + static_cast<float>(position % 7) : -1.0f;
    }
    return 0;
  }

  void build_keys() {
    const int64_t tokens = int64_t{blocks_} * c_.block_size;
    memory_.assign(tokens * c_.dim * index_element_bytes(c_.precision), std::byte{0xff});  // NaN in all three types
    scales_.assign(tokens, std::numeric_limits<float>::quiet_NaN());
    keys_.precision = c_.precision;
    keys_.k = memory_.data();
    keys_.scale = c_.precision == IndexPrecision::fp8 ? scales_.data() : nullptr;
    keys_.block_size = c_.block_size;
    keys_.dim = c_.dim;
    const DType dtype = c_.precision == IndexPrecision::exact  ? DType::f32
                        : c_.precision == IndexPrecision::bf16 ? DType::bf16
                                                               : DType::fp8_e4m3;
    for (size_t s = 0; s < c_.seqs.size(); ++s) {
      for (int32_t t = 0; t < c_.seqs[s].len; ++t) {
        const int64_t block = table_[s * keys_.table_stride + t / c_.block_size];
        const int64_t slot = block * c_.block_size + t % c_.block_size;
        for (int32_t i = 0; i < c_.dim; ++i) store_f32(memory_.data(), dtype, slot * c_.dim + i, key_value(t));
        const bool equal = c_.data == IndexData::constant || c_.data == IndexData::zeros;
        scales_[slot] = equal ? 1.0f : std::ldexp(1.0f, static_cast<int>(rng_() % 4) - 2);
      }
    }
  }

  // As index_write leaves a query's element.
  float rounded(float x) const {
    if (c_.precision == IndexPrecision::exact) return x;
    return c_.precision == IndexPrecision::bf16 ? bf16_to_f32(f32_to_bf16(x)) : fp8_e4m3_to_f32(f32_to_fp8_e4m3(x));
  }

  void build_queries() {
    q_.resize(int64_t{rows()} * c_.heads * c_.dim);
    weights_.resize(int64_t{rows()} * c_.heads);
    const bool equal = c_.data == IndexData::constant || c_.data == IndexData::zeros;
    for (float& x : q_) x = rounded(equal ? 1.0f : c_.data == IndexData::integers ? key_value(0) : noise(rng_));
    for (float& x : weights_) x = equal ? 0.5f : c_.data == IndexData::integers ? key_value(0) : noise(rng_);
  }

  const DsaCase c_;
  std::mt19937_64 rng_, pages_rng_;
  std::vector<int32_t> row_seq_, row_len_, ragged_start_, table_;
  int32_t max_len_ = 0, blocks_ = 0;
  std::vector<std::byte> memory_;
  std::vector<float> scales_, q_, weights_;
  IndexKeysView keys_;
};

inline std::vector<DsaCase> dsa_cases() {
  using enum IndexPrecision;
  using enum IndexData;
  return {
      {"one row", 4, 128, 16, exact, {{1, 300}}, 32, normal},
      {"one row, two keys", 4, 128, 16, exact, {{1, 2}}, 1, normal},
      {"DeepSeek heads", 64, 128, 64, exact, {{3, 200}}, 64, normal},
      {"rows from the first token", 4, 128, 16, exact, {{70, 70}}, 16, normal},
      {"padding rows", 4, 128, 16, exact, {{1, 0}, {2, 90}, {1, 0}}, 16, normal},
      {"whole numbers", 8, 64, 16, exact, {{9, 513}}, 100, integers},
      {"whole numbers, bf16", 8, 64, 16, bf16, {{9, 513}}, 100, integers},
      {"whole numbers, fp8", 8, 64, 64, fp8, {{9, 513}}, 100, integers},
      {"many sequences", 4, 128, 16, exact, {{1, 40}, {5, 333}, {1, 64}, {17, 129}, {1, 1}}, 48, normal},
      {"many sequences, bf16", 4, 128, 16, bf16, {{1, 40}, {5, 333}, {1, 64}, {17, 129}, {1, 1}}, 48, normal},
      {"many sequences, fp8", 4, 128, 64, fp8, {{1, 40}, {5, 333}, {1, 64}, {17, 129}, {1, 1}}, 48, normal},
      {"odd heads", 3, 64, 8, exact, {{5, 100}}, 20, normal},
      {"nine heads", 9, 40, 16, exact, {{5, 100}}, 20, normal},
      {"one head", 1, 8, 16, exact, {{11, 100}}, 7, normal},
      {"two heads, wide", 2, 256, 32, bf16, {{6, 150}}, 33, normal},
      {"constant", 4, 64, 16, exact, {{3, 700}}, 64, constant},
      {"plateau of zeros", 2, 16, 16, exact, {{2, 8320}}, 2048, zeros},
      {"plateau of zeros, fp8", 2, 16, 64, fp8, {{1, 8320}}, 2048, zeros},
      {"4,097 equal", 1, 8, 16, exact, {{1, 4097}}, 2048, constant},
      {"16,385 equal", 1, 8, 64, bf16, {{2, 16385}}, 2048, constant},
      {"length one below topk", 2, 32, 16, exact, {{1, 2047}}, 2048, normal},
      {"length topk", 2, 32, 16, exact, {{1, 2048}}, 2048, normal},
      {"length one above topk", 2, 32, 16, exact, {{1, 2049}}, 2048, normal},
      {"around topk", 2, 32, 16, exact, {{40, 2070}}, 2048, normal},
      {"topk one", 4, 64, 16, fp8, {{8, 1000}}, 1, normal},
  };
}

}  // namespace fovea::testing
