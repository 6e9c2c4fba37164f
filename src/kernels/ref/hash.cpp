#include "kernels/ref/hash.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <numeric>

#include "base/check.h"

namespace fovea {
namespace {

constexpr int kRounds = 3;  // (signs, Walsh-Hadamard) rounds of one rotation

}  // namespace

namespace ref {

void walsh_hadamard(float* x, int n) {
  for (int h = 1; h < n; h *= 2) {
    for (int i = 0; i < n; i += 2 * h) {
      for (int j = i; j < i + h; ++j) {
        const float a = x[j];
        const float b = x[j + h];
        x[j] = a + b;
        x[j + h] = a - b;
      }
    }
  }
}

void hash_encode(const HashCodec& codec, const float* x, uint64_t* words) {
  FOVEA_CHECK(codec.head_dim <= codec.n && codec.n <= kMaxHeadDim && codec.bits <= kMaxHashBits);
  FOVEA_CHECK(codec.bits <= codec.rotations * codec.n);
  std::array<float, kMaxHeadDim> y;
  std::array<uint8_t, kMaxHashBits> bits;
  for (int r = 0; r * codec.n < codec.bits; ++r) {
    std::fill(y.begin(), y.end(), 0.0f);
    std::copy_n(x, codec.head_dim, y.begin());
    for (int round = 0; round < kRounds; ++round) {
      const float* signs = codec.signs + (static_cast<int64_t>(r) * kRounds + round) * codec.n;
      for (int i = 0; i < codec.n; ++i) y[i] *= signs[i];
      walsh_hadamard(y.data(), codec.n);
    }
    const int wanted = std::min(codec.n, codec.bits - r * codec.n);
    for (int p = 0; p < wanted; ++p) bits[r * codec.n + p] = y[p] > 0.0f;
  }
  pack_bits(bits.data(), codec.bits, words);
}

void pack_bits(const uint8_t* bits, int64_t count, uint64_t* words) {
  std::fill_n(words, (count + 63) / 64, uint64_t{0});
  for (int64_t i = 0; i < count; ++i) words[i / 64] |= static_cast<uint64_t>(bits[i] != 0) << (i % 64);
}

void hamming_scores(const uint64_t* queries, int query_count, const uint64_t* keys, int64_t key_count, int words, int32_t* scores) {
  for (int i = 0; i < query_count; ++i) {
    for (int64_t j = 0; j < key_count; ++j) {
      int32_t hamming = 0;
      for (int w = 0; w < words; ++w) hamming += std::popcount(queries[i * words + w] ^ keys[j * words + w]);
      scores[i * key_count + j] = 64 * words - 2 * hamming;
    }
  }
}

void block_scores(const BlockCodes& blocks, const uint64_t* queries, int query_count, int32_t* scores) {
  const int count = (blocks.len + blocks.block_size - 1) / blocks.block_size;
  for (int b = 0; b < count; ++b) {
    const uint64_t* codes = blocks.codes + static_cast<int64_t>(blocks.slots[b]) * blocks.block_stride;
    const int valid = std::min(blocks.block_size, blocks.len - b * blocks.block_size);
    int32_t best = std::numeric_limits<int32_t>::min();
    for (int t = 0; t < valid; ++t) {
      std::array<uint64_t, kMaxHashWords> key;  // gathered from the word-major block
      for (int w = 0; w < blocks.words; ++w) key[w] = codes[w * blocks.block_size + t];
      for (int q = 0; q < query_count; ++q) {
        int32_t score = 0;
        hamming_scores(queries + static_cast<int64_t>(q) * blocks.words, 1, key.data(), 1, blocks.words, &score);
        best = std::max(best, score);
      }
    }
    scores[b] = best;
  }
}

void write_code(const CodesView& view, int block_size, int64_t slot, int head, const float* key) {
  std::array<uint64_t, kMaxHashWords> words;
  hash_encode(view.codec, key, words.data());
  uint64_t* out = view.codes + slot / block_size * view.block_stride + head * view.head_stride + slot % block_size;
  for (int w = 0; w < view.codec.bits / 64; ++w) out[static_cast<int64_t>(w) * block_size] = words[w];
}

namespace {

// The codes of KV head h's queries: one per head of the group, or one of their sum. The sum has the signs of
// the mean, without the rounding of a division.
int encode_group(const HashSelectParams& p, int row, int h, std::vector<uint64_t>& codes) {
  const HashCodec& codec = p.codes.codec;
  const int group = p.num_heads / p.kv_heads;
  const int words = codec.bits / 64;
  const float* q = p.q + (static_cast<int64_t>(row) * p.num_heads + h * group) * codec.head_dim;
  if (!p.average_group) {
    codes.resize(static_cast<size_t>(group) * words);
    for (int g = 0; g < group; ++g) hash_encode(codec, q + g * codec.head_dim, codes.data() + g * words);
    return group;
  }
  std::vector<float> sum(q, q + codec.head_dim);
  for (int g = 1; g < group; ++g) {
    for (int i = 0; i < codec.head_dim; ++i) sum[i] += q[g * codec.head_dim + i];
  }
  codes.resize(words);
  hash_encode(codec, sum.data(), codes.data());
  return 1;
}

}  // namespace

void hash_select(const HashSelectParams& p) {
  FOVEA_CHECK(p.kv_heads > 0 && p.num_heads % p.kv_heads == 0);
  const int groups = p.share_heads ? 1 : p.kv_heads;
  std::vector<uint64_t> queries;
  std::vector<int32_t> scores;
  std::vector<int32_t> shared;
  for (int row = 0; row < p.rows; ++row) {
    FOVEA_CHECK(p.row_len[row] >= 0 && p.row_len[row] <= p.max_len);
    FOVEA_CHECK(p.k[row] >= 1 && p.k[row] <= p.capacity);
    const int blocks = (p.row_len[row] + p.block_size - 1) / p.block_size;
    scores.resize(blocks);
    shared.assign(blocks, std::numeric_limits<int32_t>::min());
    for (int h = 0; h < p.kv_heads; ++h) {
      const int query_count = encode_group(p, row, h, queries);
      BlockCodes view;
      view.codes = p.codes.codes + h * p.codes.head_stride;
      view.block_stride = p.codes.block_stride;
      view.slots = p.table.slots + p.row_seq[row] * p.table.seq_stride + h * p.table.head_stride;
      view.block_size = p.block_size;
      view.len = p.row_len[row];
      view.words = p.codes.codec.bits / 64;
      block_scores(view, queries.data(), query_count, scores.data());
      for (int b = 0; b < blocks; ++b) shared[b] = std::max(shared[b], scores[b]);
      if (p.share_heads && h + 1 < p.kv_heads) continue;
      const int64_t list = static_cast<int64_t>(row) * groups + (p.share_heads ? 0 : h);
      const int32_t* by = p.share_heads ? shared.data() : scores.data();
      p.counts[list] = select_topk(by, blocks, p.k[row], p.init_blocks, p.local_blocks, p.units + list * p.capacity);
      if (!p.next_counts) continue;
      int32_t* next = p.next_units + list * p.next_capacity;
      p.next_counts[list] = select_next(by, blocks, p.k[row], p.init_blocks, p.local_blocks, next);
    }
  }
}

}  // namespace ref
}  // namespace fovea
