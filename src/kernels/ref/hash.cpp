#include "kernels/ref/hash.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <type_traits>
#include <vector>

#include "base/check.h"
#include "kernels/common/convert.h"
#include "kernels/common/mass_levels.h"
#include "kernels/ref/asymmetric.h"
#include "kernels/ref/mass_budget.h"

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

void rotate(const HashCodec& codec, const float* x, float* out) {
  FOVEA_CHECK(codec.head_dim <= codec.n && codec.n <= kMaxHeadDim && codec.bits <= kMaxHashBits);
  FOVEA_CHECK(codec.bits <= codec.rotations * codec.n);
  std::array<float, kMaxHeadDim> y;
  for (int r = 0; r * codec.n < codec.bits; ++r) {
    std::fill(y.begin(), y.end(), 0.0f);
    std::copy_n(x, codec.head_dim, y.begin());
    for (int round = 0; round < kRounds; ++round) {
      const float* signs = codec.signs + (static_cast<int64_t>(r) * kRounds + round) * codec.n;
      for (int i = 0; i < codec.n; ++i) y[i] *= signs[i];
      walsh_hadamard(y.data(), codec.n);
    }
    std::copy_n(y.begin(), std::min(codec.n, codec.bits - r * codec.n), out + r * codec.n);
  }
}

void hash_encode(const HashCodec& codec, const float* x, uint64_t* words) {
  std::array<float, kMaxHashBits> y;
  std::array<uint8_t, kMaxHashBits> bits;
  rotate(codec, x, y.data());
  for (int i = 0; i < codec.bits; ++i) bits[i] = y[i] > 0.0f;
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
  uint64_t* block = view.codes + slot / block_size * view.block_stride + head * view.head_stride;
  const int64_t token = slot % block_size, word_count = view.codec.bits / 64;
  for (int64_t w = 0; w < word_count; ++w) block[w * block_size + token] = words[w];
  if (!view.codec.length_factor) return;
  reinterpret_cast<uint16_t*>(block + word_count * block_size)[token] = f32_to_bf16(length_factor(view.codec, key));
}

namespace {

// KV head h's queries: each head of the group, or their sum. The sum has the signs of the mean, without the rounding of a division.
std::vector<std::vector<float>> group_queries(const HashSelectParams& p, int row, int h) {
  const int group = p.num_heads / p.kv_heads, d = p.codes.codec.head_dim;
  const float* q = p.q + (static_cast<int64_t>(row) * p.num_heads + h * group) * d;
  std::vector<std::vector<float>> queries;
  for (int g = 0; g < group; ++g) queries.emplace_back(q + g * d, q + (g + 1) * d);
  if (!p.average_group) return queries;
  for (int g = 1; g < group; ++g) {
    for (int i = 0; i < d; ++i) queries[0][i] += queries[g][i];
  }
  queries.resize(1);
  return queries;
}

void score_blocks(const HashSelectParams& p, int row, int h, const BlockCodes& view, int32_t* scores) {
  std::vector<uint64_t> codes;
  const auto queries = group_queries(p, row, h);
  for (const auto& query : queries) {
    codes.resize(codes.size() + view.words);
    hash_encode(p.codes.codec, query.data(), codes.data() + codes.size() - view.words);
  }
  block_scores(view, codes.data(), static_cast<int>(queries.size()), scores);
}

void score_blocks(const HashSelectParams& p, int row, int h, const BlockCodes& view, float* scores) {
  std::vector<QuantizedQuery> quantized;
  for (const auto& query : group_queries(p, row, h)) quantized.push_back(quantize_query(p.codes.codec, query.data()));
  asymmetric_block_scores(view, quantized, scores);
}

float levels_per_score(const HashSelectParams& p, int row, int h) {
  double lengths = 0;
  const auto queries = group_queries(p, row, h);
  for (const auto& query : queries) lengths += quantize_query(p.codes.codec, query.data()).length;
  return fovea::levels_per_score(p.codes.codec, p.budget.softmax_scale, lengths, static_cast<int>(queries.size()));
}

BlockCodes codes_of(const HashSelectParams& p, int row, int h) {
  BlockCodes view;
  view.codes = p.codes.codes + h * p.codes.head_stride;
  view.block_stride = p.codes.block_stride;
  view.slots = p.table.slots + p.row_seq[row] * p.table.seq_stride + h * p.table.head_stride;
  view.block_size = p.block_size;
  view.len = p.row_len[row];
  view.words = p.codes.codec.bits / 64;
  view.length_factor = p.codes.codec.length_factor;
  return view;
}

// [KV heads] blocks that a row keeps.
template <typename Score>
std::vector<int32_t> blocks_kept(const HashSelectParams& p, int row, const std::vector<std::vector<Score>>& scores) {
  if constexpr (std::is_same_v<Score, float>) {
    std::vector<HeadScores> heads;
    for (int h = 0; h < p.kv_heads && p.budget; ++h) heads.push_back({scores[h], levels_per_score(p, row, h)});
    if (p.budget) return blocks_by_mass(p.budget, heads, p.k[row], p.init_blocks, p.local_blocks);
  }
  return std::vector<int32_t>(p.kv_heads, p.k[row]);
}

template <typename Score>
void select_by(const HashSelectParams& p) {
  const int groups = p.share_heads ? 1 : p.kv_heads;
  for (int row = 0; row < p.rows; ++row) {
    FOVEA_CHECK(p.row_len[row] >= 0 && p.row_len[row] <= p.max_len);
    const int blocks = (p.row_len[row] + p.block_size - 1) / p.block_size;
    FOVEA_CHECK(p.k[row] >= 1 && p.k[row] <= p.capacity && (!p.budget.split || std::min(4 * p.k[row], blocks) <= p.capacity));
    std::vector<std::vector<Score>> scores(p.kv_heads, std::vector<Score>(blocks));
    for (int h = 0; h < p.kv_heads; ++h) score_blocks(p, row, h, codes_of(p, row, h), scores[h].data());
    for (int h = 1; h < p.kv_heads && p.share_heads; ++h) {
      for (int b = 0; b < blocks; ++b) scores[0][b] = std::max(scores[0][b], scores[h][b]);
    }
    const std::vector<int32_t> kept = blocks_kept(p, row, scores);
    for (int g = 0; g < groups; ++g) {
      const int64_t list = static_cast<int64_t>(row) * groups + g;
      const Score* by = scores[g].data();
      p.counts[list] = select_topk(by, blocks, kept[g], p.init_blocks, p.local_blocks, p.units + list * p.capacity);
      if (!p.next_counts) continue;
      int32_t* next = p.next_units + list * p.next_capacity;
      p.next_counts[list] = select_next(by, blocks, kept[g], p.init_blocks, p.local_blocks, p.k[row] / 4, next);
    }
  }
}

}  // namespace

void hash_select(const HashSelectParams& p) {
  FOVEA_CHECK(p.kv_heads > 0 && p.num_heads % p.kv_heads == 0);
  FOVEA_CHECK(!p.budget || (p.codes.codec.length_factor && !p.share_heads));
  if (p.codes.codec.asymmetric) return select_by<float>(p);
  select_by<int32_t>(p);
}

}  // namespace ref
}  // namespace fovea
