// Lists that a method chose while real questions were answered: what a locality simulation and a replay work on.
#pragma once

#include <cstdint>
#include <vector>

namespace fovea {

// A row of a question or an answer.
struct RecordedRow {
  int32_t step = 0;      // rows of one step were computed together, layer by layer
  int32_t question = 0;  // about the document, in the order they were asked
  int64_t position = 0;  // of the row's token
  bool answer = false;   // it gave a token of the answer; else it is one of the question's
  // [layers * kv_heads] logical blocks of each list, ascending; empty: the layer read everything.
  std::vector<std::vector<int32_t>> lists;
};

struct RecordedLists {
  int32_t layers = 0, kv_heads = 0;  // kv_heads: lists of a layer
  int32_t block_size = 0;      // tokens
  int32_t k = 0;               // most blocks in a list
  int64_t context_tokens = 0;  // of the document, which all questions share
  std::vector<RecordedRow> rows;

  // Blocks that the document fills: those after them are a question's own.
  int32_t shared_blocks() const { return static_cast<int32_t>(context_tokens / block_size); }
};

}  // namespace fovea
