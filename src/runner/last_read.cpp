#include "runner/last_read.h"

#include "kernels/common/selection_reader.h"

#include <algorithm>

namespace fovea {

void LastRead::begin(int64_t position, int32_t block_size) {
  if (position < position_) return;
  position_ = position;
  block_size_ = block_size;
  bits_.resize(static_cast<size_t>(position / block_size / 64 + 1));
  std::fill(bits_.begin(), bits_.end(), 0);
}

void LastRead::mark(int64_t first_token, int64_t end) {
  for (int64_t b = first_token / block_size_; b * block_size_ < end; ++b)
    bits_[static_cast<size_t>(b / 64)] |= uint64_t{1} << (b % 64);
}

void LastRead::add(const Selection& s, int32_t list, int64_t position) {
  if (position != position_) return;
  const SelectionReader reader(s);
  for (int32_t g = 0; g < reader.groups(); ++g) {
    reader.for_each_range(list, g, position + 1, [&](int64_t first, int64_t end) { mark(first, end); });
  }
}

std::vector<int32_t> LastRead::blocks() const {
  std::vector<int32_t> out;
  for (size_t b = 0; b < bits_.size() * 64; ++b) {
    if (bits_[b / 64] >> (b % 64) & 1) out.push_back(static_cast<int32_t>(b));
  }
  return out;
}

}  // namespace fovea
