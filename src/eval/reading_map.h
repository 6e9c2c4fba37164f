// Reading map: which blocks each generated token read, by layer and KV head, with the planted fact marked. As one
// self-contained HTML page (no script from elsewhere, no font, no image file) and as a PNG.
#pragma once

#include <fovea/engine.h>

#include <cstdint>
#include <string>
#include <vector>

namespace fovea {

// One question's answer as it was read: a row for each token of the answer.
struct ReadingMap {
  struct Row {
    int64_t position = 0;
    std::string token;     // text of the answer's token that this row produced
    // [layer][kv_head] -> ascending blocks it read.
    std::vector<std::vector<std::vector<int32_t>>> blocks;
  };
  std::string question, answer, wanted, method;
  bool right = false;
  int32_t block_size = 16;
  int32_t layers = 0, kv_heads = 0;
  int64_t context_tokens = 0;
  int64_t context_blocks = 0;
  int32_t fact_first_block = -1, fact_last_block = -1;  // -1: no fact marked
  std::string fact;
  RequestStats stats;
  std::vector<Row> rows;
};

// Collects SelectionTrace calls into a map, a row for each position.
class ReadingMapBuilder {
 public:
  ReadingMapBuilder(const ModelShape& shape, ReadingMap* map) : shape_(shape), map_(map) {}
  void on_selection(const SelectionTrace& trace);

 private:
  const ModelShape shape_;
  ReadingMap* map_;
};

std::string reading_map_html(const std::vector<ReadingMap>& maps);
// One question: a strip per layer and KV head, the context from left to right, answer tokens from top to bottom.
Status write_reading_map_png(const ReadingMap& map, const std::string& path);

}  // namespace fovea
