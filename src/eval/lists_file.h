// Recorded lists as a file: JSON lines, so that any tool reads them and a text compares them.
//
//   {"format": "fovea-lists", "version": 1, "layers": 6, "kv_heads": 2, "block_size": 16, "k": 32, "context_tokens": 124000}
//   {"step": 0, "question": 0, "position": 124010, "answer": false, "lists": [[0, 17, ...], ...]}
//
// The first line is the shape; each other is a row, in the order they were computed. List l * kv_heads + h is that of layer l and
// KV head h: logical blocks, ascending; [] where the layer read everything.
#pragma once

#include "sparse/recorded_lists.h"

#include <fovea/engine.h>

#include <string>

namespace fovea {

// Takes the Selections of questions that are asked one after the other.
class ListsRecorder {
 public:
  ListsRecorder(const ModelShape& shape, int64_t context_tokens);
  // Rows of one layer come in ascending order, layers one after the other.
  void on_selection(size_t question, const SelectionTrace& row);
  const RecordedLists& lists() const { return lists_; }

 private:
  const ModelShape shape_;
  RecordedLists lists_;
  LayerIdx last_layer_{-1};
  size_t step_begin_ = 0, row_ = 0;  // in lists_.rows: the step's first row, the last one seen
};

// Takes the Selections of a prompt's rows: a row for each block of queries, `step` its number and `position` its last; kv_heads is
// the number of lists of a layer (the query heads, or with group_vote the KV heads), block_size the method's, context_tokens 0.
// Blocks of queries that no list came from read everything.
class PrefillListsRecorder {
 public:
  explicit PrefillListsRecorder(const ModelShape& shape) : layers_(shape.num_layers) {}
  void on_selection(const SelectionTrace& row);
  const RecordedLists& lists() const { return lists_; }

 private:
  const int32_t layers_;
  RecordedLists lists_;
};

std::string print_lists(const RecordedLists& lists);
// Errors name file, line and field.
Result<RecordedLists> parse_lists(const std::string& text, const std::string& name);
Result<RecordedLists> load_lists(const std::string& path);

}  // namespace fovea
