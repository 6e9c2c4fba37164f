#include "eval/reading_map.h"

#include <algorithm>
#include <numeric>

namespace fovea {

void ReadingMapBuilder::on_selection(const SelectionTrace& t) {
  map_->context_blocks = std::max<int64_t>(map_->context_blocks, t.blocks);
  map_->context_tokens = std::max<int64_t>(map_->context_tokens, t.position + 1);
  auto row = std::find_if(map_->rows.begin(), map_->rows.end(), [&](const ReadingMap::Row& r) { return r.position == t.position; });
  if (row == map_->rows.end()) {
    map_->rows.push_back({});
    row = map_->rows.end() - 1;
    row->position = t.position;
  }
  if (row->blocks.empty()) row->blocks.assign(shape_.num_layers, std::vector<std::vector<int32_t>>(shape_.kv_heads));
  if (t.selection->kind != Selection::Kind::list) {  // this layer read everything
    for (auto& blocks : row->blocks[t.layer.value]) {
      blocks.resize(t.blocks);
      std::iota(blocks.begin(), blocks.end(), 0);
    }
    return;
  }
  const Selection& s = *t.selection;
  for (int32_t h = 0; h < shape_.kv_heads; ++h) {
    const int32_t group = s.heads == HeadGroups::per_kv_head ? h : 0;
    const int64_t cell = int64_t{t.row} * s.groups + group;
    const int32_t* units = s.units + cell * s.capacity;
    row->blocks[t.layer.value][h].assign(units, units + s.counts[cell]);
  }
}

}  // namespace fovea
