#include "kernels/cuda/dsa/config.h"

#include <algorithm>

namespace fovea::cuda::dsa {
namespace {

constexpr int32_t kLeastSlack = 1024;     // candidates beyond topk, so that cuts are rare
constexpr int32_t kLeastLists = 8;        // the rows of a group
constexpr int32_t kListsForSplits = 512;  // where rows are few
constexpr int64_t kLeastSplit = 1024;     // keys

}  // namespace

Scratch choose_scratch(const OpsLimits& limits, int64_t budget) {
  Scratch s;
  s.capacity = limits.index_topk + std::max(limits.index_topk, kLeastSlack);
  const int64_t wanted = std::max(limits.max_rows, kListsForSplits), fitting = budget / s.list_bytes();
  s.lists = static_cast<int32_t>(std::max<int64_t>(kLeastLists, std::min(wanted, fitting)));
  return s;
}

Pass choose_pass(int32_t rows, int64_t max_len, int32_t group, int32_t ctas, const Scratch& scratch) {
  Pass p;
  p.rows = std::min(rows, scratch.lists / group * group);
  p.groups = (p.rows + group - 1) / group;
  const int64_t wanted = std::min<int64_t>((ctas + p.groups - 1) / p.groups, (max_len + kLeastSplit - 1) / kLeastSplit);
  p.splits = static_cast<int32_t>(std::max<int64_t>(1, std::min<int64_t>(wanted, scratch.lists / p.rows)));
  return p;
}

std::string Pass::describe() const {
  return std::to_string(rows) + " rows in " + std::to_string(groups) + " groups, " + std::to_string(splits) + " ranges of keys";
}

}  // namespace fovea::cuda::dsa
