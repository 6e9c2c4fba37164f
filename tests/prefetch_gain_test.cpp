// What reading ahead gains on a slow disk: the same questions on demand, with guesses, and with overlap, over a store whose disk
// takes 1 ms for a read and gives 10,000 a second. Prefetch on demand and with guesses must not change a token. Prints a table;
// FOVEA_PREFETCH_GAIN=TOKENS makes the document so long (docs/offload.md has the result).
#include "engine_test_util.h"

#include "kv/extent_cache.h"
#include "store/fault_fs.h"
#include "store/store_test_util.h"

namespace fovea::testing {
namespace {

struct Answered {
  std::vector<TokenId> tokens;
  RequestStats stats;  // of all questions together
};

Answered answer(const std::string& dir, FaultFs& fs, const std::string& method, int64_t document_tokens) {
  EngineOptions o = exact_options(tiny_gqa());
  o.device = "cpu";
  for (const char* label : {"demand", "guesses", "overlap"}) {
    MethodOptions m;
    m.name = "gsa_on_device", m.label = label;
    m.gsa.budget_tokens = document_tokens >= 8192 ? 512 : 128;
    m.gsa.prefetch = m.label != "demand";
    m.gsa.overlap = m.label == "overlap";
    o.methods.push_back(m);
  }
  o.decode_method = method;
  o.max_model_len = document_tokens + 128;
  o.max_num_seqs = 1;
  o.kv_offload = OffloadChoice::on;
  // Columns for an eighth of the blocks; beside them staging for one head, codes, tables.
  const int64_t columns = std::max<int64_t>(o.max_model_len / 16 / 8, 24);
  o.kv_cache_memory_bytes = columns * 16 * 12 * 512 + o.max_model_len * (512 + 12 * 16) + (int64_t{1} << 20);
  EngineParts parts;
  parts.store = FileStore::open({.options = {.dir = dir}, .fs = &fs}).value();
  EngineImpl engine(std::move(o), std::move(parts));
  const Status made = engine.init();
  EXPECT_TRUE(made.ok()) << made.message();
  Request document = greedy(random_prompt(7, document_tokens, engine.model().vocab_size), 0);
  document.hold = true;
  const auto held = engine.submit(document);
  run_all(engine);
  fs.throttle(0.001, 10000);
  Answered run;
  for (uint64_t i = 0; i < 4; ++i) {
    Request question = greedy(random_prompt(50 + i, 12, engine.model().vocab_size), 24);
    question.fork_of = *held;
    const Result1 r = run_one(engine, question);
    EXPECT_EQ(r.reason, FinishReason::length) << r.error.message();
    run.tokens.insert(run.tokens.end(), r.tokens.begin(), r.tokens.end());
    run.stats.decode_s += r.stats.decode_s;
    run.stats.output_tokens += r.stats.output_tokens - 1;
    run.stats.offload_hits += r.stats.offload_hits;
    run.stats.offload_misses += r.stats.offload_misses;
    run.stats.prefetch.hits += r.stats.prefetch.hits;
    run.stats.prefetch.late += r.stats.prefetch.late;
    run.stats.prefetch.wasted += r.stats.prefetch.wasted;
  }
  fs.throttle(0, 0);
  return run;
}

TEST(PrefetchGain, NoTokenChangesAndTheTableIsPrinted) {
  const char* asked = std::getenv("FOVEA_PREFETCH_GAIN");
  const int64_t tokens = asked ? std::atoll(asked) : 1024;
  const TempDir dir;
  FaultFs fs(posix_file_system());
  std::map<std::string, Answered> runs;
  for (const char* method : {"demand", "guesses", "overlap"}) {
    runs[method] = answer(dir.path(), fs, method, tokens);
    const RequestStats& s = runs[method].stats;
    std::printf("%-8s %6.1f ms a token, %lld of %lld looked up absent, prefetch: %lld hits, %lld late, %lld wasted\n", method,
                1e3 * s.decode_s / static_cast<double>(s.output_tokens), static_cast<long long>(s.offload_misses),
                static_cast<long long>(s.offload_hits + s.offload_misses), static_cast<long long>(s.prefetch.hits),
                static_cast<long long>(s.prefetch.late), static_cast<long long>(s.prefetch.wasted));
  }
  EXPECT_EQ(runs["guesses"].tokens, runs["demand"].tokens);
}

}  // namespace
}  // namespace fovea::testing
