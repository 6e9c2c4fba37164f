#include "kernels/ref/dsa_topk.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "base/check.h"
#include "kernels/common/checks.h"
#include "kernels/ref/dsa_index.h"

namespace fovea::ref {
namespace {

float score(const IndexTopkParams& p, int32_t row, const float* key) {
  const int dim = p.keys.dim;
  float sum = 0.0f;
  for (int h = 0; h < p.heads; ++h) {
    const float* q = p.q + (int64_t{row} * p.heads + h) * dim;
    float dot = 0.0f;
    for (int i = 0; i < dim; ++i) dot = std::fma(q[i], key[i], dot);
    sum = std::fma(p.weights[int64_t{row} * p.heads + h], dot < 0.0f ? 0.0f : dot, sum);
  }
  return sum;
}

int64_t slot_of(const IndexKeysView& keys, int32_t seq, int32_t position) {
  const int64_t block = keys.block_table[seq * keys.table_stride + position / keys.block_size];
  return block * keys.block_size + position % keys.block_size;
}

// A NaN ranks below everything, and equals another NaN.
bool better(float a, float b) { return std::isnan(b) ? !std::isnan(a) : a > b; }

// positions [count] of one row in the space of `out`, then -1. `entry` gives one.
template <typename Entry>
void write_row(const TopkIndices& out, int32_t row, const int32_t* positions, int32_t count, const Entry& entry) {
  int32_t* to = out.indices + int64_t{row} * out.capacity;
  for (int32_t i = 0; i < out.capacity; ++i) to[i] = i < count ? static_cast<int32_t>(entry(positions[i])) : -1;
  if (out.counts) out.counts[row] = count;
}

}  // namespace

void index_logits(const IndexTopkParams& p, int32_t first, int32_t rows, float* logits, int64_t stride) {
  std::array<float, kMaxIndexDim> key;
  for (int32_t r = 0; r < rows; ++r) {
    const int32_t row = first + r;
    float* out = logits + r * stride;
    FOVEA_CHECK(p.row_len[row] <= stride);
    for (int32_t s = 0; s < p.row_len[row]; ++s) {
      const int64_t slot = slot_of(p.keys, p.row_seq[row], s);
      index_load(p.keys, slot, key.data());
      out[s] = score(p, row, key.data());
      if (p.keys.precision == IndexPrecision::fp8) out[s] *= p.keys.scale[slot];
    }
    std::fill(out + p.row_len[row], out + stride, -std::numeric_limits<float>::infinity());
  }
}

int32_t topk_positions(const float* scores, int32_t len, int32_t topk, int32_t* positions) {
  std::vector<int32_t> order(len);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return better(scores[a], scores[b]); });
  const int32_t count = std::min(topk, len);
  std::sort(order.begin(), order.begin() + count);
  std::copy_n(order.begin(), count, positions);
  return count;
}

void index_topk(const IndexTopkParams& p) {
  check_index_topk(p);
  check_index_lengths(p);
  std::vector<float> own(p.logits ? 0 : p.max_len);
  float* logits = p.logits ? p.logits : own.data();
  const int32_t chunk = p.logits ? logits_rows_at_once(p) : 1;
  for (int32_t first = 0; first < p.rows; first += chunk) {
    const int32_t rows = std::min(chunk, p.rows - first);
    index_logits(p, first, rows, logits, p.max_len);
    for (int32_t r = 0; r < rows; ++r) {
      int32_t* out = p.out.indices + int64_t{first + r} * p.out.capacity;
      const int32_t count = topk_positions(logits + r * p.max_len, p.row_len[first + r], p.topk, out);
      std::fill(out + count, out + p.out.capacity, -1);
      p.out.counts[first + r] = count;
      if (!p.mapped.indices) continue;
      write_row(p.mapped, first + r, out, count, [&, row = first + r](int32_t position) {
        return p.mapped.space == IndexSpace::slot ? slot_of(p.keys, p.row_seq[row], position) : p.ragged_start[row] + position;
      });
    }
  }
}

void index_transform(const IndexTransformParams& p) {
  check_index_transform(p);
  IndexKeysView keys;
  keys.block_table = p.block_table;
  keys.table_stride = p.table_stride;
  keys.block_size = p.block_size;
  for (int32_t r = 0; r < p.in.rows; ++r) {
    write_row(p.out, r, p.in.indices + int64_t{r} * p.in.capacity, p.in.counts[r], [&](int32_t position) {
      return p.out.space == IndexSpace::slot ? slot_of(keys, p.row_seq[r], position) : p.ragged_start[r] + position;
    });
  }
}

}  // namespace fovea::ref
