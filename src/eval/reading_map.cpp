#include "eval/reading_map.h"

#include "eval/attention_trace.h"

#include <algorithm>

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
  for (int32_t h = 0; h < shape_.kv_heads; ++h) row->blocks[t.layer.value][h] = blocks_read(t, h, shape_.block_size);
}

}  // namespace fovea
