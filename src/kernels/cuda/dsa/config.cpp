#include "kernels/cuda/dsa/config.h"

#include <algorithm>

namespace fovea::cuda::dsa {
namespace {

constexpr int32_t kLeastSlack = 1024;                        // candidates beyond topk, so that cuts are rare
constexpr int32_t kLeastLists = kGroups * kGroupLanes / 16;  // the most rows of a group
constexpr int32_t kListsForSplits = 1056;                    // where rows are few: 8 on each of 132 multiprocessors
constexpr int32_t kMostPeers = 8;                            // what every GPU with clusters runs
constexpr int64_t kLeastSplit = 1024;                        // keys

}  // namespace

Scratch choose_scratch(const OpsLimits& limits, int64_t budget) {
  Scratch s;
  s.capacity = limits.index_topk + std::max(limits.index_topk, kLeastSlack);
  const int64_t wanted = std::max(limits.max_rows, kListsForSplits), fitting = budget / s.list_bytes();
  s.lists = static_cast<int32_t>(std::max<int64_t>(kLeastLists, std::min(wanted, fitting)));
  return s;
}

Way choose_way(const IndexTopkParams& p, bool tensor_cores) {
  const IndexKeysView& keys = p.keys;
  const int64_t key_bytes = keys.dim * index_element_bytes(keys.precision);
  const bool copied = keys.block_size >= 8 && key_bytes % 16 == 0 && keys.dim <= kPaddedDim;
  if (!tensor_cores || !copied || keys.precision == IndexPrecision::exact) return {Path::fma, kFmaRows, 3};
  Way w{Path::wgmma, 0, 1, 16, std::min(keys.block_size, kWgmmaKeys)};
  while (w.padded_heads < p.heads) w.padded_heads *= 2;
  w.group = kGroups * kGroupLanes / w.padded_heads;
  return w;
}

Pass choose_pass(int32_t rows, int64_t max_len, const Way& way, const DsaDevice& device, const Scratch& scratch) {
  Pass p;
  const int32_t group = way.group, ctas = way.ctas_per_sm * device.sm_count;
  p.rows = std::min(rows, scratch.lists / group * group);
  p.groups = (p.rows + group - 1) / group;
  const int64_t wanted = std::min<int64_t>((ctas + p.groups - 1) / p.groups, (max_len + kLeastSplit - 1) / kLeastSplit);
  p.splits = static_cast<int32_t>(std::max<int64_t>(1, std::min<int64_t>(wanted, scratch.lists / p.rows)));
  // Clusters leave some multiprocessors idle; with a list of keys alone, one CTA is done before many have met.
  while (device.clusters && p.peers < kMostPeers && 2 * p.peers <= p.splits && 2 * p.peers * p.rows <= device.sm_count * 3 / 4) {
    p.peers *= 2;
  }
  return p;
}

std::string Way::describe() const {
  if (path == Path::fma) return "fma, " + std::to_string(group) + " rows";
  return "wgmma, " + std::to_string(group) + " rows of " + std::to_string(padded_heads) + " heads, copies of " +
         std::to_string(box_keys) + " keys";
}

std::string Pass::describe() const {
  return std::to_string(rows) + " rows in " + std::to_string(groups) + " groups, " + std::to_string(splits) +
         " ranges of keys, chosen by " + std::to_string(peers);
}

}  // namespace fovea::cuda::dsa
