// Runner: everything a device does. It owns the device, the operations, the weights, the methods, the cache's memory, the arrays
// of a step, its graphs and what is in flight. It knows rows and blocks; requests, text and bookkeeping are the engine's.
//
// launch() takes a step, collect() gives back what the oldest launched one sampled. Where runs_ahead() says so, a second step may
// be launched before the first is collected, so that the host's work hides behind the device's; its rows may continue a
// sequence by kUnreadToken. N runners under one scheduler are tensor parallelism.
#pragma once

#include "base/arena.h"
#include "base/thread_pool.h"
#include "device/device.h"
#include "device/step_memory.h"
#include "kernels/cpu/cpu_ops.h"
#include "kv/device_extent_cache.h"
#include "kv/extent_cache.h"
#include "kv/kv_cache.h"
#include "model/forward.h"
#include "runner/batch.h"
#include "runner/cache_plan.h"
#include "runner/column_io.h"
#include "runner/graph_cache.h"
#include "runner/prefetcher.h"
#include "runner/read_counter.h"
#include "runner/sample_batch.h"
#include "runner/step_plan.h"

#include <fovea/options.h>

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace fovea {

// What a runner is made of beside its options; null: by the options. Tests put in what fails.
struct RunnerParts {
  std::unique_ptr<Device> device;
  std::function<std::unique_ptr<Ops>(Device&)> make_ops;
  std::function<Result<std::unique_ptr<Method>>(const MethodOptions&)> make_method;
  bool one_thread = false;      // what would be read beside the stepping thread is read while it waits
  bool poison_evicted = false;  // what the pool gives up becomes NaN
  bool tier = false;            // a store lies below the pool, whatever the options say
  bool tier_in_place = false;   // and all of it can be read in place
};

class Runner : private PromptLogitsReader {
 public:
  // Fills in what the options leave to the device (max_num_batched_tokens) and to the model (default methods). `options`,
  // `config` and `weights` outlive it; on a GPU the weights' own memory is given back.
  static Result<std::unique_ptr<Runner>> create(EngineOptions& options, const ModelConfig& config, const ModelShape& shape,
                                                ModelWeights& weights, RunnerParts parts = {});

  Launched launch(const StepInput& plan);
  // On an error nothing that is in flight counts, and nothing is in flight any more.
  Result<StepResult> collect();
  // Float32 logits that token i of the last collected step was drawn from, [vocab]. Only before the next launch.
  Result<std::span<const float>> logits(size_t i);
  // Takes the logits [rows, vocab] of rows of a prompt, of the positions from `first_position` on (PlannedRows::scored). Called inside
  // launch(), perhaps again for rows of a step that is launched again.
  using PromptLogits = std::function<void(RowOwner& owner, int64_t first_position, std::span<const float> logits)>;
  void set_prompt_logits(PromptLogits take) { prompt_logits_ = std::move(take); }
  // Whether another step may be launched before the last launched one is collected.
  bool runs_ahead() const { return !device_->is_host() && batch_->is_pure_decode() && !waits_for_host(); }
  bool can_trace_mass() const { return ops_->supported().has(OpKind::attention_mass) && shape_.kv_lora_rank == 0; }
  std::string description() const;
  std::string numerics_name() const;  // "bf16", "f32"; with --numerics int8 "int8 bf16", fp8 "fp8 bf16"
  const std::vector<MethodEntry>& methods() const { return methods_; }
  int32_t method_index(const std::string& label) const;  // -1: not held
  KvCache& kv() { return *kv_; }
  const KvCache& kv() const { return *kv_; }
  const CachePlan& cache_plan() const { return plan_; }
  ExtentCache* extents() { return extents_.get(); }  // null: every block has its column, or the device knows
  DeviceExtentCache* device_extents() { return device_extents_.get(); }
  // Copies blocks that were filled below a device's pool; `done` tells when they lie there.
  Status spill(std::span<const BlockId> blocks, std::unique_ptr<Event>* done) {
    return device_extents_->spill(blocks, *stream_, done);
  }
  // Threads that a store may read with where io_uring is refused: the most that a method asks for.
  int read_threads() const;
  // Reads ahead from a store for the methods that want it; null: none does. The caller's, and ends before the store.
  std::unique_ptr<Prefetcher> make_prefetcher(BlockStore& store, const BlockHomes& homes, const Clock& clock);
  // Reads what prompts miss beside attention over it; null: there is no staging, or no thread for that. As the prefetcher.
  std::unique_ptr<StripReader> make_strip_reader(BlockStore& store) const;
  // Blocks without content, for a store below the pool lost them: why the last launch ended with `retry`. Some may be named twice.
  std::vector<BlockId> take_lost();
  bool has_lost() const { return (extents_ && extents_->has_lost()) || (device_extents_ && device_extents_->has_lost()); }
  int32_t swap_slots() const { return swap_->num_slots(); }
  Status reserve_swap(SwapSlot slot) { return swap_->reserve(slot); }  // its memory, where it is not taken yet
  Device& device() { return *device_; }
  // For blocks that go to a store and come from it. On a GPU, pinned memory is the cache of its files.
  bool reads_past_the_page_cache() const { return !device_->is_host(); }
  std::unique_ptr<ColumnIo> make_column_io();
  // Carries out moves without a step; after an error they are worth nothing.
  Status move(std::span<const CacheOp> moves) { return kv_->apply(moves, swap_.get(), *stream_); }
  void set_trace(std::function<void(const SelectionTrace&)> trace) { counter_->set_trace(std::move(trace)); }
  // Steps of prefill rows alone write random keys and values and compute nothing: for benchmarks.
  void simulate_prefill(bool on) { simulate_prefill_ = on; }

  static constexpr int32_t kAnswersMax = 256;  // that begin in one step, beside one for each sequence
  static constexpr size_t kGraphsMax = 64;
  static constexpr int32_t kRetriesMax = 3;  // of a step that is busy for no block that is lost

 private:
  // A step that was launched, until its tokens are read.
  struct Flight {
    std::vector<SampledToken> targets;
    std::vector<int32_t> logit_rows;  // [targets]
    std::vector<ReadCounter::Row> reads;
    Buffer tokens;     // pinned: int32 [sampled rows]
    Buffer keys_read;  // pinned: int64 [rows]
    Buffer fetched;    // pinned: int64 [rows, 2]
    std::unique_ptr<Event> done;
    bool flying = false;
  };

  Runner(EngineOptions& options, const ModelConfig& config, const ModelShape& shape, RunnerParts parts)
      : options_(options), config_(config), shape_(shape), parts_(std::move(parts)) {}
  Status init(ModelWeights& weights);
  Status make_device();
  Status make_transformer();
  Status make_methods();
  Status add_method(const MethodOptions& options);
  Status resolve_default(const char* flag, std::string* label);
  Status make_ops();
  Status place(ModelWeights& weights);
  int64_t memory_for_weights() const;
  Status check_weights(const ModelWeights& weights) const;
  Status prepare_ops(const ModelWeights& weights);
  Status make_step_buffers();
  Result<KvCacheConfig> cache_config() const;
  std::string unfit_for_columns() const;
  std::vector<const GsaOptions*> prefetch_options() const;
  Status plan_memory();
  Status make_cache();
  int32_t max_rows() const;    // of a step, padding included
  int32_t max_logits() const;  // rows of logits, likewise
  Numerics wanted_numerics() const;
  cpu::Int8Rows int8_rows() const;

  Status make_extents();
  Status prepare(const StepInput& plan, bool* moved);
  void prepare_waves();
  void lose_tables();
  // The last step was launched while host memory below the pool was being filled.
  bool waits_for_host() const;
  Status run_step();
  Status read(int32_t first_row, int32_t rows) override;
  Status enqueue_step();
  Status download(const Flight& flight);
  void start_flight(Flight* flight);

  EngineOptions& options_;
  const ModelConfig& config_;
  const ModelShape shape_;
  RunnerParts parts_;
  std::string device_note_;  // why --device auto passed over a GPU; empty: it did not
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<PlacedWeights> weights_;
  KvScales kv_scales_;
  std::unique_ptr<Transformer> transformer_;
  std::unique_ptr<StepMemory> staging_;
  std::vector<MethodEntry> methods_;  // [0] is dense
  Summaries summaries_;               // of all methods
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<CpuOps> host_ops_;  // beside a device's, for methods that choose on the host
  std::unique_ptr<Ops> ops_;
  CpuOps* cpu_ops_ = nullptr;  // ops_, where it is the CPU's
  std::unique_ptr<KvCache> kv_;
  CachePlan plan_;
  std::unique_ptr<SwapArea> swap_;
  // One of them where columns are fewer than blocks.
  std::unique_ptr<ExtentCache> extents_;
  std::unique_ptr<DeviceExtentCache> device_extents_;
  Staged<uint32_t> wave_base_;        // [1]
  Prefetcher* prefetcher_ = nullptr;  // what make_prefetcher() made

  std::unique_ptr<Batch> batch_;
  std::unique_ptr<ReadCounter> counter_;
  std::unique_ptr<SampleBatch> samples_;
  Buffer arena_memory_;  // on a GPU; the CPU's arena takes pages as they are touched
  std::unique_ptr<Arena> arena_;
  Buffer logits_;  // float [max_logits(), vocab]
  // Of a device other than the host, which uploads zeros: [max_rows()] what attention of the step counted; and [max_rows(), 2]
  // ForwardBatch::fetched, of a pool that holds a part of contexts.
  Staged<int64_t> keys_read_, fetched_;
  GraphCache graphs_{kGraphsMax};
  std::array<Flight, 2> flights_;
  size_t next_ = 0;          // of flights_: the next launch's
  int32_t retries_ = 0;      // of a step, in a row
  size_t groups_begun_ = 0;  // of the step being launched: leading row groups whose methods' step_begin() was ok
  Status lost_;              // why what is in flight is lost, found out before it was collected
  bool simulate_prefill_ = false;
  // Of the last collected step.
  std::vector<SampledToken> tokens_;
  std::vector<int32_t> token_rows_;
  std::vector<RowRead> row_reads_;
  std::vector<float> read_logits_;  // rows of logits, of another device
  PromptLogits prompt_logits_;
};

}  // namespace fovea
