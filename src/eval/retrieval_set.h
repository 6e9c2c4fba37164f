// Retrieval sets: documents with planted facts and questions about them, and the part of a set that a run takes.
//
// A set is JSON lines: {id, approx_tokens, document, questions: [{id, task, depth, question, answer}]}. Without `answer` nobody
// knows what is right: such a question is judged by agreement alone.
#pragma once

#include <fovea/status.h>

#include <cstdint>
#include <string>
#include <vector>

namespace fovea {

struct RetrievalQuestion {
  std::string id, task, question, answer;  // answer empty: not known
  double depth = 0;                        // share of the document before the fact
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

// What is taken of a set; an empty list takes all.
struct RetrievalFilter {
  std::vector<int64_t> lengths;  // approx_tokens
  std::vector<std::string> ids;  // of documents
  int64_t documents = 0;         // at most so many of each length, in the set's order; 0: all
  std::vector<std::string> tasks;
  std::vector<std::string> without_tasks;
};

// Documents in the set's order; those that no question is left of are dropped. Errors name the flag whose value the set does
// not have, and the case that nothing is left.
Result<std::vector<RetrievalDocument>> filter_retrieval_set(const std::vector<RetrievalDocument>& set,
                                                            const RetrievalFilter& filter);

}  // namespace fovea
