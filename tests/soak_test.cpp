// A seeded soak: random arrivals, forks, n answers, aborts and releases in a pool too small for them. Every request that
// runs to its end gives the greedy ids that it gives alone, and in the end no block is in use.
#include "engine_test_util.h"

#include "engine/engine_impl.h"

#include <random>

namespace fovea::testing {
namespace {

constexpr int kArrivals = kSanitized ? 150 : 1000;
constexpr int kPrompts = 20;
constexpr int kSuffixes = 6;
constexpr int32_t kMaxTokens = 24;

constexpr const char* kDenseModel = "qwen3_llama3_8h2kv_d64";

EngineOptions soak_options(bool sparse, const std::string& checkpoint) {
  EngineOptions o = exact_options(tiny_checkpoint(checkpoint));
  o.max_model_len = 512;
  o.max_num_batched_tokens = 96;
  o.max_num_seqs = 12;
  if (sparse) {
    MethodOptions m;
    m.name = "gsa_on_device";
    m.gsa.budget_tokens = 64;
    o.methods = {m};
    o.decode_method = "gsa_on_device";
    o.sparse_min_context = 80;
  }
  return o;
}

class Soak {
 public:
  Soak(bool sparse, uint32_t seed, const std::string& checkpoint = kDenseModel) : rng_(seed) {
    alone_ = make_engine(soak_options(sparse, checkpoint));
    for (int i = 0; i < kPrompts; ++i) prompts_.push_back(random_prompt(500 + i, 5 + rng_() % 200, alone_->model().vocab_size));
    for (int i = 0; i < kSuffixes; ++i) suffixes_.push_back(random_prompt(900 + i, 1 + rng_() % 20, alone_->model().vocab_size));
    EngineOptions o = soak_options(sparse, checkpoint);
    o.kv_cache_memory_bytes =
        alone_->stats().block_bytes * (sparse ? 32 : 26);  // some 450 tokens for up to 12 sequences of up to 250
    engine_ = make_engine(o);
  }

  void run() {
    for (int arrived = 0; arrived < kArrivals;) {
      const int burst = static_cast<int>(rng_() % 4);
      for (int i = 0; i < burst && arrived < kArrivals; ++i, ++arrived) arrive();
      if (rng_() % 8 == 0 && !live_.empty()) abort_one();
      if (rng_() % 10 == 0 && !held_.empty()) release_one();
      step();
      check();
      if (::testing::Test::HasFatalFailure()) return;
    }
    while (!held_.empty()) release_one();
    for (int i = 0; i < 20000 && !live_.empty(); ++i) step();
    EXPECT_TRUE(live_.empty());
    while (!held_.empty()) release_one();  // documents that were read only now
    for (int i = 0; i < 3; ++i) step();
    EXPECT_EQ(engine_->stats().blocks_in_use, 0);
    EXPECT_EQ(engine_->stats().swapped_bytes, 0);
    check();
    std::printf("%d finished, %d aborted, %d refused, %lld preemptions\n", finished_, aborted_, refused_,
                static_cast<long long>(engine_->stats().preemptions));
    EXPECT_GT(finished_, kArrivals / 2);
    EXPECT_GT(engine_->stats().preemptions, kArrivals / 100);  // the pool is short indeed: how often is a matter of the device's pace
  }

 private:
  struct Live {
    int prompt;
    int suffix;  // -1: no fork
    int32_t max_tokens;
    bool hold;
    int32_t open;  // answers still running
    std::map<int32_t, std::vector<TokenId>> tokens;
  };

