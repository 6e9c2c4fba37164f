#include "kernels/cpu/moe/moe.h"

#include <algorithm>
#include <string>

#include "base/check.h"
#include "kernels/cpu/elementwise/elementwise.h"
#include "kernels/cpu/moe/choose_experts.h"

namespace fovea::cpu {
namespace {

constexpr int32_t kBlockRows = 512;       // bounds scratch; an expert's weights are read again for the next block
constexpr int32_t kRouteRows = 64;        // whose logits are held at once
constexpr int64_t kCopyFloats = 1 << 14;  // below this a parallel region costs more than the copy

int32_t div_up(int32_t a, int32_t b) { return (a + b - 1) / b; }

template <typename Fn>
void for_rows(ThreadPool& pool, int32_t rows, int64_t width, const Fn& fn) {
  if (rows * width >= kCopyFloats) return pool.parallel_for(rows, [&](int64_t row, int) { fn(row); });
  for (int64_t row = 0; row < rows; ++row) fn(row);
}

}  // namespace

Status Moe::prepare(const OpsLimits& limits, int threads) {
  const MoeLimits& m = limits.moe;
  if (m.experts == 0) return {};
  if (m.top_k < 1 || m.top_k > m.experts || m.hidden < 1 || m.inter < 1) {
    return Status::invalid_argument("experts: " + std::to_string(m.top_k) + " of " + std::to_string(m.experts) +
                                    " a token, hidden size " + std::to_string(m.hidden) + ", intermediate size " +
                                    std::to_string(m.inter));
  }
  limits_ = limits;
  block_rows_ = std::min(kBlockRows, limits.max_rows);
  const size_t rows = static_cast<size_t>(block_rows_), experts = static_cast<size_t>(m.experts);
  logits_.assign(kRouteRows * experts, 0.0f);
  workers_.assign(threads, {std::vector<float>(2 * experts), std::vector<int32_t>(experts)});
  starts_.assign(experts + 1, 0);
  order_.assign(static_cast<size_t>(limits.max_rows) * m.top_k, 0);
  x_.assign(rows * m.hidden, 0.0f);
  gate_.assign(rows * m.inter, 0.0f);
  up_.assign(rows * m.inter, 0.0f);
  return {};
}

void Moe::route(const MoeRouteParams& p, Linear& linear, ThreadPool& pool) {
  FOVEA_CHECK(p.hidden <= limits_.moe.hidden && p.experts <= limits_.moe.experts &&
              pool.size() <= static_cast<int>(workers_.size()));
  for (int32_t first = 0; first < p.rows; first += kRouteRows) {
    const int32_t rows = std::min(kRouteRows, p.rows - first);
    const LinearWeight gate{p.gate, nullptr, logits_.data()};
    LinearParams product{p.x + int64_t{first} * p.hidden, rows, p.hidden, &gate, 1};
    product.full_precision = true;
    linear.run(product, pool);
    pool.parallel_for(rows, [&](int64_t r, int worker) {
      const int64_t at = (first + r) * p.top_k;
      Worker& own = workers_[worker];
      choose_experts(p, logits_.data() + r * p.experts, own.scores.data(), own.ranks.data(), p.ids + at, p.weights + at);
    });
  }
}

// Counting sort of all places by their expert.
void Moe::group_rows(const MoeExpertsParams& p) {
  const int32_t places = p.rows * p.top_k;
  std::fill(starts_.begin(), starts_.begin() + p.experts + 1, 0);
  for (int32_t i = 0; i < places; ++i) {
    FOVEA_CHECK(p.ids[i] >= 0 && p.ids[i] < p.experts);
    ++starts_[p.ids[i] + 1];
  }
  for (int32_t e = 0; e < p.experts; ++e) starts_[e + 1] += starts_[e];
  for (int32_t i = 0; i < places; ++i) order_[starts_[p.ids[i]]++] = i;
  for (int32_t e = p.experts; e > 0; --e) starts_[e] = starts_[e - 1];  // each had moved to the next one's start
  starts_[0] = 0;
}

void Moe::experts(const MoeExpertsParams& p, Linear& linear, ThreadPool& pool) {
  FOVEA_CHECK(p.rows <= limits_.max_rows && p.hidden <= limits_.moe.hidden && p.inter <= limits_.moe.inter);
  FOVEA_CHECK(p.experts <= limits_.moe.experts && p.top_k <= limits_.moe.top_k);
  group_rows(p);
  std::fill_n(p.out, int64_t{p.rows} * p.hidden, 0.0f);
  for (int32_t e = 0; e < p.experts; ++e) {
    const int32_t count = starts_[e + 1] - starts_[e];
    if (count == 0) continue;
    const int32_t blocks = div_up(count, block_rows_);  // of equal size
    for (int32_t b = 0; b < blocks; ++b) {
      const auto cut = [&](int32_t i) { return starts_[e] + static_cast<int32_t>(int64_t{count} * i / blocks); };
      run_expert(p, e, cut(b), cut(b + 1), linear, pool);
    }
  }
}

// Places [begin, end) of order_, all of one expert.
void Moe::run_expert(const MoeExpertsParams& p, int32_t expert, int32_t begin, int32_t end, Linear& linear, ThreadPool& pool) {
  const int32_t rows = end - begin;
  const int64_t hidden = p.hidden;
  const auto row_of = [&](int64_t i) { return order_[begin + i] / p.top_k; };
  const float* x = p.x;
  if (rows < p.rows) {  // else every row chose it: x as it is
    for_rows(pool, rows, hidden, [&](int64_t i) { std::copy_n(p.x + row_of(i) * hidden, hidden, x_.data() + i * hidden); });
    x = x_.data();
  }
  const FeedForwardWeights& w = p.expert_weights[expert];
  const LinearWeight in[] = {{w.gate, nullptr, gate_.data()}, {w.up, nullptr, up_.data()}};
  linear.run({.x = x, .rows = rows, .k = p.hidden, .weights = in, .count = 2, .as_many = p.as_many}, pool);
  silu_mul({gate_.data(), up_.data(), gate_.data(), rows, p.inter}, pool);
  const LinearWeight last{w.down, nullptr, x_.data()};
  linear.run({.x = gate_.data(), .rows = rows, .k = p.inter, .weights = &last, .count = 1, .as_many = p.as_many}, pool);
  for_rows(pool, rows, hidden, [&](int64_t i) {
    const float weight = p.weights[order_[begin + i]];
    const float* y = x_.data() + i * hidden;
    float* out = p.out + row_of(i) * hidden;
    for (int64_t j = 0; j < hidden; ++j) out[j] += weight * y[j];
  });
}

}  // namespace fovea::cpu
