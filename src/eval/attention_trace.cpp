#include "eval/attention_trace.h"

#include <algorithm>
#include <numeric>

namespace fovea {
namespace {

// Of `blocks` (k of them), how many are among the k of most mass.
int64_t hits(const float* mass, int32_t all, const std::vector<int32_t>& blocks) {
  std::vector<int32_t> order(static_cast<size_t>(all));
  std::iota(order.begin(), order.end(), 0);
  const auto more = [&](int32_t a, int32_t b) { return mass[a] != mass[b] ? mass[a] > mass[b] : a < b; };
  std::nth_element(order.begin(), order.begin() + static_cast<int64_t>(blocks.size()) - 1, order.end(), more);
  std::sort(order.begin(), order.begin() + static_cast<int64_t>(blocks.size()));
  int64_t n = 0;
  for (int32_t b : blocks) n += std::binary_search(order.begin(), order.begin() + static_cast<int64_t>(blocks.size()), b);
  return n;
}

AnswerTrace::Token& token_at(AnswerTrace* answer, int64_t position, int32_t blocks) {
  const auto at =
      std::find_if(answer->tokens.begin(), answer->tokens.end(), [&](const AnswerTrace::Token& t) { return t.position == position; });
  if (at != answer->tokens.end()) return *at;
  answer->tokens.push_back(
      {position, {}, std::vector<float>(static_cast<size_t>(blocks)), std::vector<float>(static_cast<size_t>(blocks))});
  return answer->tokens.back();
}

}  // namespace

std::vector<int32_t> blocks_read(const SelectionTrace& t, int32_t kv_head, int32_t block_size) {
  std::vector<int32_t> blocks;
  const Selection& s = *t.selection;
  if (s.kind == Selection::Kind::all) {
    blocks.resize(static_cast<size_t>(t.blocks));
    std::iota(blocks.begin(), blocks.end(), 0);
    return blocks;
  }
  const int64_t cell = int64_t{t.row} * s.groups + (s.heads == HeadGroups::per_kv_head ? kv_head : 0);
  const auto add = [&](int64_t unit) {
    const int64_t first = unit * s.tokens_per_unit / block_size, last = ((unit + 1) * s.tokens_per_unit - 1) / block_size;
    for (int64_t b = std::max<int64_t>(first, blocks.empty() ? 0 : blocks.back() + 1); b <= std::min<int64_t>(last, t.blocks - 1); ++b)
      blocks.push_back(static_cast<int32_t>(b));
  };
  if (s.kind == Selection::Kind::range) {
    for (int32_t u = s.begins[cell]; u < s.ends[cell]; ++u) add(u);
  } else {
    for (int32_t i = 0; i < s.counts[cell]; ++i) add(s.units[cell * s.capacity + i]);
  }
  return blocks;
}

TraceScore RunTrace::score() const {
  TraceScore sum;
  int64_t rows = 0;
  for (const HeadTrace& h : heads) {
    sum.mass += h.mass;
    sum.recall += h.recall;
    rows += h.rows;
  }
  return rows == 0 ? TraceScore{} : TraceScore{sum.mass / static_cast<double>(rows), sum.recall / static_cast<double>(rows)};
}

TraceRecorder::TraceRecorder(const ModelShape& shape, RunTrace* trace)
    : shape_(shape), trace_(trace), next_unit_(static_cast<size_t>(shape.num_layers)) {
  trace_->layers = shape.num_layers;
  trace_->kv_heads = shape.kv_heads;
  trace_->heads.resize(static_cast<size_t>(shape.num_layers) * static_cast<size_t>(shape.kv_heads));
}

void TraceRecorder::on_answer_row(const SelectionTrace& t, AnswerTrace* answer) {
  if (!t.block_mass) return;
  AnswerTrace::Token& token = token_at(answer, t.position, t.blocks);
  const float part = 1.0f / static_cast<float>(shape_.num_layers * shape_.kv_heads);
  for (int32_t h = 0; h < shape_.kv_heads; ++h) {
    const std::vector<int32_t> blocks = blocks_read(t, h, shape_.block_size);
    for (int32_t b : blocks) token.read[static_cast<size_t>(b)] += part;
    for (int32_t b = 0; b < t.blocks; ++b) token.mass[static_cast<size_t>(b)] += part * t.block_mass[int64_t{h} * t.blocks + b];
    score_head(t, h, blocks);
  }
}

void TraceRecorder::score_head(const SelectionTrace& t, int32_t head, const std::vector<int32_t>& blocks) {
  const float* mass = t.block_mass + int64_t{head} * t.blocks;
  HeadTrace& h = trace_->heads[static_cast<size_t>(t.layer.value * shape_.kv_heads + head)];
  ++h.rows;
  if (blocks.empty()) return;
  for (int32_t b : blocks) h.mass += mass[b];
  h.recall += static_cast<double>(hits(mass, t.blocks, blocks)) / static_cast<double>(blocks.size());
}

void TraceRecorder::on_prefill_row(const SelectionTrace& t) {
  const Selection& s = *t.selection;
  if (s.kind != Selection::Kind::list || s.tokens_per_unit < 2) return;
  PrefillTrace& p = trace_->prefill;
  p.tokens_per_unit = s.tokens_per_unit;
  if (p.layers.empty()) p.layers.resize(static_cast<size_t>(shape_.num_layers), {std::vector<double>(static_cast<size_t>(s.groups)), {}});
  PrefillTrace::Layer& layer = p.layers[static_cast<size_t>(t.layer.value)];
  int64_t& next = next_unit_[static_cast<size_t>(t.layer.value)];
  const int64_t unit = t.position / s.tokens_per_unit;
  if (unit < next) return;
  for (; next < unit; ++next) add_dense_unit(next, &layer);
  ++next;
  p.units = std::max(p.units, next);
  std::vector<float> row(static_cast<size_t>(unit + 1));
  for (int32_t h = 0; h < s.groups; ++h) {
    const int32_t* units = s.units + (int64_t{t.row} * s.groups + h) * s.capacity;
    const int32_t count = s.counts[int64_t{t.row} * s.groups + h];
    for (int32_t i = 0; i < count && units[i] <= unit; ++i) {
      row[static_cast<size_t>(units[i])] += 1.0f / static_cast<float>(s.groups);
      layer.density[static_cast<size_t>(h)] += 1;
    }
  }
  layer.chosen.insert(layer.chosen.end(), row.begin(), row.end());
}

void TraceRecorder::add_dense_unit(int64_t unit, PrefillTrace::Layer* layer) {
  layer->chosen.insert(layer->chosen.end(), static_cast<size_t>(unit + 1), 1.0f);
  for (double& read : layer->density) read += static_cast<double>(unit + 1);
}

// So far rows of a triangle and counts.
void TraceRecorder::finish_prefill() {
  PrefillTrace& p = trace_->prefill;
  const double causal = static_cast<double>(p.units * (p.units + 1) / 2);
  for (size_t l = 0; l < p.layers.size(); ++l) {
    PrefillTrace::Layer& layer = p.layers[l];
    for (; next_unit_[l] < p.units; ++next_unit_[l]) add_dense_unit(next_unit_[l], &layer);
    std::vector<float> square(static_cast<size_t>(p.units * p.units));
    for (int64_t q = 0; q < p.units; ++q) std::copy_n(layer.chosen.begin() + q * (q + 1) / 2, q + 1, square.begin() + q * p.units);
    layer.chosen = std::move(square);
    for (double& d : layer.density) d /= causal;
  }
}

}  // namespace fovea
