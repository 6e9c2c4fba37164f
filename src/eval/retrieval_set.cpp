#include "eval/retrieval_set.h"

#include "model/json_reader.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>

namespace fovea {
namespace {

using Json = nlohmann::json;

// A field of a kind, or an error that names it.
template <typename T>
Status read(const Json& object, const char* field, const std::string& where, T* out) {
  const auto it = object.find(field);
  if (it == object.end()) return Status::invalid_argument(where + ": " + field + " is missing");
  try {
    *out = it->get<T>();
  } catch (const Json::exception&) {
    return Status::invalid_argument(where + ": " + field + " has the wrong type: " + it->dump().substr(0, 60));
  }
  return {};
}

Result<RetrievalDocument> read_document(const std::string& line, const std::string& where) {
  const Result<Json> parsed = parse_json_object(line, where);
  if (!parsed.ok()) return Status::invalid_argument(parsed.status().message());
  const Json& json = *parsed;
  RetrievalDocument d;
  FOVEA_TRY(read(json, "id", where, &d.id));
  if (const auto tokens = json.find("approx_tokens");
      tokens != json.end() && (!tokens->is_number_unsigned() || tokens->get<uint64_t>() > INT64_MAX))
    return Status::invalid_argument(where +
                                    ": approx_tokens has the wrong type, not a whole number: " + tokens->dump().substr(0, 60));
  FOVEA_TRY(read(json, "approx_tokens", where, &d.approx_tokens));
  FOVEA_TRY(read(json, "document", where, &d.document));
  Json questions;
  FOVEA_TRY(read(json, "questions", where, &questions));
  if (!questions.is_array()) return Status::invalid_argument(where + ": questions is not a list");
  for (const Json& q : questions) {
    if (!q.is_object()) return Status::invalid_argument(where + ": questions holds " + q.dump().substr(0, 60));
    RetrievalQuestion out;
    FOVEA_TRY(read(q, "id", where, &out.id));
    FOVEA_TRY(read(q, "task", where, &out.task));
    FOVEA_TRY(read(q, "question", where, &out.question));
    if (q.contains("answer")) FOVEA_TRY(read(q, "answer", where, &out.answer));
    // A question about a record that is absent has no place in the document.
    if (const auto depth = q.find("depth"); depth != q.end() && depth->is_number()) out.depth = depth->get<double>();
    d.questions.push_back(std::move(out));
  }
  return d;
}

template <typename T>
bool holds(const std::vector<T>& list, const T& value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

// The values that `wanted` names and the set does not have, as an error of its flag.
template <typename T, typename Text>
Status check_known(const char* flag, const std::vector<T>& wanted, const std::vector<T>& known, Text text) {
  std::string list;
  for (const T& k : known) list += (list.empty() ? "" : ", ") + text(k);
  for (const T& w : wanted) {
    if (!holds(known, w)) return Status::invalid_argument(std::string(flag) + " " + text(w) + ": the set has " + list);
  }
  return {};
}

Status check_filter(const std::vector<RetrievalDocument>& set, const RetrievalFilter& filter) {
  std::vector<int64_t> lengths;
  std::vector<std::string> tasks, ids;
  for (const RetrievalDocument& d : set) {
    if (!holds(lengths, d.approx_tokens)) lengths.push_back(d.approx_tokens);
    ids.push_back(d.id);
    for (const RetrievalQuestion& q : d.questions) {
      if (!holds(tasks, q.task)) tasks.push_back(q.task);
    }
  }
  const auto same = [](const std::string& s) { return s; };
  FOVEA_TRY(check_known("--lengths", filter.lengths, lengths, [](int64_t n) { return std::to_string(n); }));
  FOVEA_TRY(check_known("--documents", filter.ids, ids, same));
  FOVEA_TRY(check_known("--tasks", filter.tasks, tasks, same));
  return check_known("--without-tasks", filter.without_tasks, tasks, same);
}

}  // namespace

Result<std::vector<RetrievalDocument>> parse_retrieval_set(const std::string& text, const std::string& name) {
  std::vector<RetrievalDocument> set;
  std::istringstream in(text);
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    FOVEA_ASSIGN(RetrievalDocument d, read_document(line, name + ":" + std::to_string(number)));
    set.push_back(std::move(d));
  }
  if (set.empty()) return Status::invalid_argument(name + ": holds no document");
  return set;
}

Result<std::vector<RetrievalDocument>> load_retrieval_set(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return Status::not_found(path + ": cannot be opened");
  std::ostringstream text;
  text << in.rdbuf();
  return parse_retrieval_set(text.str(), path);
}

Result<std::vector<RetrievalDocument>> filter_retrieval_set(const std::vector<RetrievalDocument>& set,
                                                            const RetrievalFilter& filter) {
  FOVEA_TRY(check_filter(set, filter));
  std::vector<RetrievalDocument> out;
  std::map<int64_t, int64_t> taken;  // documents of a length
  for (const RetrievalDocument& d : set) {
    if (!filter.lengths.empty() && !holds(filter.lengths, d.approx_tokens)) continue;
    if (!filter.ids.empty() && !holds(filter.ids, d.id)) continue;
    if (filter.documents > 0 && taken[d.approx_tokens] >= filter.documents) continue;
    ++taken[d.approx_tokens];
    RetrievalDocument kept = d;
    std::erase_if(kept.questions, [&](const RetrievalQuestion& q) {
      return (!filter.tasks.empty() && !holds(filter.tasks, q.task)) || holds(filter.without_tasks, q.task);
    });
    if (!kept.questions.empty()) out.push_back(std::move(kept));
  }
  if (out.empty())
    return Status::invalid_argument("no question is left: --lengths, --documents, --tasks and --without-tasks exclude each other");
  return out;
}

}  // namespace fovea
