#include "eval/attention_trace.h"

#include "kernels/common/selection_reader.h"

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
  const auto at = std::find_if(answer->tokens.begin(), answer->tokens.end(),
                               [&](const AnswerTrace::Token& t) { return t.position == position; });
  if (at != answer->tokens.end()) return *at;
  answer->tokens.push_back({position, {}, std::vector<float>(static_cast<size_t>(blocks)), {}});
  return answer->tokens.back();
}

}  // namespace

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
  AnswerTrace::Token& token = token_at(answer, t.position, t.blocks);
  if (t.block_mass) token.mass.resize(token.read.size());
  answer->heads_read.resize(trace_->heads.size());
  const SelectionReader reader(*t.selection);
  const float part = 1.0f / static_cast<float>(shape_.num_layers * shape_.kv_heads);
  for (int32_t h = 0; h < shape_.kv_heads; ++h) {
    const std::vector<int32_t> blocks = reader.blocks(t.row, h, shape_.kv_heads, t.position + 1, shape_.block_size);
    std::vector<float>& reads = answer->heads_read[static_cast<size_t>(t.layer.value * shape_.kv_heads + h)];
    reads.resize(std::max(reads.size(), token.read.size()));
    for (int32_t b : blocks) {
      token.read[static_cast<size_t>(b)] += part;
      reads[static_cast<size_t>(b)] += 1;
    }
    if (!t.block_mass) continue;
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
  if (p.layers.empty())
    p.layers.resize(static_cast<size_t>(shape_.num_layers), {std::vector<double>(static_cast<size_t>(s.groups)), {}});
  PrefillTrace::Layer& layer = p.layers[static_cast<size_t>(t.layer.value)];
  int64_t& next = next_unit_[static_cast<size_t>(t.layer.value)];
  const int64_t unit = t.position / s.tokens_per_unit;
  if (unit < next) return;
  for (; next < unit; ++next) add_dense_unit(next, &layer);
  ++next;
  p.units = std::max(p.units, next);
  std::vector<float> row(static_cast<size_t>(unit + 1));
  const SelectionReader reader(s);
  for (int32_t h = 0; h < s.groups; ++h) {
    reader.for_each_range(t.row, h, t.position + 1, [&](int64_t first, int64_t) {
      row[static_cast<size_t>(first / s.tokens_per_unit)] += 1.0f / static_cast<float>(s.groups);
      layer.density[static_cast<size_t>(h)] += 1;
    });
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
