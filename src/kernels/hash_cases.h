// Hostile problems for the choice of blocks by codes: one table that the tests of every backend walk.
//
// A problem owns its memory: codes with garbage everywhere, sequences of hostile lengths, each with its own permuted pages. Among
// its query rows are one of zeros, one that float32 cannot rotate and one that is flat when rotated.
#pragma once

#include <fovea/kernels/hash_rotation.h>
#include <fovea/kernels/limits.h>
#include <fovea/kernels/select.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <ostream>
#include <random>
#include <utility>
#include <vector>

#include "kernels/common/convert.h"

namespace fovea::testing {

enum class Codes : uint8_t { symmetric, asymmetric, with_factor };

struct HashShape {
  int rows, heads, kv_heads, block_size, head_dim, bits;
  bool average = false, share = false, equal_codes = false, table_per_head = false;

  friend std::ostream& operator<<(std::ostream& out, const HashShape& s) {
    return out << s.rows << " rows, " << s.heads << "/" << s.kv_heads << " heads, bs " << s.block_size << ", d " << s.head_dim
               << ", " << s.bits << " bits";
  }
};

struct HashLists {
  std::vector<int32_t> units, counts, next, next_counts;
  bool operator==(const HashLists&) const = default;
};

inline HashCodec with(HashCodec codec, Codes codes) {
  codec.asymmetric = codes != Codes::symmetric;
  codec.length_factor = codes == Codes::with_factor;
  return codec;
}

struct HashProblem {
  // Rows' lengths go round the hostile ones; that of row 0 is `longest` for a seed of 4, 12, 20 and so on.
  HashProblem(const HashShape& s, uint32_t seed, int longest, Codes kind = Codes::symmetric)
      : shape(s), rotation(HashRotation::make(s.head_dim, s.bits).value()) {
    std::mt19937 rng(seed);
    const int bs = s.block_size;
    const int all[] = {1, bs - 1, bs, bs + 1, longest, 3 * bs + 5, 2 * bs, 0};
    for (int r = 0; r < s.rows; ++r) {
      row_len.push_back(std::min(longest, all[(r + seed) % 8]));
      row_seq.push_back(r % kSeqs);
    }
    max_blocks = (longest + bs - 1) / bs;
    codec = with(rotation.codec(), kind);
    signs.assign(codec.signs, codec.signs + codec.rotations * 3 * codec.n);
    draw_codes(rng);
    const int pool = max_blocks + 3;
    std::vector<int32_t> ids(pool);
    std::iota(ids.begin(), ids.end(), 0);
    for (int t = 0; t < kSeqs * (s.table_per_head ? s.kv_heads : 1); ++t) {
      std::shuffle(ids.begin(), ids.end(), rng);
      slots.insert(slots.end(), ids.begin(), ids.begin() + max_blocks);
    }
    draw_queries(rng);
    p.rows = s.rows, p.num_heads = s.heads, p.kv_heads = s.kv_heads, p.block_size = bs;
    p.average_group = s.average, p.share_heads = s.share, p.max_len = longest;
    const int64_t head = head_code_words(codec, bs);
    p.codes = {codes.data(), s.kv_heads * head, head, codec};
    p.q = q.data(), p.row_seq = row_seq.data(), p.row_len = row_len.data();
    const int64_t per_seq = s.table_per_head ? s.kv_heads : 1;
    p.table = {slots.data(), per_seq * max_blocks, s.table_per_head ? max_blocks : 0};
    limits.max_decode_rows = s.rows, limits.max_len = longest, limits.num_heads = s.heads;
    limits.kv_heads = s.kv_heads, limits.head_dim = s.head_dim, limits.block_size = bs;
  }
  HashProblem(const HashProblem&) = delete;

  void draw_codes(std::mt19937& rng) {
    const int64_t head = head_code_words(codec, shape.block_size), words = int64_t{codec.bits} / 64 * shape.block_size;
    const uint16_t lengths[] = {f32_to_bf16(35.6f), f32_to_bf16(36.1f), f32_to_bf16(7.0f), 0,
                                f32_to_bf16(2e38f), f32_to_bf16(1e-39f)};
    codes.resize((max_blocks + 3) * shape.kv_heads * head);
    for (size_t i = 0; i < codes.size(); ++i) {
      codes[i] = shape.equal_codes ? 0x5555 : rng() | static_cast<uint64_t>(rng()) << 32;
      if (static_cast<int64_t>(i) % head < words) continue;
      uint16_t four[4];
      for (uint16_t& f : four) f = lengths[shape.equal_codes ? 0 : rng() % 50 ? rng() % 3 : 3 + rng() % 3];
      std::memcpy(&codes[i], four, sizeof(four));
    }
  }

