#include "kernels/ref/summary.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "base/check.h"
#include "kernels/common/convert.h"
#include "kernels/ref/hash.h"
#include "kernels/ref/kv_layout.h"
#include "kernels/ref/topk.h"

namespace fovea::ref {
namespace {

// The key at `slot` = block * bs + offset, as attention reads it.
std::vector<float> load_key(const KvView& kv, int64_t slot, int head) {
  const int64_t base = slot / kv.block_size * kv.block_stride + head * kv.head_stride;
  std::vector<float> key(kv.head_dim);
  for (int i = 0; i < kv.head_dim; ++i) {
    key[i] = load_as_f32(kv.k, kv.dtype, base + key_offset(kv, slot % kv.block_size, i));
    if (kv.k_scale) key[i] *= kv.k_scale[head];
  }
  return key;
}

void summarize(const BlockSummariesParams& p, int64_t block, int head, int64_t tokens) {
  const int d = p.kv.head_dim;
  const int64_t cell = block * p.kv.kv_heads + head;
  const int64_t first = block * p.kv.block_size;
  std::vector<float> mean = load_key(p.kv, first, head), least = mean, most = mean;
  for (int64_t t = 1; t < tokens; ++t) {
    const std::vector<float> key = load_key(p.kv, first + t, head);
    for (int i = 0; i < d; ++i) {
      mean[i] += key[i];
      least[i] = std::min(least[i], key[i]);
      most[i] = std::max(most[i], key[i]);
    }
  }
  for (float& x : mean) x /= static_cast<float>(tokens);
  if (p.mean != nullptr) std::copy(mean.begin(), mean.end(), p.mean + cell * d);
  if (p.minmax != nullptr) {
    std::copy(least.begin(), least.end(), p.minmax + cell * 2 * d);
    std::copy(most.begin(), most.end(), p.minmax + cell * 2 * d + d);
  }
  if (p.mean_codes != nullptr) hash_encode(p.codec, mean.data(), p.mean_codes + cell * (p.codec.bits / 64));
}

// The queries that a KV head's blocks are scored with: those of its group, or their sum, which orders blocks as the mean does.
std::vector<std::vector<float>> group_queries(const SummarySelectParams& p, int row, int head) {
  const int group = p.num_heads / p.kv_heads;
  const float* q = p.q + (static_cast<int64_t>(row) * p.num_heads + head * group) * p.head_dim;
  std::vector<std::vector<float>> queries;
  for (int g = 0; g < group; ++g) queries.emplace_back(q + g * p.head_dim, q + (g + 1) * p.head_dim);
  if (p.summary != BlockSummary::mean && !p.average_group) return queries;
  for (int g = 1; g < group; ++g) {
    for (int i = 0; i < p.head_dim; ++i) queries[0][i] += queries[g][i];
  }
  queries.resize(1);
  return queries;
}

double summary_score(const SummarySelectParams& p, const std::vector<float>& query, int64_t block, int head) {
  const int d = p.head_dim;
  const int64_t cell = block * p.kv_heads + head;
  double score = 0;
  for (int i = 0; i < d; ++i) {
    const double q = query[i];
    if (p.summary == BlockSummary::mean) {
      score += q * p.plane[cell * d + i];
    } else {
      score += std::max(q * p.plane[cell * 2 * d + i], q * p.plane[cell * 2 * d + d + i]);
    }
  }
  return score;
}

// One code for each block is one for each token of blocks of one token.
void select_by_mean_code(const SummarySelectParams& p) {
  std::vector<int32_t> blocks(p.rows);
  for (int row = 0; row < p.rows; ++row) blocks[row] = (p.row_len[row] + p.block_size - 1) / p.block_size;
  const int64_t words = p.codec.bits / 64;
  HashSelectParams h{p};
  h.block_size = 1;
  h.row_len = blocks.data();
  h.max_len = std::numeric_limits<int32_t>::max();
  h.codes = {const_cast<uint64_t*>(p.mean_codes), p.kv_heads * words, words, p.codec};
  hash_select(h);
}

struct KeyWeight {
  int64_t block;
  double score;
};

// Adds the softmax of one query head to mass[blocks].
void add_mass(const AttentionMassParams& p, int row, int head, float* mass) {
  const KvView& kv = p.kv;
  const int kv_head = head / (p.num_heads / kv.kv_heads);
  const float* q = p.q + (static_cast<int64_t>(row) * p.num_heads + head) * kv.head_dim;
  const int32_t* slots = kv.table.slots + p.row_seq[row] * kv.table.seq_stride + kv_head * kv.table.head_stride;
  std::vector<KeyWeight> keys;
  double most = -std::numeric_limits<double>::infinity(), sum = 0;
  for (int64_t t = 0; t < p.row_len[row]; ++t) {
    const int64_t block = t / kv.block_size;
    const auto key = load_key(kv, slots[block] * static_cast<int64_t>(kv.block_size) + t % kv.block_size, kv_head);
    double dot = 0;
    for (int i = 0; i < kv.head_dim; ++i) dot += static_cast<double>(q[i]) * key[i];
    keys.push_back({block, dot * p.scale});
    most = std::max(most, keys.back().score);
  }
  std::vector<double> by_block(p.max_blocks, 0.0);
  for (const KeyWeight& key : keys) {
    by_block[key.block] += std::exp(key.score - most);
    sum += std::exp(key.score - most);
  }
  for (int b = 0; b < p.max_blocks && !keys.empty(); ++b) mass[b] += static_cast<float>(by_block[b] / sum);
}

}  // namespace

void block_summaries(const BlockSummariesParams& p) {
  std::map<int64_t, int64_t> tokens;  // of each block touched
  for (int t = 0; t < p.tokens; ++t) {
    const int64_t slot = p.slot_mapping[t];
    if (slot < 0) continue;
    int64_t& valid = tokens[slot / p.kv.block_size];
    valid = std::max(valid, slot % p.kv.block_size + 1);
  }
  for (const auto& [block, valid] : tokens) {
    for (int h = 0; h < p.kv.kv_heads; ++h) summarize(p, block, h, valid);
  }
}

void encode_codes(const EncodeCodesParams& p) {
  for (int t = 0; t < p.tokens; ++t) {
    const int64_t slot = p.slot_mapping[t], to = p.code_mapping ? p.code_mapping[t] : slot;
    if (slot < 0 || to < 0) continue;
    for (int h = 0; h < p.kv.kv_heads; ++h) {
      write_code(p.codes, p.kv.block_size, to, h, load_key(p.kv, slot, h).data());
    }
  }
}

void summary_select(const SummarySelectParams& p) {
  FOVEA_CHECK(p.kv_heads > 0 && p.num_heads % p.kv_heads == 0);
  if (p.summary == BlockSummary::mean_code) return select_by_mean_code(p);
  const int groups = p.share_heads ? 1 : p.kv_heads;
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  for (int row = 0; row < p.rows; ++row) {
    FOVEA_CHECK(p.row_len[row] >= 0 && p.k[row] >= 1 && p.k[row] <= p.capacity);
    const int blocks = (p.row_len[row] + p.block_size - 1) / p.block_size;
    std::vector<double> scores(blocks, kNone);
    for (int h = 0; h < p.kv_heads; ++h) {
      const int32_t* slots = p.table.slots + p.row_seq[row] * p.table.seq_stride + h * p.table.head_stride;
      if (!p.share_heads) scores.assign(blocks, kNone);
      for (const auto& query : group_queries(p, row, h)) {
        for (int b = 0; b < blocks; ++b) {
          scores[b] = std::max(scores[b], rank_of(summary_score(p, query, slots[b], h)));
        }
      }
      if (p.share_heads && h + 1 < p.kv_heads) continue;
      const int64_t list = static_cast<int64_t>(row) * groups + (p.share_heads ? 0 : h);
      p.counts[list] = select_topk(scores.data(), blocks, p.k[row], p.init_blocks, p.local_blocks, p.units + list * p.capacity);
    }
  }
}

void attention_mass(const AttentionMassParams& p) {
  const int group = p.num_heads / p.kv.kv_heads;
  FOVEA_CHECK(p.kv.kv_heads > 0 && p.num_heads % p.kv.kv_heads == 0);
  std::fill_n(p.mass, static_cast<int64_t>(p.rows) * p.kv.kv_heads * p.max_blocks, 0.0f);
  for (int row = 0; row < p.rows; ++row) {
    FOVEA_CHECK(p.row_len[row] >= 0 && p.row_len[row] <= static_cast<int64_t>(p.max_blocks) * p.kv.block_size);
    for (int head = 0; head < p.num_heads; ++head) {
      add_mass(p, row, head, p.mass + (static_cast<int64_t>(row) * p.kv.kv_heads + head / group) * p.max_blocks);
    }
  }
}

void block_topk(const BlockTopkParams& p) {
  const int groups = p.share_heads ? 1 : p.kv_heads;
  for (int row = 0; row < p.rows; ++row) {
    FOVEA_CHECK(p.row_len[row] >= 0 && p.k[row] >= 1 && p.k[row] <= p.capacity);
    const int blocks = (p.row_len[row] + p.block_size - 1) / p.block_size;
    FOVEA_CHECK(blocks <= p.max_blocks);
    for (int group = 0; group < groups; ++group) {
      const float* scores = p.scores + (static_cast<int64_t>(row) * p.kv_heads + group) * p.max_blocks;
      std::vector<float> sum(scores, scores + blocks);
      for (int h = 1; p.share_heads && h < p.kv_heads; ++h) {
        for (int b = 0; b < blocks; ++b) sum[b] += scores[static_cast<int64_t>(h) * p.max_blocks + b];
      }
      const int64_t list = static_cast<int64_t>(row) * groups + group;
      p.counts[list] = select_topk(sum.data(), blocks, p.k[row], p.init_blocks, p.local_blocks, p.units + list * p.capacity);
    }
  }
}

}  // namespace fovea::ref
