#include "eval/lists_file.h"

#include "kernels/common/selection_reader.h"
#include "model/json_reader.h"

#include <algorithm>
#include <limits>
#include <sstream>

namespace fovea {
namespace {

using Json = nlohmann::json;

constexpr const char* kFormat = "fovea-lists";
constexpr int64_t kVersion = 1;
constexpr uint64_t kFileBytesMax = uint64_t{2} << 30;

Status refuse(const std::string& where, const std::string& what) { return Status::invalid_argument(where + ": " + what); }

// A whole number in [low, high].
Result<int64_t> read_number(const Json& object, const char* field, const std::string& where, int64_t low, int64_t high) {
  const auto it = object.find(field);
  if (it == object.end()) return refuse(where, std::string(field) + " is missing");
  const bool fits = it->is_number_integer() && (!it->is_number_unsigned() || it->get<uint64_t>() <= INT64_MAX);
  const int64_t value = fits ? it->get<int64_t>() : 0;
  if (!fits || value < low || value > high)
    return refuse(where, std::string(field) + " is " + json_snippet(*it) + ": a whole number from " + std::to_string(low) + " to " +
                             std::to_string(high) + " is wanted");
  return value;
}

Result<RecordedLists> read_shape(const Json& json, const std::string& where) {
  const auto format = json.find("format");
  if (format == json.end() || *format != kFormat)
    return refuse(where, "not a file of recorded lists: its format is not \"fovea-lists\"");
  FOVEA_TRY(read_number(json, "version", where, kVersion, kVersion).status());
  RecordedLists lists;
  FOVEA_ASSIGN(const int64_t layers, read_number(json, "layers", where, 1, 4096));
  FOVEA_ASSIGN(const int64_t kv_heads, read_number(json, "kv_heads", where, 1, 4096));
  FOVEA_ASSIGN(const int64_t block_size, read_number(json, "block_size", where, 1, 4096));
  FOVEA_ASSIGN(const int64_t k, read_number(json, "k", where, 1, 1 << 24));
  FOVEA_ASSIGN(lists.context_tokens, read_number(json, "context_tokens", where, 0, std::numeric_limits<int32_t>::max()));
  lists.layers = static_cast<int32_t>(layers);
  lists.kv_heads = static_cast<int32_t>(kv_heads);
  lists.block_size = static_cast<int32_t>(block_size);
  lists.k = static_cast<int32_t>(k);
  return lists;
}

Status read_list(const Json& json, int64_t blocks, int32_t k, const std::string& where, std::vector<int32_t>* out) {
  if (!json.is_array()) return refuse(where, "is " + json_snippet(json) + ", not a list");
  if (json.size() > static_cast<size_t>(k))
    return refuse(where, "holds " + std::to_string(json.size()) + " blocks, more than k " + std::to_string(k));
  int64_t before = -1;
  for (const Json& unit : json) {
    if (!unit.is_number_unsigned() || unit.get<uint64_t>() >= static_cast<uint64_t>(blocks))
      return refuse(where, "holds " + json_snippet(unit) + ": the row sees blocks 0 to " + std::to_string(blocks - 1));
    const auto block = static_cast<int64_t>(unit.get<uint64_t>());
    if (block <= before) return refuse(where, "is not ascending at " + std::to_string(block));
    out->push_back(static_cast<int32_t>(block));
    before = block;
  }
  return {};
}

Status read_row(const Json& json, const std::string& where, RecordedLists* lists) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const RecordedRow* last = lists->rows.empty() ? nullptr : &lists->rows.back();
  RecordedRow row;
  FOVEA_ASSIGN(const int64_t step, read_number(json, "step", where, last ? last->step : 0, last ? int64_t{last->step} + 1 : 0));
  FOVEA_ASSIGN(const int64_t question, read_number(json, "question", where, last ? last->question : 0, kMost));
  FOVEA_ASSIGN(row.position, read_number(json, "position", where, lists->context_tokens, kMost));
  row.step = static_cast<int32_t>(step);
  row.question = static_cast<int32_t>(question);
  const auto answer = json.find("answer"), all = json.find("lists");
  if (answer == json.end() || !answer->is_boolean()) return refuse(where, "answer is missing, or neither true nor false");
  row.answer = answer->get<bool>();
  const auto count = static_cast<size_t>(lists->layers) * static_cast<size_t>(lists->kv_heads);
  if (all == json.end() || !all->is_array() || all->size() != count)
    return refuse(where, "lists is missing, or not " + std::to_string(count) + " lists: one for each layer and KV head");
  row.lists.resize(count);
  for (size_t i = 0; i < count; ++i)
    FOVEA_TRY(
        read_list((*all)[i], row.position / lists->block_size + 1, lists->k, where + ": list " + std::to_string(i), &row.lists[i]));
  lists->rows.push_back(std::move(row));
  return {};
}

}  // namespace

