// Answers of two methods side by side on one document, with what the sparse one read.
#pragma once

#include "eval/document_session.h"
#include "eval/reading_map.h"
#include "eval/retrieval_set.h"

namespace fovea {

// Where a question's fact lies in the held tokens; first_block -1: nowhere.
struct FactPlace {
  std::string text;
  int32_t first_block = -1, last_block = -1;
};
Result<FactPlace> find_fact(const Engine& engine, const DocumentSession& session, const RetrievalDocument& document,
                            const RetrievalQuestion& question);

// Asks one question through `method` and records every answer token's reads.
Result<ReadingMap> trace_question(Engine& engine, DocumentSession& session, const RetrievalDocument& document,
                                  const RetrievalQuestion& question, const std::string& method, int32_t budget_tokens,
                                  const SamplingParams& sampling);

}  // namespace fovea