  void draw_queries(std::mt19937& rng) {
    std::normal_distribution<float> normal;
    const int64_t row = int64_t{shape.heads} * shape.head_dim;
    q.resize(shape.rows * row);
    for (float& x : q) x = normal(rng);
    if (shape.rows > 2) std::fill_n(q.begin() + row, row, 0.0f);
    for (int64_t i = 0; shape.rows > 4 && i < row; ++i) q[2 * row + i] *= 1e38f;
    for (int h = 0; shape.rows > 3 && codec.n == shape.head_dim && h < shape.heads; ++h) flatten(&q[3 * row + h * codec.n]);
  }

  // The query whose first rotation has elements of one size, with the signs of x: no other has a greater sum of |q4|.
  void flatten(float* x) const {
    for (int i = 0; i < codec.n; ++i) x[i] = x[i] > 0 ? 1.0f : -1.0f;
    for (int round = 2; round >= 0; --round) {  // sums of integers below 2^24 are exact
      for (int half = 1; half < codec.n; half *= 2) {
        for (int i = 0; i < codec.n; ++i) {
          if (i & half) continue;
          const float a = x[i], b = x[i + half];
          x[i] = a + b, x[i + half] = a - b;
        }
      }
      for (int i = 0; i < codec.n; ++i) x[i] *= codec.signs[round * codec.n + i];
    }
  }

  // Every way to share blocks out that a problem of these codes has, none first. Queries of length 10 in logits of some octaves.
  std::vector<MassBudget> budgets() const {
    if (!codec.length_factor || shape.share) return {{}};
    return {{}, {true, 0, 0.1f}, {false, 5000, 0.01f}, {true, 9000, 0.001f}, {true, 9999, 1e30f}};
  }
  void set_k(int k) {
    ks.assign(shape.rows, k);
    for (int r = 1; r < shape.rows; r += 2) ks[r] = std::max(1, k - r);  // k differs by row
    p.k = ks.data();
    p.capacity = p.budget.split ? std::max(k, std::min(4 * k, max_blocks)) : k;
    p.next_capacity = k / 4;
  }
  size_t lists() const { return static_cast<size_t>(shape.rows) * (shape.share ? 1 : shape.kv_heads); }

  // What `fn` writes, with the lists of what comes next where they are wanted.
  template <typename Run>
  HashLists run(const Run& fn, bool with_next = false) {
    HashLists out{std::vector<int32_t>(lists() * p.capacity, -9), std::vector<int32_t>(lists(), -9), {}, {}};
    p.units = out.units.data(), p.counts = out.counts.data();
    p.next_units = p.next_counts = nullptr;
    if (with_next) {
      out.next.assign(lists() * p.next_capacity, -9), out.next_counts.assign(lists(), -9);
      p.next_units = out.next.data(), p.next_counts = out.next_counts.data();
    }
    fn(p);
    return out;
  }

  static constexpr int kSeqs = 2;
  HashShape shape;
  HashRotation rotation;
  HashCodec codec;
  std::vector<int32_t> row_len, row_seq, slots, ks;
  std::vector<uint64_t> codes;
  std::vector<float> q, signs;
  int max_blocks = 0;
  HashSelectParams p;  // over this memory; k and the lists are set by set_k() and run()
  OpsLimits limits;
};

inline std::vector<std::pair<HashShape, Codes>> hash_cases() {
  const HashShape shapes[] = {
      {1, 32, 8, 16, 64, 128},
      {3, 6, 2, 16, 80, 128},
      {5, 5, 1, 8, 96, 64},
      {2, 7, 7, 32, 128, 256},
      {4, 14, 2, 16, 256, 128, true},
      {2, 9, 3, 8, 64, 128, false, true},
      {3, 12, 4, 16, 128, 128, true, true},
      {2, 8, 2, 16, 64, 128, false, false, true},
      {9, 8, 4, 16, 64, 64, false, false, false, true},
      {33, 4, 2, 8, 64, 128},
      {1, 4, 2, 256, 64, 128},
      {6, 4, 2, 64, 64, 192},
      {2, 100, 1, 64, 64, 64},
  };
  std::vector<std::pair<HashShape, Codes>> all;
  for (const HashShape& shape : shapes) {
    for (const Codes codes : {Codes::symmetric, Codes::asymmetric, Codes::with_factor}) all.emplace_back(shape, codes);
  }
  return all;
}

}  // namespace fovea::testing