ListsRecorder::ListsRecorder(const ModelShape& shape, int64_t context_tokens)
    : shape_(shape), lists_{shape.num_layers, shape.kv_heads, shape.block_size, 1, context_tokens, {}} {}

void ListsRecorder::on_selection(size_t question, const SelectionTrace& t) {
  if (t.selection->kind != Selection::Kind::list) return;
  std::vector<RecordedRow>& rows = lists_.rows;
  const auto asked = static_cast<int32_t>(question);
  const bool other = rows.empty() || rows.back().question != asked;
  const bool next = !other && (t.layer < last_layer_ || (t.layer == last_layer_ && row_ == rows.size() - 1 && rows[row_].answer));
  if (other || next) step_begin_ = rows.size();
  last_layer_ = t.layer;
  for (row_ = step_begin_; row_ < rows.size() && rows[row_].position != t.position; ++row_) {
  }
  if (row_ == rows.size()) {
    const int32_t step = rows.empty() ? 0 : rows.back().step + (row_ == step_begin_);
    rows.push_back({step, asked, t.position, t.answer, {}});
    rows.back().lists.resize(static_cast<size_t>(shape_.num_layers) * static_cast<size_t>(shape_.kv_heads));
  }
  const SelectionReader reader(*t.selection);
  for (int32_t h = 0; h < shape_.kv_heads; ++h) {
    std::vector<int32_t>& list = rows[row_].lists[static_cast<size_t>(t.layer.value * shape_.kv_heads + h)];
    list = reader.blocks(t.row, h, shape_.kv_heads, t.position + 1, shape_.block_size);
    lists_.k = std::max(lists_.k, static_cast<int32_t>(list.size()));
  }
}

void PrefillListsRecorder::on_selection(const SelectionTrace& t) {
  const Selection& s = *t.selection;
  if (!t.prefill || s.kind != Selection::Kind::list || s.tokens_per_unit < 2) return;
  if (lists_.rows.empty()) lists_ = {layers_, s.groups, s.tokens_per_unit, 1, 0, {}};
  const int64_t unit = t.position / s.tokens_per_unit;
  while (static_cast<int64_t>(lists_.rows.size()) <= unit) {
    const auto step = static_cast<int32_t>(lists_.rows.size());
    lists_.rows.push_back({step, 0, int64_t{step + 1} * s.tokens_per_unit - 1, false, {}});
    lists_.rows.back().lists.resize(static_cast<size_t>(layers_) * static_cast<size_t>(s.groups));
  }
  std::vector<int32_t>* const lists = &lists_.rows[static_cast<size_t>(unit)].lists[static_cast<size_t>(t.layer.value * s.groups)];
  if (!lists[0].empty()) return;  // a row before it has the same lists
  const SelectionReader reader(s);
  for (int32_t h = 0; h < s.groups; ++h) {
    lists[h] = reader.blocks(t.row, h, s.groups, lists_.rows[static_cast<size_t>(unit)].position + 1, s.tokens_per_unit);
    lists_.k = std::max(lists_.k, static_cast<int32_t>(lists[h].size()));
  }
}

std::string print_lists(const RecordedLists& lists) {
  using Ordered = nlohmann::ordered_json;
  const Ordered shape = {{"format", kFormat},
                         {"version", kVersion},
                         {"layers", lists.layers},
                         {"kv_heads", lists.kv_heads},
                         {"block_size", lists.block_size},
                         {"k", lists.k},
                         {"context_tokens", lists.context_tokens}};
  std::string text = shape.dump() + "\n";
  for (const RecordedRow& r : lists.rows) {
    const Ordered row = {
        {"step", r.step}, {"question", r.question}, {"position", r.position}, {"answer", r.answer}, {"lists", r.lists}};
    text += row.dump() + "\n";
  }
  return text;
}

Result<RecordedLists> parse_lists(const std::string& text, const std::string& name) {
  std::istringstream in(text);
  std::string line;
  RecordedLists lists;
  for (int number = 1; std::getline(in, line); ++number) {
    const std::string where = name + ":" + std::to_string(number);
    FOVEA_ASSIGN(const Json json, parse_json_object(line, where));
    if (number == 1) {
      FOVEA_ASSIGN(lists, read_shape(json, where));
    } else {
      FOVEA_TRY(read_row(json, where, &lists));
    }
  }
  if (lists.rows.empty()) return refuse(name, "holds no lists");
  return lists;
}

Result<RecordedLists> load_lists(const std::string& path) {
  FOVEA_ASSIGN(const std::string text, read_file(path, kFileBytesMax));
  return parse_lists(text, path);
}

}  // namespace fovea
