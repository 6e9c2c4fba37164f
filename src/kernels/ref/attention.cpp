#include "kernels/ref/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/check.h"
#include "kernels/common/convert.h"
#include "kernels/ops/key_gate.h"
#include "kernels/ref/kv_layout.h"
#include "kernels/ref/softmax_sum.h"

namespace fovea::ref {
namespace {

// One query row of one head.
struct RowHead {
  int32_t row;      // of q and out
  int32_t seq;      // row of the page table
  int64_t pos;      // position of the query
  int32_t head;     // query head
  int32_t kv_head;  // head / (H / kv_heads)
};

// Index of the Selection row that query row `row` uses.
int32_t selection_row(const Selection& sel, int32_t row) {
  if (sel.row_indptr == nullptr) return row;
  int32_t r = 0;
  while (r < sel.rows && sel.row_indptr[r + 1] <= row) ++r;
  return r;
}

// Positions the query reads, ascending: selected, not after it, inside its window.
std::vector<int64_t> visible_keys(const AttentionParams& p, const RowHead& rh) {
  const int64_t first = p.window > 0 ? std::max<int64_t>(0, rh.pos - p.window + 1) : 0;
  std::vector<int64_t> keys;
  auto add = [&](int64_t begin, int64_t end) {
    for (int64_t t = std::max(begin, first); t < std::min(end, rh.pos + 1); ++t) keys.push_back(t);
  };
  const Selection* sel = p.selection;
  if (sel == nullptr || sel->kind == Selection::Kind::all) {
    add(0, rh.pos + 1);
    return keys;
  }
  const int32_t r = selection_row(*sel, rh.row);
  FOVEA_CHECK(r >= 0 && r < sel->rows);
  const int32_t group = sel->heads == HeadGroups::all ? 0 : sel->heads == HeadGroups::per_kv_head ? rh.kv_head : rh.head;
  FOVEA_CHECK(group < sel->groups);
  const int64_t list = static_cast<int64_t>(r) * sel->groups + group;
  const int64_t tokens = sel->tokens_per_unit;
  if (sel->kind == Selection::Kind::range) {
    add(sel->begins[list] * tokens, sel->ends[list] * tokens);
    return keys;
  }
  const int32_t* units = sel->units + list * sel->capacity;
  FOVEA_CHECK(sel->counts[list] <= sel->capacity);
  for (int32_t i = 0; i < sel->counts[list]; ++i) {
    FOVEA_CHECK(units[i] >= 0 && (i == 0 || units[i] > units[i - 1]));
    add(units[i] * tokens, (units[i] + 1) * tokens);
  }
  return keys;
}

void attend(const AttentionParams& p, const RowHead& rh) {
  const KvView& kv = p.kv;
  if (p.gate) p.gate->wait(rh.kv_head, rh.pos / kv.block_size + 1);
  const std::vector<int64_t> keys = visible_keys(p, rh);
  const int64_t at = rh.row * p.heads_per_row() + rh.head;
  const int32_t* slots = kv.table.slots + rh.seq * kv.table.seq_stride + rh.kv_head * kv.table.head_stride;
  std::vector<int64_t> blocks;  // of each key: where its block begins
  for (const int64_t pos : keys) {
    const int64_t slot = slots[pos / kv.block_size];
    FOVEA_CHECK(slot >= 0);
    blocks.push_back(slot * kv.block_stride + rh.kv_head * kv.head_stride);
  }
  std::vector<float> q(kv.head_dim);
  for (int32_t i = 0; i < kv.head_dim; ++i) q[i] = load_as_f32(p.q, p.dtype, at * kv.head_dim + i);
  const auto score = [&](int64_t j) {
    const int64_t block = blocks[j], token = keys[j] % kv.block_size;
    const auto key = [&](int32_t i) { return load_as_f32(kv.k, kv.dtype, block + key_offset(kv, token, i)); };
    double x = dot(q.data(), kv.head_dim, key);
    if (kv.k_scale != nullptr) x *= kv.k_scale[rh.kv_head];
    x *= p.scale;
    if (p.soft_cap > 0) x = p.soft_cap * std::tanh(x / p.soft_cap);
    if (p.alibi_slopes != nullptr) x += p.alibi_slopes[rh.head] * static_cast<double>(keys[j] - rh.pos);
    return x;
  };
  const double v_scale = kv.v_scale != nullptr ? kv.v_scale[rh.kv_head] : 1.0;
  const auto value = [&](int64_t j, int32_t i) {
    return v_scale * load_as_f32(kv.v, kv.dtype, blocks[j] + value_offset(kv, keys[j] % kv.block_size, i));
  };
  std::vector<float> out(kv.head_dim);
  softmax_sum(static_cast<int64_t>(keys.size()), kv.head_dim, score, value, out.data(), p.lse != nullptr ? p.lse + at : nullptr);
  for (int32_t i = 0; i < kv.head_dim; ++i) store_f32(p.out, p.dtype, at * kv.head_dim + i, out[i]);
}

}  // namespace

void paged_attention(const AttentionParams& p) {
  const KvView& kv = p.kv;
  FOVEA_CHECK(kv.kv_heads > 0 && p.num_heads > 0 && p.num_heads % kv.kv_heads == 0);
  FOVEA_CHECK(kv.head_dim > 0 && kv.head_dim % 8 == 0 && kv.block_size > 0);
  const int32_t group = p.num_heads / kv.kv_heads;
  for (int32_t s = 0; s < p.num_seqs; ++s) {
    const int32_t end = p.q_indptr[s + 1];
    for (int32_t row = p.q_indptr[s]; row < end; ++row) {
      const int64_t pos = static_cast<int64_t>(p.seq_len[s]) - (end - row);
      FOVEA_CHECK(pos >= 0 || p.seq_len[s] == 0);
      for (int32_t h = 0; h < p.num_heads; ++h) attend(p, {row, s, pos, h, h / group});
    }
  }
}

void paged_partitions(const PartitionedAttentionParams& p) {
  FOVEA_CHECK(p.attention.window == 0 && p.attention.selection == nullptr && p.partition_size > 0);
  const int64_t d = p.attention.kv.head_dim, row_heads = int64_t{p.attention.rows} * p.attention.num_heads;
  std::vector<float> q(row_heads * d), out(row_heads * d), lse(row_heads);
  for (int32_t i = 0; i < p.max_partitions; ++i) {
    const std::vector<int32_t> begins(p.attention.rows, i), ends(p.attention.rows, i + 1);
    Selection range{.kind = Selection::Kind::range, .tokens_per_unit = p.partition_size, .rows = p.attention.rows};
    range.begins = begins.data(), range.ends = ends.data();
    AttentionParams one = p.attention;
    one.out = out.data(), one.lse = lse.data(), one.selection = &range;
    for (size_t e = 0; e < q.size(); ++e) q[e] = load_as_f32(p.attention.q, p.attention.dtype, static_cast<int64_t>(e));
    one.q = q.data(), one.dtype = DType::f32;
    paged_attention(one);
    for (int64_t r = 0; r < row_heads; ++r) {
      const int64_t at = r * p.max_partitions + i;
      p.exp_sums[at] = std::isinf(lse[r]) ? 0.0f : 1.0f;
      p.max_logits[at] = lse[r];
      std::copy_n(&out[r * d], d, p.tmp_out + at * d);
    }
  }
}

void merge_partitions(const MergePartitionsParams& p) {
  for (int64_t r = 0; r < int64_t{p.rows} * p.num_heads; ++r) {
    const int64_t first = r * p.partitions;
    double most = -std::numeric_limits<double>::infinity(), sum = 0;
    for (int32_t i = 0; i < p.partitions; ++i) {
      if (p.exp_sums[first + i] > 0) most = std::max<double>(most, p.max_logits[first + i]);
    }
    std::vector<double> out(p.head_dim);
    for (int32_t i = 0; i < p.partitions; ++i) {
      if (!(p.exp_sums[first + i] > 0)) continue;
      const double w = p.exp_sums[first + i] * std::exp(p.max_logits[first + i] - most);
      sum += w;
      for (int32_t e = 0; e < p.head_dim; ++e) out[e] += w * p.tmp_out[(first + i) * p.head_dim + e];
    }
    for (int32_t e = 0; e < p.head_dim; ++e) {
      store_f32(p.out, p.dtype, r * p.head_dim + e, sum > 0 ? static_cast<float>(out[e] / sum) : 0.0f);
    }
    if (p.lse) p.lse[r] = static_cast<float>(most + std::log(sum));
  }
}

}  // namespace fovea::ref
