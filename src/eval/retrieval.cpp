#include "eval/retrieval.h"

#include "eval/document_session.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <sstream>
#include <tuple>

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
  const Json json = Json::parse(line, nullptr, false);
  if (!json.is_object()) return Status::invalid_argument(where + ": not a JSON object");
  RetrievalDocument d;
  FOVEA_TRY(read(json, "id", where, &d.id));
  if (const auto tokens = json.find("approx_tokens"); tokens != json.end() && !tokens->is_number_unsigned())
    return Status::invalid_argument(where + ": approx_tokens has the wrong type, not a whole number: " + tokens->dump().substr(0, 60));
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
    FOVEA_TRY(read(q, "answer", where, &out.answer));
    // A question about a record that is absent has no place in the document.
    if (const auto depth = q.find("depth"); depth != q.end() && depth->is_number()) out.depth = depth->get<double>();
    d.questions.push_back(std::move(out));
  }
  return d;
}

class Table {
 public:
  explicit Table(const std::vector<RetrievalRun>& runs) : runs_(runs) {}

  void add(int64_t length, size_t run, const std::string& task, bool right, const RequestStats& s) {
    for (const std::string& t : {std::string("all"), task}) {
      RetrievalRow& row = rows_[{length, run, t == "all" ? std::string() : t}];
      row.method = runs_[run].method;
      row.budget_tokens = runs_[run].budget_tokens;
      row.length = length;
      row.task = t;
      row.right += right;
      ++row.total;
      row.bytes_read += s.kv_bytes_read + s.summary_bytes_read;
      row.bytes_dense += s.kv_bytes_dense;
    }
  }
  std::vector<RetrievalRow> rows() const {
    std::vector<RetrievalRow> out;
    for (const auto& [key, row] : rows_) out.push_back(row);
    return out;
  }

 private:
  const std::vector<RetrievalRun>& runs_;
  std::map<std::tuple<int64_t, size_t, std::string>, RetrievalRow> rows_;  // "" sorts first: task all
};

Status run_document(Engine& engine, const RetrievalDocument& d, const RetrievalOptions& o, RetrievalProgress progress, Table* table) {
  progress.what = &d;
  const auto report = [&](int64_t done, int64_t total) {
    progress.prefilled = done;
    progress.tokens = total;
    if (o.progress) o.progress(progress);
  };
  FOVEA_ASSIGN(const std::unique_ptr<DocumentSession> session, DocumentSession::open(engine, d.document, report));
  SamplingParams sampling;
  sampling.max_tokens = o.max_tokens;
  for (size_t run = 0; run < o.runs.size(); ++run) {
    std::vector<Question> questions;
    for (const RetrievalQuestion& q : d.questions) questions.push_back({q.question, o.runs[run].method, o.runs[run].budget_tokens, false});
    FOVEA_ASSIGN(const std::vector<Answer> answers, session->ask(questions, sampling, nullptr));
    for (size_t i = 0; i < answers.size(); ++i) {
      FOVEA_TRY(answers[i].error);
      const bool right = answers[i].text == d.questions[i].answer && answers[i].reason == FinishReason::stop;
      table->add(d.approx_tokens, run, d.questions[i].task, right, answers[i].stats);
      if (o.reply) o.reply(d, d.questions[i], o.runs[run], answers[i].text, right);
    }
  }
  return {};
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

Result<std::vector<RetrievalRow>> run_retrieval(Engine& engine, const std::vector<RetrievalDocument>& set,
                                                const RetrievalOptions& options) {
  std::vector<const RetrievalDocument*> wanted;
  for (const RetrievalDocument& d : set) {
    const bool in = options.lengths.empty() ||
                    std::find(options.lengths.begin(), options.lengths.end(), d.approx_tokens) != options.lengths.end();
    if (in) wanted.push_back(&d);
  }
  if (wanted.empty()) return Status::invalid_argument("--lengths: the set has no document of these lengths");
  Table table(options.runs);
  RetrievalProgress progress;
  progress.documents = wanted.size();
  for (const RetrievalDocument* d : wanted) {
    if (Status s = run_document(engine, *d, options, progress, &table); !s.ok()) return s.with_context("document " + d->id);
    ++progress.document;
  }
  return table.rows();
}

std::string retrieval_table(const std::vector<RetrievalRow>& rows) {
  std::vector<std::string> tasks;
  for (const RetrievalRow& r : rows) {
    if (r.task != "all" && std::find(tasks.begin(), tasks.end(), r.task) == tasks.end()) tasks.push_back(r.task);
  }
  std::map<std::tuple<int64_t, std::string, int32_t>, std::map<std::string, const RetrievalRow*>> lines;
  std::vector<std::tuple<int64_t, std::string, int32_t>> order;
  for (const RetrievalRow& r : rows) {
    const auto key = std::make_tuple(r.length, r.method, r.budget_tokens);
    if (!lines.contains(key)) order.push_back(key);
    lines[key][r.task] = &r;
  }
  char cell[128];
  std::snprintf(cell, sizeof(cell), "%8s  %-16s %7s  %8s %7s %7s", "tokens", "method", "budget", "KV bytes", "exact", "all");
  std::string out = cell;
  for (const std::string& t : tasks) {
    std::snprintf(cell, sizeof(cell), " %9s", t.c_str());
    out += cell;
  }
  out += "\n";
  for (const auto& key : order) {
    const RetrievalRow& all = *lines[key].at("all");
    const std::string budget = all.budget_tokens ? std::to_string(all.budget_tokens) : "-";
    std::snprintf(cell, sizeof(cell), "%8lld  %-16s %7s  %6.1f %% %7.3f %3lld/%-3lld", static_cast<long long>(all.length), all.method.c_str(),
                  budget.c_str(), 100 * all.kv_bytes_share(), double(all.right) / double(all.total), static_cast<long long>(all.right),
                  static_cast<long long>(all.total));
    out += cell;
    for (const std::string& t : tasks) {
      const auto it = lines[key].find(t);
      const std::string score = it == lines[key].end() ? "-" : std::to_string(it->second->right) + "/" + std::to_string(it->second->total);
      std::snprintf(cell, sizeof(cell), " %9s", score.c_str());
      out += cell;
    }
    out += "\n";
  }
  return out;
}

}  // namespace fovea
