// The engine's inside: requests, their text and their outputs. engine.cpp: making it, and what other threads may call;
// engine_step.cpp: the step; engine_repair.cpp: what a store lost; engine_requests.cpp: how requests begin and end. What a device
// does is the runner's.
#pragma once

#include "base/check.h"
#include "base/clock.h"
#include "base/id_table.h"
#include "engine/column_spiller.h"
#include "engine/kv_store.h"
#include "engine/live_answer.h"
#include "engine/loaded_model.h"
#include "engine/scheduler.h"
#include "engine/token_choice.h"
#include "kv/block_manager.h"
#include "runner/runner.h"
#include "text/grammar/json_grammar.h"

#include <fovea/engine.h>

#include <array>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <unordered_map>
#include <vector>

namespace fovea {

// Refuses impossible options, naming flag and value.
Status check_options(const EngineOptions& options);

// What an engine is made of beside its options; null: by the options.
struct EngineParts : RunnerParts {
  std::shared_ptr<BlockStore> store;
  const Clock* clock = nullptr;  // outlives the engine
  double store_patience_s = KvStore::kPatienceS;
};

class EngineImpl final : public Engine {
 public:
  explicit EngineImpl(EngineOptions options, EngineParts parts = {})
      : options_(std::move(options)), parts_(std::move(parts)), clock_(parts_.clock ? *parts_.clock : own_clock_) {}
  ~EngineImpl() override;
  Status init();

  const ModelInfo& model() const override { return info_; }
  const EngineOptions& options() const override { return options_; }
  std::string backend() const override { return runner_->description(); }
  Result<std::vector<TokenId>> tokenize(std::string_view text) const override;
  std::string detokenize(std::span<const TokenId> tokens) const override;
  std::string token_bytes(TokenId token) const override;
  Result<std::shared_ptr<const TokenGrammar>> json_grammar(std::string_view schema) const override;
  Result<std::string> apply_chat_template(const ChatInput& input) const override;
  Result<RequestId> submit(Request request) override;
  void abort(RequestId id) override;
  void release(RequestId id) override;
  Result<bool> step(std::vector<Output>* outputs) override;
  bool wait_for_work(double timeout_s) override;
  void wake() override;
  EngineStats stats() const override;
  KvMemory kv_memory() const override;
  void flush_store() override;
  int64_t computed_tokens(RequestId id) const override;
  Result<SparseRequestState> request_state(RequestId id, int32_t index) const override;
  void set_trace(std::function<void(const SelectionTrace&)> callback) override { runner_->set_trace(std::move(callback)); }
  void set_logits_tap(std::function<void(RequestId, int32_t, std::span<const float>)> tap) override { tap_ = std::move(tap); }

  // For tests and benchmarks.
  const BlockManager& blocks() const { return *blocks_; }
  KvCache& kv() { return runner_->kv(); }
  const CachePlan& cache_plan() const { return runner_->cache_plan(); }
  Device& device() { return runner_->device(); }
  // Steps of prefill rows alone write random keys and values and compute nothing. Only where no other engine finds such blocks:
  // without prefix caching, or with a salt of its own.
  void simulate_prefill(bool on) {
    FOVEA_CHECK(!on || !options_.enable_prefix_caching || !options_.tenant_salt.empty());
    runner_->simulate_prefill(on);
  }

 private:
  struct Pending {
    RequestId id;
    Request request;
    double submitted_s;
  };
  struct LiveRequest {
    std::vector<SequenceId> answers;
    int32_t unfinished = 0;
    int32_t prefill_method = 0;
    std::string cache_salt;
    std::shared_ptr<BlockHasher> hasher;
  };
  struct Retired {
    SequenceId id;
    std::shared_ptr<BlockHasher> hasher;
  };
  // What other threads ask of a request, and may ask about it.
  struct Known {
    int64_t computed_tokens = 0;
    bool aborted = false, released = false;
  };

  std::shared_ptr<BlockHasher> hasher_of(int32_t prefill_method, const std::string& cache_salt);
  Status check_method(const char* field, const std::string& label, bool prefill) const;
  Status check_tokens(const char* field, std::span<const TokenId> tokens) const;
  Status check_request(const Request& request) const;
  Method* method_of(int32_t index) const { return runner_->methods()[static_cast<size_t>(index)].method.get(); }

  Status open_store();

  // A step.
  void take_inbox(std::vector<Output>* outputs);
  void end_loads();
  void wait_for_io();
  void report(const StepPlan& plan, std::vector<Output>* outputs);
  Launched launch(const StepPlan& plan);
  void note_scheduled(const StepPlan& plan);
  void note_first_scheduled(LiveAnswer& a, int64_t cached_tokens, int64_t loaded_tokens);
  void note_prefill(const StepPlan& plan, double seconds);
  void add_to_input(const ScheduledRows& rows);
  bool may_run_ahead(const StepPlan& plan) const;
  void commit_unread(const StepPlan& plan);
  Status read_step_before(std::vector<Output>* outputs);
  void finish_step(std::vector<Output>* outputs);
  void fail_step(const Status& why, bool moves_failed, std::vector<Output>* outputs);
  void add_reads(const StepResult& result);
  void publish_stats();

