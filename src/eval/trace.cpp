#include "eval/trace.h"

#include <algorithm>

namespace fovea {
namespace {

// The sentence that was planted for a question: the answer itself, or the first of a hop's two.
std::string planted(const RetrievalQuestion& q) {
  if (q.task == "absent") return {};
  if (q.task != "hop") return q.answer;
  // "A equals B, and B is V." was planted as "Let A equal B."
  const size_t equals = q.answer.find(" equals "), comma = q.answer.find(", and ");
  if (equals == std::string::npos || comma == std::string::npos || comma < equals) return {};
  return "Let " + q.answer.substr(0, equals) + " equal " + q.answer.substr(equals + 8, comma - equals - 8) + ".";
}

}  // namespace

Result<FactPlace> find_fact(const Engine& engine, const DocumentSession& session, const RetrievalDocument& document,
                            const RetrievalQuestion& question) {
  FactPlace place;
  place.text = planted(question);
  const size_t at = place.text.empty() ? std::string::npos : document.document.find(place.text);
  if (at == std::string::npos) return FactPlace{};
  const std::string_view text = document.document;
  FOVEA_ASSIGN(const std::vector<TokenId> whole, engine.tokenize(text));
  FOVEA_ASSIGN(const std::vector<TokenId> before, engine.tokenize(text.substr(0, at)));
  FOVEA_ASSIGN(const std::vector<TokenId> until, engine.tokenize(text.substr(0, at + place.text.size())));
  // What the chat template puts before the document shifts everything.
  const int64_t shift = std::max<int64_t>(0, session.document_tokens() - static_cast<int64_t>(whole.size()));
  const int32_t bs = engine.options().block_size;
  place.first_block = static_cast<int32_t>((static_cast<int64_t>(before.size()) + shift) / bs);
  place.last_block = static_cast<int32_t>((static_cast<int64_t>(until.size()) + shift - 1) / bs);
  return place;
}

Result<ReadingMap> trace_question(Engine& engine, DocumentSession& session, const RetrievalDocument& document,
                                  const RetrievalQuestion& question, const std::string& method, int32_t budget_tokens,
                                  const SamplingParams& sampling) {
  ReadingMap map;
  const ModelShape& shape = engine.model().shape;
  map.layers = shape.num_layers;
  map.kv_heads = shape.kv_heads;
  map.block_size = shape.block_size;
  ReadingMapBuilder builder(shape, &map);
  FOVEA_ASSIGN(const std::vector<Answer> answers, session.ask({{question.question, method, budget_tokens, true}}, sampling, nullptr,
                                                              [&](size_t, const SelectionTrace& t) { builder.on_selection(t); }));
  const Answer& a = answers[0];
  FOVEA_TRY(a.error);

  // The row at position P - 1 + i produced the answer's token i; the end token is not shown.
  const int64_t first = session.document_tokens() + static_cast<int64_t>(a.prompt.size()) - 1;
  std::vector<ReadingMap::Row> rows;
  for (ReadingMap::Row& r : map.rows) {
    const int64_t i = r.position - first;
    if (i < 0 || i >= static_cast<int64_t>(a.tokens.size())) continue;
    r.token = engine.detokenize({&a.tokens[i], 1});
    if (!r.token.empty()) rows.push_back(std::move(r));
  }
  map.rows = std::move(rows);
  map.question = question.question;
  map.answer = a.text;
  map.wanted = question.answer;
  map.right = a.text == question.answer && a.reason == FinishReason::stop;
  map.method = method + (budget_tokens ? ", budget " + std::to_string(budget_tokens) + " tokens" : "");
  map.stats = a.stats;
  FOVEA_ASSIGN(const FactPlace fact, find_fact(engine, session, document, question));
  map.fact = fact.text;
  map.fact_first_block = fact.first_block;
  map.fact_last_block = fact.last_block;
  return map;
}

}  // namespace fovea
