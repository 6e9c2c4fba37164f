#include "base/clock.h"
#include "bench/bench.h"
#include "bench/decode_run.h"

#include <cstdio>
#include <memory>
#include <random>

namespace fovea {
namespace {

constexpr int64_t kWarmTokens = 64;  // of a prompt that makes what is made on first use
constexpr int64_t kRoom = 256;       // tokens beside a document, its question and the answer

// A document that was read and a question that was asked about it, by one process.
struct FirstAnswer {
  double document_s = 0, question_s = 0;  // until the document was held; from there to the first token
  RequestStats document;
  std::vector<TokenId> tokens;
};

// Until the request is over; *first_s: when its first token came.
Result<RequestStats> finish(Engine& engine, RequestId id, const Clock& clock, double* first_s, std::vector<TokenId>* tokens) {
  std::vector<Output> outputs;
  for (bool more = true; more;) {
    outputs.clear();
    FOVEA_ASSIGN(more, engine.step(&outputs));
    for (const Output& out : outputs) {
      if (!(out.request == id)) continue;
      FOVEA_TRY(out.error);
      if (tokens->empty() && !out.tokens.empty()) *first_s = clock.now_s();
      tokens->insert(tokens->end(), out.tokens.begin(), out.tokens.end());
      if (out.finished) return out.stats;
    }
  }
  return Status::internal("the engine stopped before the request was done");
}

Result<FirstAnswer> answer_once(const RestartBenchOptions& o, const EngineOptions& options, int64_t depth, std::string* backend) {
  EngineImpl engine(options);
  FOVEA_TRY(engine.init());
  *backend = engine.backend();
  const Clock clock;
  const int32_t vocab = engine.model().vocab_size;
  FirstAnswer out;
  double first_s = 0;
  Request warm;
  warm.prompt = some_tokens(kWarmTokens, vocab, 3);
  warm.sampling.max_tokens = 2;
  FOVEA_ASSIGN(const RequestId warmed, engine.submit(std::move(warm)));
  std::vector<TokenId> ignored;
  FOVEA_TRY(finish(engine, warmed, clock, &first_s, &ignored).status());

  const double begun_s = clock.now_s();
  Request document;
  document.prompt = some_tokens(depth, vocab, 1);
  document.sampling.max_tokens = 0;
  document.hold = true;
  FOVEA_ASSIGN(const RequestId held, engine.submit(std::move(document)));
  FOVEA_ASSIGN(out.document, finish(engine, held, clock, &first_s, &out.tokens));
  const double read_s = clock.now_s();
  Request question;
  question.prompt = some_tokens(o.question_tokens, vocab, 2);
  question.fork_of = held;
  question.sampling.max_tokens = o.steps;
  question.sampling.ignore_eos = true;
  question.budget_tokens = o.budget_tokens;
  FOVEA_ASSIGN(const RequestId asked, engine.submit(std::move(question)));
  FOVEA_TRY(finish(engine, asked, clock, &first_s, &out.tokens).status());
  out.document_s = read_s - begun_s;
  out.question_s = first_s - read_s;
  engine.flush_store();
  return out;
}

std::string text(const char* format, double v) {
  char digits[64];
  std::snprintf(digits, sizeof digits, format, v);
  return digits;
}

Status measure_depth(const RestartBenchOptions& o, const EngineOptions& options, int64_t depth, Report* report) {
  std::string backend;
  FOVEA_ASSIGN(const FirstAnswer computed, answer_once(o, options, depth, &backend));
  const std::string at = std::to_string(depth) + " tokens";
  report->note(at + ": " + backend);
  const double computed_s = computed.document_s + computed.question_s;
  report->note(at + ": computed, the document in " + text("%.0f ms", 1000 * computed.document_s) +
               ", the question's first token after " + text("%.0f ms", 1000 * computed.question_s) + " more");
  // The second finds in the page cache what the first has read, where a kernel has meanwhile dropped what was written.
  for (const char* restart : {"a restart", "another one"}) {
    FOVEA_ASSIGN(const FirstAnswer restarted, answer_once(o, options, depth, &backend));
    if (restarted.document.computed_tokens() > 0)
      return Status::internal(at + ": " + std::to_string(restarted.document.computed_tokens()) +
                              " of them were computed again: does --kv-store-size hold them?");
    const double restarted_s = restarted.document_s + restarted.question_s;
    const std::string what = "first token after " + std::string(restart) + ", " + at;
    report->add({what, 1000 * restarted_s, "ms", "computed", 1000 * computed_s, computed_s / restarted_s});
    const auto bytes = static_cast<double>(restarted.document.loaded_bytes);
    report->note(what + ": the document in " + text("%.0f ms", 1000 * restarted.document_s) + " (" + text("%.2f GB", bytes / 1e9) +
                 " from the store), the question's first token after " + text("%.0f ms", 1000 * restarted.question_s) + " more" +
                 (restarted.tokens == computed.tokens ? "; the same answer" : "; ANOTHER ANSWER"));
  }
  return {};
}

}  // namespace

Result<Report> bench_restart(const RestartBenchOptions& options) {
  RestartBenchOptions o = options;
  if (o.engine.kv_store.dir.empty())
    return Status::invalid_argument("bench restart needs --kv-store: a folder that outlives an engine");
  if (o.engine.kv_store.readonly) return Status::invalid_argument("--kv-store-readonly: bench restart writes what it then finds");
  Report report;
  for (const int64_t depth : o.depths) {
    if (depth < KvStore::kLeastTokens)
      return Status::invalid_argument("--depths " + std::to_string(depth) + ": at least " + std::to_string(KvStore::kLeastTokens));
    EngineOptions engine = o.engine;
    engine.max_model_len = depth + o.question_tokens + o.steps + kRoom;
    engine.tenant_salt = "bench " + std::to_string(std::random_device()());  // found by these engines alone
    FOVEA_TRY(measure_depth(o, engine, depth, &report));
  }
  return report;
}

}  // namespace fovea
