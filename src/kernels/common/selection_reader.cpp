#include "kernels/common/selection_reader.h"

#include "base/check.h"

namespace fovea {

int32_t SelectionReader::list_of(int32_t row) const {
  if (!s_.row_indptr) return row;
  const int32_t* end = s_.row_indptr + s_.rows + 1;
  const auto list = static_cast<int32_t>(std::upper_bound(s_.row_indptr, end, row) - s_.row_indptr) - 1;
  FOVEA_CHECK(list >= 0 && list < s_.rows);
  return list;
}

SelectionReader::Groups SelectionReader::groups_of(int32_t kv_head, int32_t kv_heads) const {
  if (s_.kind == Selection::Kind::all || s_.heads == HeadGroups::all) return {0, 1};
  FOVEA_CHECK(s_.groups % kv_heads == 0);
  const int32_t each = s_.groups / kv_heads;
  return {kv_head * each, (kv_head + 1) * each};
}

int64_t SelectionReader::tokens(int32_t list, int32_t group, int64_t len) const {
  int64_t tokens = 0;
  if (s_.kind != Selection::Kind::list) {
    for_each_range(list, group, len, [&](int64_t first, int64_t end) { tokens = end - first; });
    return tokens;
  }
  const int64_t cell = int64_t{list} * s_.groups + group, unit = s_.tokens_per_unit;
  const int32_t* units = s_.units + cell * s_.capacity;
  int32_t whole = s_.counts[cell];  // units ascend, so only the last ones can reach past the row's own position
  for (; whole > 0 && (units[whole - 1] + int64_t{1}) * unit > len; --whole) {
    tokens += std::max<int64_t>(0, len - units[whole - 1] * unit);
  }
  return tokens + whole * unit;
}

std::vector<int32_t> SelectionReader::blocks(int32_t list, int32_t kv_head, int32_t kv_heads, int64_t len,
                                             int32_t block_size) const {
  std::vector<int32_t> blocks;
  const Groups groups = groups_of(kv_head, kv_heads);
  for (int32_t g = groups.first; g < groups.end; ++g) {
    int64_t next = 0;  // of this list: the first block not added yet
    for_each_range(list, g, len, [&](int64_t first, int64_t end) {
      next = std::max(next, first / block_size);
      for (; next * block_size < end; ++next) blocks.push_back(static_cast<int32_t>(next));
    });
  }
  if (groups.end - groups.first > 1) {
    std::sort(blocks.begin(), blocks.end());
    blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
  }
  return blocks;
}

}  // namespace fovea
