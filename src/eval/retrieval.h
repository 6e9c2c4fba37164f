// Retrieval sets: documents with planted facts and questions about them; and their scores by method, budget, length and task.
//
// A set is JSON lines: {id, approx_tokens, document, questions: [{id, task, depth, question, answer}]}. A document is
// prefilled once, its questions fork it; question and answer tokens go through the decode method. A reply is right if it
// equals `answer` and stops there.
#pragma once

#include <fovea/engine.h>

#include <functional>
#include <string>
#include <vector>

namespace fovea {

struct RetrievalQuestion {
  std::string id, task, question, answer;
  double depth = 0;  // share of the document before the fact
};

struct RetrievalDocument {
  std::string id;
  int64_t approx_tokens = 0;
  std::string document;
  std::vector<RetrievalQuestion> questions;
};

// Errors name file, line and field.
Result<std::vector<RetrievalDocument>> load_retrieval_set(const std::string& path);
Result<std::vector<RetrievalDocument>> parse_retrieval_set(const std::string& text, const std::string& name);

struct RetrievalRun {
  std::string method;
  int32_t budget_tokens = 0;  // 0: the method's own (dense: none)
};

// One cell of the table; task "all" sums the others.
struct RetrievalRow {
  std::string method;
  int32_t budget_tokens = 0;
  int64_t length = 0;  // approx_tokens of its documents
  std::string task;
  int64_t right = 0;
  int64_t total = 0;
  int64_t bytes_read = 0;   // K, V and summaries of question and answer steps
  int64_t bytes_dense = 0;  // what dense attention would have read for them
  double kv_bytes_share() const { return bytes_dense == 0 ? 1.0 : double(bytes_read) / double(bytes_dense); }
};

struct RetrievalProgress {
  size_t document = 0, documents = 0;
  const RetrievalDocument* what = nullptr;
  int64_t prefilled = 0, tokens = 0;  // of this document
};

struct RetrievalOptions {
  std::vector<RetrievalRun> runs;
  std::vector<int64_t> lengths;  // empty: all
  int32_t max_tokens = 48;       // of an answer: longer than any right one
  std::function<void(const RetrievalProgress&)> progress;
  // Told of every reply (may be null).
  std::function<void(const RetrievalDocument&, const RetrievalQuestion&, const RetrievalRun&, const std::string& reply, bool right)> reply;
};

// Rows ordered by length, run, task ("all" first). Every document is prefilled once for all runs.
Result<std::vector<RetrievalRow>> run_retrieval(Engine& engine, const std::vector<RetrievalDocument>& set,
                                                const RetrievalOptions& options);

// The table for people.
std::string retrieval_table(const std::vector<RetrievalRow>& rows);

}  // namespace fovea