  void arrive() {
    Live l{static_cast<int>(rng_() % kPrompts), -1, static_cast<int32_t>(1 + rng_() % kMaxTokens), false, 1, {}};
    Request r;
    const bool fork = !held_.empty() && rng_() % 3 == 0;
    if (fork) {
      const auto& [id, prompt] = held_[rng_() % held_.size()];
      l.prompt = prompt;
      l.suffix = static_cast<int>(rng_() % kSuffixes);
      r = greedy(suffixes_[l.suffix], l.max_tokens);
      r.fork_of = id;
    } else if (held_.size() + holding_ < 2 && rng_() % 4 == 0) {
      l.max_tokens = 0;
      l.hold = true;
      r = greedy(prompts_[l.prompt], 0);
      r.hold = true;
      ++holding_;
    } else {
      r = greedy(prompts_[l.prompt], l.max_tokens);
      if (rng_() % 6 == 0) r.sampling.n = l.open = 2 + static_cast<int32_t>(rng_() % 2);
    }
    r.fairness_key = std::string(1, static_cast<char>('a' + rng_() % 3));
    auto id = engine_->submit(r);
    ASSERT_TRUE(id.ok()) << id.status().message();
    live_.emplace(*id, l);
  }

  void abort_one() {
    auto it = live_.begin();
    std::advance(it, rng_() % live_.size());
    engine_->abort(it->first);
    if (rng_() % 4 == 0) engine_->abort(it->first);  // idempotent
  }

  void release_one() {
    const size_t i = rng_() % held_.size();
    engine_->release(held_[i].first);
    held_.erase(held_.begin() + static_cast<int64_t>(i));
  }

  void step() {
    std::vector<Output> outputs;
    auto more = engine_->step(&outputs);
    ASSERT_TRUE(more.ok()) << more.status().message();
    for (const Output& o : outputs) take(o);
  }

  void take(const Output& o) {
    const auto it = live_.find(o.request);
    ASSERT_NE(it, live_.end());
    Live& l = it->second;
    auto& tokens = l.tokens[o.index];
    tokens.insert(tokens.end(), o.tokens.begin(), o.tokens.end());
    if (!o.finished) return;
    switch (o.reason) {
      case FinishReason::aborted:
        ++aborted_;
        break;
      case FinishReason::failed:  // a fork whose parent was released, or no room beside the held documents
        EXPECT_TRUE(o.error.code() == StatusCode::not_found || o.error.code() == StatusCode::resource_exhausted)
            << o.error.message();
        ++refused_;
        break;
      default:
        ++finished_;
        EXPECT_EQ(tokens, alone(l)) << "prompt " << l.prompt << " suffix " << l.suffix;
    }
    if (--l.open > 0) return;
    if (l.hold) {
      --holding_;
      if (o.reason == FinishReason::length) held_.emplace_back(o.request, l.prompt);
    }
    live_.erase(it);
  }

  // What the request says with the engine to itself.
  std::vector<TokenId> alone(const Live& l) {
    auto& known = alone_tokens_[{l.prompt, l.suffix}];
    if (known.empty()) {
      Request r = greedy(prompts_[l.prompt], kMaxTokens);
      std::optional<RequestId> parent;
      if (l.suffix >= 0) {
        Request doc = greedy(prompts_[l.prompt], 0);
        doc.hold = true;
        parent = *alone_->submit(doc);
        run_all(*alone_);
        r = greedy(suffixes_[l.suffix], kMaxTokens);
        r.fork_of = parent;
      }
      known = run_one(*alone_, r).tokens;
      if (parent) alone_->release(*parent);
    }
    return {known.begin(), known.begin() + l.max_tokens};
  }

  void check() {
    const Status s = dynamic_cast<EngineImpl&>(*engine_).blocks().check_consistency();
    ASSERT_TRUE(s.ok()) << s.message();
  }

  std::mt19937 rng_;
  std::unique_ptr<Engine> alone_, engine_;
  std::vector<std::vector<TokenId>> prompts_, suffixes_;
  std::map<std::pair<int, int>, std::vector<TokenId>> alone_tokens_;
  std::map<RequestId, Live> live_;
  std::vector<std::pair<RequestId, int>> held_;
  size_t holding_ = 0;
  int finished_ = 0, aborted_ = 0, refused_ = 0;
};

TEST(Soak, DenseWithPrefixCache) { Soak(false, 1).run(); }
TEST(Soak, SparseWithSwap) { Soak(true, 2).run(); }
TEST(Soak, TrainedChoiceWithPrefixCache) { Soak(false, 3, "deepseek_groups").run(); }

}  // namespace
}  // namespace fovea::testing