  // What a store lost: engine_repair.cpp.
  struct LostBlocks {
    SequenceId seq;
    int64_t first;  // in its table
    std::vector<BlockId> blocks;
  };
  void repair(const StepPlan& plan, const Status& why, std::vector<Output>* outputs);
  std::optional<LostBlocks> first_lost(const StepPlan& plan, const std::set<int32_t>& lost) const;
  Status compute_again(const LostBlocks& run);
  Status store_again(const LostBlocks& run);
  void give_up_unstored();
  void replay_holders(const StepPlan& plan, BlockId block, const Status& why, std::vector<Output>* outputs);
  void fail_holders(const StepPlan& plan, BlockId block, const Status& why, std::vector<Output>* outputs);

  // Which token of an answer comes of a step's row, and what is told of it.
  struct Choice {
    TokenId token = 0;
    std::optional<TokenLogprobs> logprobs;
    Status error;  // this answer's own
  };
  Status choose_tokens(const StepResult& result);
  void choose(LiveAnswer& answer, std::span<const float> logits, Choice* choice);
  void score_prompt(LiveAnswer& answer, int64_t first_position, std::span<const float> logits) const;

  // Requests and their answers.
  void admit(Pending pending, std::vector<Output>* outputs);
  Status check_fork(const Pending& pending, SequenceSpec* spec, LiveRequest* live) const;
  void retire(LiveRequest request);
  SequenceId new_sequence_id();
  Status check_columns(const RequestMethods& methods, int64_t context) const;
  RequestMethods methods_of(int32_t decode, int32_t prefill, int32_t budget_tokens) const;
  void begin_answer(const Pending& pending, const SequenceSpec& spec, int32_t index, int64_t prompt_tokens);
  void abort_now(RequestId id, std::vector<Output>* outputs);
  void release_now(RequestId id);
  void take_token(LiveAnswer& answer, Choice choice, std::vector<Output>* outputs);
  void finish(LiveAnswer& answer, FinishReason reason, Status error, Output* out);
  void end_answer(SequenceId id, FinishReason reason, const Status& error, std::vector<Output>* outputs);
  void forget_rows(const LiveAnswer& answer);
  void forget(SequenceId id);
  void forget_request(RequestId id);
  LiveAnswer* find(SequenceId id) const;  // null: it is over

  EngineOptions options_;
  EngineParts parts_;  // until init()
  ModelInfo info_;
  const Clock own_clock_;
  const Clock& clock_;
  std::unique_ptr<LoadedModel> model_;
  std::unique_ptr<JsonGrammars> grammars_;  // null: no tokenizer
  std::unique_ptr<Runner> runner_;
  std::unique_ptr<BlockManager> blocks_;
  std::map<std::pair<std::string, std::string>, std::shared_ptr<BlockHasher>> hashers_;  // by lineage and salt
  std::unique_ptr<KvStore> store_;                                                       // null: none
  // What the runner's extents are read through: one of them, or none where every block has its column.
  std::unique_ptr<ExtentSource> extent_source_;
  std::unique_ptr<StripReader> strip_reader_;
  std::unique_ptr<Prefetcher> prefetcher_;
  std::unique_ptr<ColumnSpiller> spiller_;  // of a device's pool with host memory below it that holds all blocks
  std::unique_ptr<Scheduler> scheduler_;

  // Owned by the stepping thread.
  IdPool<SequenceId> sequence_ids_;
  std::vector<Retired> retired_;  // of requests that are over
  IdTable<SequenceId, std::unique_ptr<LiveAnswer>> answers_;
  std::unordered_map<RequestId, LiveRequest> requests_;
  StepInput input_;
  std::vector<SequenceId> unread_;  // what the step in flight samples: its rows are committed, its tokens not read
  std::vector<Sampled> sampled_;
  std::unique_ptr<TokenChooser> chooser_;
  std::vector<Choice> choices_;  // of the step that is read: [its tokens]
  int64_t steps_ = 0;
  int64_t loaded_bytes_ = 0;
  double load_s_ = 0;
  std::unordered_map<BlockId, int> repairs_;  // since a step succeeded
  std::vector<BlockId> stored_again_;         // given to the store, which may refuse them
  int64_t repaired_blocks_ = 0;
  int64_t generation_tokens_ = 0;
  std::array<int64_t, 5> finished_{};  // by FinishReason
  std::function<void(RequestId, int32_t, std::span<const float>)> tap_;

  mutable std::mutex step_mutex_;  // held while a step runs: kv_memory() sees what lies between two

  mutable std::mutex mutex_;  // guards what follows: other threads submit, abort and ask
  std::vector<Pending> inbox_;
  std::vector<RequestId> aborts_, releases_;    // of known requests, each once
  std::unordered_map<RequestId, Known> known_;  // from submit until they are over
  uint64_t next_request_ = 1;
  EngineStats stats_;  // after the last step, without the inbox
  bool woken_ = false;
  std::condition_variable arrived_;  // something did, or wake() was called
};

}  // namespace fovea
