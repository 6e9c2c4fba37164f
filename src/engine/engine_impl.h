// The engine's inside. engine.cpp: making it and taking requests; engine_step.cpp: the step.
#pragma once

#include "base/arena.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/thread_pool.h"
#include "device/device.h"
#include "device/step_memory.h"
#include "engine/batch.h"
#include "engine/loaded_model.h"
#include "engine/read_counter.h"
#include "engine/sample_batch.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"
#include "kernels/cpu/cpu_ops.h"
#include "kv/block_manager.h"
#include "kv/kv_cache.h"

#include <fovea/engine.h>

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace fovea {

// Refuses impossible options, naming flag and value.
Status check_options(const EngineOptions& options);
// Bytes the system could give now.
int64_t available_memory();

// What an engine is made of beside its options; null: by the options. Tests put in what fails.
struct EngineParts {
  std::unique_ptr<Device> device;
  std::function<std::unique_ptr<Ops>(Device&)> make_ops;
  std::function<Result<std::unique_ptr<Method>>(const MethodOptions&)> make_method;
};

class EngineImpl final : public Engine {
 public:
  explicit EngineImpl(EngineOptions options, EngineParts parts = {}) : options_(std::move(options)), parts_(std::move(parts)) {}
  ~EngineImpl() override;
  Status init();

  const ModelInfo& model() const override { return info_; }
  const EngineOptions& options() const override { return options_; }
  std::string backend() const override;
  Result<std::vector<TokenId>> tokenize(std::string_view text) const override;
  std::string detokenize(std::span<const TokenId> tokens) const override;
  Result<std::string> apply_chat_template(std::span<const ChatMessage> messages, bool add_generation_prompt) const override;
  Result<RequestId> submit(Request request) override;
  void abort(RequestId id) override;
  void release(RequestId id) override;
  Result<bool> step(std::vector<Output>* outputs) override;
  EngineStats stats() const override;
  int64_t computed_tokens(RequestId id) const override;
  Result<SparseRequestState> request_state(RequestId id, int32_t index) const override;
  void set_trace(std::function<void(const SelectionTrace&)> callback) override { counter_->set_trace(std::move(callback)); }
  void set_logits_tap(std::function<void(RequestId, int32_t, std::span<const float>)> tap) override { tap_ = std::move(tap); }

  // For tests and benchmarks.
  const BlockManager& blocks() const { return *blocks_; }
  KvCache& kv() { return *kv_; }
  Device& device() { return *device_; }
  // Steps of prefill rows alone write random keys and values and compute nothing. Only without prefix caching: such blocks
  // must never be published.
  void simulate_prefill(bool on) {
    FOVEA_CHECK(!on || !options_.enable_prefix_caching);
    simulate_prefill_ = on;
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
    bool hold = false;
  };

  // A step that was launched, until its tokens are read.
  struct Flight {
    std::vector<SampleTarget> targets;
    std::vector<ReadCounter::Row> reads;
    bool pure_decode = false;
    Buffer tokens;     // pinned: int32 [sampled rows]
    Buffer keys_read;  // pinned: int64 [rows]
    std::unique_ptr<Event> done;
  };

  // Making it.
  Status make_device();
  Status make_transformer();
  Status make_methods();
  Status make_cache();
  Status make_ops();
  Status prepare_ops();
  Status make_step_buffers();
  int32_t max_rows() const;    // of a step, padding included
  int32_t max_logits() const;  // rows of logits, likewise
  Numerics numerics() const;
  Status add_method(const MethodOptions& options);
  Status resolve_default(const char* flag, std::string* label);
  int32_t method_index(const std::string& label) const;  // -1: not held
  BlockHasher* hasher_of(int32_t prefill_method);
  Status check_method(const char* what, const std::string& label, bool prefill) const;
  Status check_request(const Request& request) const;

  // A step: schedule, prepare, forward, sample, commit.
  void take_inbox(std::vector<Output>* outputs);
  void admit(Pending pending, std::vector<Output>* outputs);
  RequestMethods methods_of(int32_t decode, int32_t prefill, int32_t budget_tokens) const;
  void begin_answer(const Pending& pending, std::unique_ptr<Sequence> answer);
  void abort_now(RequestId id, std::vector<Output>* outputs);
  void release_now(RequestId id);
  void report_failed(const StepPlan& plan, std::vector<Output>* outputs);
  void note_scheduled(const StepPlan& plan);
  Status launch(const StepPlan& plan, Flight* flight);
  void fill_flight(Flight* flight);
  bool may_run_ahead(const Flight& flight) const;
  Status run_step();
  Status enqueue_step();
  Status wait_for(Flight& flight);
  TokenId sampled_token(const Flight& flight, size_t row) const;
  void land(Flight& flight, std::vector<Output>* outputs);
  void commit_unread(const Flight& flight);
  void land_late(Flight& flight, std::vector<Output>* outputs);
  void abandon(const Status& why, std::vector<Output>* outputs);
  void fail_step(const Status& why, bool moves_failed, std::vector<Output>* outputs);
  void fail_answer(SequenceId id, const Status& why, std::vector<Output>* outputs);
  Status tap_logits(const Flight& flight);
  void take_token(Sequence& seq, TokenId token, std::vector<Output>* outputs);
  void finish(Sequence& seq, FinishReason reason, Status error, Output* out);
  void forget(SequenceId id);

  EngineOptions options_;
  EngineParts parts_;
  ModelInfo info_;
  Clock clock_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<LoadedModel> model_;
  std::unique_ptr<PlacedWeights> weights_;
  std::unique_ptr<Transformer> transformer_;
  std::unique_ptr<StepMemory> staging_;
  std::vector<MethodEntry> methods_;  // [0] is dense
  Summaries summaries_;  // of all methods
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<Ops> ops_;
  CpuOps* cpu_ops_ = nullptr;  // ops_, where it is the CPU's
  std::unique_ptr<KvCache> kv_;
  std::unique_ptr<SwapArea> swap_;
  std::unique_ptr<BlockManager> blocks_;
  std::map<std::string, std::unique_ptr<BlockHasher>> hashers_;  // by lineage; none without prefix caching
  std::unique_ptr<Scheduler> scheduler_;

  // Owned by the stepping thread.
  Batch::Sequences sequences_;
  std::unordered_map<RequestId, LiveRequest> requests_;
  std::unique_ptr<Batch> batch_;
  std::unique_ptr<ReadCounter> counter_;
  std::unique_ptr<SampleBatch> samples_;
  Buffer arena_memory_;  // on a GPU; the CPU's arena takes pages as they are touched
  std::unique_ptr<Arena> arena_;
  Buffer logits_;     // float [max_logits(), vocab]
  Buffer keys_read_;  // int64 [max_rows()]: what attention of the step counted; null on the CPU, where the host sees it
  std::array<Flight, 2> flights_;
  Flight* flying_ = nullptr;  // launched, its tokens not read
  bool moved_ = false;        // the memory moves of the last step were enqueued
  int32_t retries_ = 0;       // of the last step, in a row
  std::map<std::vector<uint64_t>, std::unique_ptr<Graph>> graphs_;  // by the shape of a decode step; null: seen once
  std::vector<Sampled> sampled_;
  std::vector<float> tapped_;
  uint64_t next_sequence_ = 1;
  int64_t steps_ = 0;
  bool simulate_prefill_ = false;
  std::function<void(RequestId, int32_t, std::span<const float>)> tap_;

  mutable std::mutex mutex_;  // guards what follows: other threads submit, abort and ask
  std::vector<Pending> inbox_;
  std::vector<RequestId> aborts_, releases_;
  std::unordered_map<RequestId, int64_t> progress_;  // computed tokens of live requests
  uint64_t next_request_ = 1;
};

}  // namespace fovea
