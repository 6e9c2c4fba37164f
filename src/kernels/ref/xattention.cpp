#include "kernels/ref/xattention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>
#include <string>

#include "base/check.h"
#include "kernels/common/convert.h"
#include "kernels/ref/kv_layout.h"

namespace fovea::ref {
namespace {

constexpr double kNone = -std::numeric_limits<double>::infinity();

int32_t ceil_div(int64_t a, int64_t b) { return static_cast<int32_t>((a + b - 1) / b); }

// One query head of one sequence against its keys; positions are absolute. query(p) and key(p) give a vector.
template <typename Query, typename Key>
double antidiagonal(const Query& query, int64_t q_begin, int64_t q_end, const Key& key, int64_t k_end, int32_t dim, int32_t stride,
                    int64_t i, int64_t j, bool causal) {
  double sum = kNone;
  for (int32_t s = 0; s < stride; ++s) {
    const int64_t at_q = i * stride + stride - 1 - s, at_k = j * stride + s;
    if (at_q < q_begin || at_q >= q_end || at_k >= k_end || (causal && at_k > at_q)) continue;
    const float* q = query(at_q);
    const float* k = key(at_k);
    if (sum == kNone) sum = 0;
    for (int32_t e = 0; e < dim; ++e) sum += static_cast<double>(q[e]) * k[e];
  }
  return sum;
}

// Adds one row's softmax (base 2) over `scores` to the sums of its blocks of `per_block` cells.
void add_row(const std::vector<double>& scores, int32_t per_block, double* sums) {
  const double most = scores.empty() ? kNone : *std::max_element(scores.begin(), scores.end());
  if (most == kNone) return;
  double total = 0;
  for (double x : scores) total += std::exp2(x - most);
  for (size_t j = 0; j < scores.size(); ++j) sums[j / per_block] += std::exp2(scores[j] - most) / total;
}

}  // namespace

void flat_group_gemm_fuse_reshape(const FlatGroupGemmParams& p) {
  const int32_t d = p.head_dim, q_cells = p.q_cells(), k_cells = p.k_cells();
  const int64_t q_begin = int64_t{p.chunk_start} * p.stride, q_size = int64_t{p.q_len} * d, k_size = int64_t{p.kv_len} * d;
  std::vector<float> query(q_size), key(k_size);  // of one head
  const auto widen = [&](const void* from, int64_t head, std::vector<float>* to) {
    const auto count = static_cast<int64_t>(to->size());
    for (int64_t e = 0; e < count; ++e) (*to)[e] = load_as_f32(from, p.dtype, head * count + e);
  };
  const auto q = [&](int64_t pos) { return query.data() + (pos - q_begin) * d; };
  const auto k = [&](int64_t pos) { return key.data() + pos * d; };
  float* out = p.attn_weights;
  for (int32_t h = 0; h < p.batch * p.heads; ++h) {
    widen(p.query_states, h, &query);
    widen(p.key_states, h / (p.heads / p.kv_heads), &key);
    for (int32_t i = p.chunk_start; i < p.chunk_start + q_cells; ++i) {
      for (int32_t j = 0; j < k_cells; ++j)
        *out++ = static_cast<float>(antidiagonal(q, q_begin, q_begin + p.q_len, k, p.kv_len, d, p.stride, i, j, p.is_causal));
    }
  }
}

void softmax_fuse_block_sum(const SoftmaxBlockSumParams& p) {
  const int32_t block = p.reshaped_block_size, row_blocks = p.row_blocks(), col_blocks = p.col_blocks();
  const auto add = [&](const float* scores, int32_t seen, float* sums) {
    double most = kNone, total = 0;  // running, segment by segment
    for (int32_t from = 0; from < seen; from += p.segment_size) {
      const int32_t to = from + std::min(seen - from, p.segment_size);
      const double top = std::max<double>(most, double{*std::max_element(scores + from, scores + to)} * p.scale);
      if (top == kNone) continue;
      total *= most == kNone ? 0.0 : std::exp2(most - top);
      for (int32_t j = from; j < to; ++j) total += std::exp2(double{scores[j]} * p.scale - top);
      most = top;
    }
    if (most == kNone) return;
    for (int32_t j = 0; j < seen; ++j) sums[j / block] += static_cast<float>(std::exp2(double{scores[j]} * p.scale - most) / total);
  };
  for (int32_t h = 0; h < p.batch * p.heads; ++h) {
    float* const sums = p.block_sums + int64_t{h} * row_blocks * col_blocks;
    std::fill_n(sums, int64_t{row_blocks} * col_blocks, 0.0f);
    for (int32_t r = 0; r < p.rows && p.chunk_start + r < p.real_q_len; ++r) {
      const int32_t seen = p.is_causal ? std::min(p.cols, p.chunk_start + r + 1) : p.cols;
      add(p.attn_weights_slice + (int64_t{h} * p.rows + r) * p.cols, seen, sums + int64_t{r / block} * col_blocks);
    }
  }
}

std::vector<int32_t> choose_blocks(const float* sums, int32_t blocks, const ForcedBlocks& forced, float threshold, int32_t top_k) {
  const auto is_forced = [&](int32_t u) { return u < forced.sink || (u >= forced.diagonal_begin && u < forced.diagonal_end); };
  const double enough = threshold * std::accumulate(sums, sums + blocks, 0.0);
  std::vector<int32_t> units(blocks);
  std::iota(units.begin(), units.end(), 0);
  if ((top_k == 0 && threshold >= 1.0f) || std::isnan(enough)) return units;
  const auto rest = std::stable_partition(units.begin(), units.end(), is_forced);
  std::stable_sort(rest, units.end(), [&](int32_t a, int32_t b) { return sums[a] > sums[b]; });
  double sum = 0;
  for (auto u = units.begin(); u != rest; ++u) sum += sums[*u];
  auto end = rest;
  const auto wants_more = [&] { return top_k > 0 ? end - units.begin() < top_k : sum < enough; };
  while (end != units.end() && wants_more()) sum += sums[*end++];
  units.erase(end, units.end());
  std::sort(units.begin(), units.end());
  return units;
}

std::vector<int32_t> majority_blocks(const std::vector<std::vector<int32_t>>& lists, int32_t blocks) {
  std::vector<int32_t> units;
  for (int32_t u = 0; u < blocks; ++u) {
    const auto votes = std::count_if(lists.begin(), lists.end(),
                                     [u](const auto& list) { return std::find(list.begin(), list.end(), u) != list.end(); });
    if (2 * votes >= static_cast<int64_t>(lists.size())) units.push_back(u);
  }
  return units;
}

XAttentionPlace place_of_tile(const XAttentionParams& p, int32_t tile) {
  XAttentionPlace at;
  at.seq = p.tile_seq[tile];
  const auto position = [&](int64_t row) { return p.seq_len[at.seq] - (p.q_indptr[at.seq + 1] - row); };
  at.begin = position(p.tile_indptr[tile]);
  at.end = position(p.tile_indptr[tile + 1] - 1) + 1;
  at.len = p.causal ? at.end : p.seq_len[at.seq];
  at.blocks = ceil_div(at.len, p.block_size);
  FOVEA_CHECK(at.begin >= 0 && at.begin < at.end && at.blocks <= p.capacity);
  const auto diagonal = static_cast<int32_t>(at.begin / p.block_size);
  at.forced = {p.sink_blocks, std::max(0, diagonal - (p.recent_blocks - 1)), ceil_div(at.end, p.block_size)};
  return at;
}

namespace {

// P of one tile and query head: [at.blocks].
std::vector<double> tile_sums(const XAttentionParams& p, int32_t tile, const XAttentionPlace& at, int32_t head) {
  const KvView& kv = p.kv;
  const int32_t d = kv.head_dim, kv_head = head / (p.num_heads / kv.kv_heads);
  const int32_t* slots = kv.table.slots + at.seq * kv.table.seq_stride + kv_head * kv.table.head_stride;
  std::vector<float> keys(static_cast<size_t>(at.len) * d);
  for (int64_t t = 0; t < at.len; ++t) {
    const int64_t base = slots[t / kv.block_size] * kv.block_stride + kv_head * kv.head_stride;
    for (int32_t e = 0; e < d; ++e) keys[t * d + e] = load_as_f32(kv.k, kv.dtype, base + key_offset(kv, t % kv.block_size, e));
  }
  const auto q = [&](int64_t pos) { return p.q + ((p.tile_indptr[tile] + pos - at.begin) * p.num_heads + head) * d; };
  const auto k = [&](int64_t pos) { return keys.data() + pos * d; };
  const double k_scale = kv.k_scale != nullptr ? kv.k_scale[kv_head] : 1.0;
  const double scale = std::numbers::log2e * p.scale * k_scale / (static_cast<double>(p.stride) * p.norm);
  std::vector<double> sums(at.blocks, 0.0);
  for (int64_t i = at.begin / p.stride; i * p.stride < at.end; ++i) {
    std::vector<double> row;
    for (int64_t j = 0; j * p.stride < at.len && (!p.causal || j <= i); ++j)
      row.push_back(scale * antidiagonal(q, at.begin, at.end, k, at.len, d, p.stride, i, j, p.causal));
    add_row(row, p.block_size / p.stride, sums.data());
  }
  return sums;
}

// sums_of(tile, place, head): P, [capacity].
template <typename SumsOf>
void choose_tiles(const XAttentionParams& p, const SumsOf& sums_of) {
  FOVEA_CHECK(p.kv.kv_heads > 0 && p.num_heads % p.kv.kv_heads == 0 && p.recent_blocks >= 1);
  const int32_t group = p.num_heads / p.kv.kv_heads, groups = p.group_vote ? p.kv.kv_heads : p.num_heads;
  const auto write = [&](int64_t at, const std::vector<int32_t>& units) {
    std::copy(units.begin(), units.end(), p.units + at * p.capacity);
    p.counts[at] = static_cast<int32_t>(units.size());
  };
  for (int64_t t = 0; t < p.tiles; ++t) {
    const XAttentionPlace at = place_of_tile(p, static_cast<int32_t>(t));
    std::vector<std::vector<int32_t>> lists;  // of one KV head
    for (int32_t h = 0; h < p.num_heads; ++h) {
      const std::vector<float> sums = sums_of(t, at, h);
      lists.push_back(choose_blocks(sums.data(), at.blocks, at.forced, p.threshold[h], p.top_k));
      if (!p.group_vote) write(t * groups + h, lists.back());
      if (h % group != group - 1) continue;
      if (p.group_vote) write(t * groups + h / group, majority_blocks(lists, at.blocks));
      lists.clear();
    }
  }
}

}  // namespace

void xattention_select(const XAttentionParams& p) {
  FOVEA_CHECK(p.stride >= 2 && p.block_size % p.stride == 0 && p.norm > 0);
  choose_tiles(p, [&](int64_t tile, const XAttentionPlace& at, int32_t head) {
    const std::vector<double> exact = tile_sums(p, static_cast<int32_t>(tile), at, head);
    std::vector<float> sums(p.capacity, 0.0f);
    std::copy(exact.begin(), exact.end(), sums.begin());
    if (p.sums != nullptr) std::copy(sums.begin(), sums.end(), p.sums + (tile * p.num_heads + head) * p.capacity);
    return sums;
  });
}

void xattention_choose(const XAttentionChoiceParams& p) {
  choose_tiles(p, [&](int64_t tile, const XAttentionPlace&, int32_t head) {
    const float* sums = p.sums + (tile * p.num_heads + head) * p.capacity;
    return std::vector<float>(sums, sums + p.capacity);
  });
}

}  // namespace fovea::ref
