// The engine: a model, its paged KV cache, a scheduler and a step loop. See request.h and options.h.
#pragma once

#include <fovea/chat.h>
#include <fovea/grammar.h>
#include <fovea/options.h>
#include <fovea/request.h>
#include <fovea/selection.h>
#include <fovea/status.h>
#include <fovea/types.h>

#include <array>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fovea {

// The matrices of one type.
struct WeightShare {
  std::string type;        // "bf16", "q4_k"
  int64_t parameters = 0;  // elements
  int64_t bytes = 0;       // scales and all
};

// What is known of a loaded model (fovea inspect).
struct ModelInfo {
  std::string architecture;
  ModelShape shape;
  int32_t hidden_size = 0;
  int32_t intermediate_size = 0;
  int32_t vocab_size = 0;
  int64_t parameters = 0;            // elements of all weights, vectors among them; a tied head counted once
  int64_t weight_bytes = 0;          // of all matrices; a tied head counted once
  int64_t step_weight_bytes = 0;     // of those that linear layers multiply by
  std::vector<WeightShare> weights;  // all matrices by type, most elements first
  int64_t widened_parameters = 0;    // of those that files hold in fewer bits than memory does: W_UK and W_UV, and what decides
  std::string rope;
  int64_t max_position_embeddings = 0;
  int64_t max_model_len = 0;
  bool has_tokenizer = false;
  bool has_chat_template = false;
  SamplingParams sampling;  // generation_config.json's defaults; greedy where it does not ask for sampling
};

// Counted since the engine was made, but for what says where it stands.
struct EngineStats {
  int64_t steps = 0;
  // As they stand: prompts that are being computed, and answers; those that wait to begin, for a store, or for room again.
  int64_t requests_running = 0;
  int64_t requests_waiting = 0;
  std::array<int64_t, 5> finished{};  // answers that are over, by FinishReason
  int64_t prompt_tokens = 0;          // of requests that have begun, what was found or forked included
  int64_t generation_tokens = 0;
  int64_t prefix_query_tokens = 0;  // of prompts that were looked up in the prefix cache
  int64_t prefix_hit_tokens = 0;    // of them found there
  int64_t blocks_total = 0;
  int64_t blocks_free = 0;     // never used or evictable
  int64_t blocks_in_use = 0;   // referenced by a sequence
  int64_t block_bytes = 0;     // one block, all planes and layers
  int64_t pool_blocks = 0;     // that the pool holds K and V of; fewer than blocks_total: the others lie below it
  int64_t staging_blocks = 0;  // of them, lent while a prompt is read
  int64_t swapped_bytes = 0;
  int64_t preemptions = 0;
  int64_t loaded_tokens = 0;  // of prompts, that a store had
  int64_t loaded_bytes = 0;
  double load_s = 0;            // of all loads, one after the other
  int64_t stored_blocks = 0;    // that were given to it, or that it had
  int64_t unstored_blocks = 0;  // that it did not take: nobody finds them later
  std::string store_error;      // why the last of them was not taken
  int64_t repaired_blocks = 0;  // that it lost, or gave back damaged, and that were computed again
  PrefetchStats prefetch;
};

// Memory that the KV cache has really taken, in bytes.
struct KvMemory {
  int64_t pool = 0;        // K and V, on a GPU its own memory
  int64_t summaries = 0;   // of all blocks: hash codes and the like, likewise
  int64_t tables = 0;      // which block lies where, likewise
  int64_t read_ahead = 0;  // for K and V that come ahead of attention
  int64_t host = 0;        // K and V below the pool (--kv-host-memory), pinned for a GPU if it holds all of them
};

// What one row of one layer read. Called inside the step: copy what you keep.
struct SelectionTrace {
  RequestId request;
  int32_t index = 0;     // answer
  int64_t position = 0;  // of the row's token
  LayerIdx layer;
  const Selection* selection = nullptr;  // Kind::all for dense
  int32_t row = 0;                       // row of the Selection
  int32_t blocks = 0;                    // blocks the row could see
  bool prefill = false;                  // a row of a prompt, else of a question or answer
  bool answer = false;                   // it gives a token of the answer
  // [kv_heads, blocks] share of the true attention (the softmax over all keys, mean over the head's query heads) on each block;
  // null unless Request::trace_mass asked for it, for rows that produce tokens of the answer, in layers without a window.
  const float* block_mass = nullptr;
};

class Engine {
 public:
  // Loads the model. Errors name the file, field and value.
  static Result<std::unique_ptr<Engine>> create(EngineOptions options);
  virtual ~Engine() = default;

  virtual const ModelInfo& model() const = 0;
  virtual const EngineOptions& options() const = 0;
  virtual std::string backend() const = 0;  // e.g. "cpu avx3 f32"

  // Text <-> tokens by the model's own tokenizer and chat template.
  virtual Result<std::vector<TokenId>> tokenize(std::string_view text) const = 0;
  virtual std::string detokenize(std::span<const TokenId> tokens) const = 0;
  // The bytes that a token stands for within a text, perhaps of a part of a character; a special token's name.
  virtual std::string token_bytes(TokenId token) const = 0;
  virtual Result<std::string> apply_chat_template(const ChatInput& input) const = 0;

  // A grammar of JSON for Request::grammar: texts that satisfy a JSON schema; empty: any object. Objects have no properties beyond
  // those that a schema names, unless it says additionalProperties. Compiling takes time; from any thread. Errors: not_found (no
  // tokenizer), invalid_argument (the schema; led by "json_schema: ").
  virtual Result<std::shared_ptr<const TokenGrammar>> json_grammar(std::string_view schema) const = 0;

  // Queues a request. Refuses at once what can never run (too long, unknown method, impossible sampling).
  // submit, abort and release may be called from any thread; step from one thread only.
  virtual Result<RequestId> submit(Request request) = 0;
  virtual void abort(RequestId id) = 0;    // idempotent; a final Output with FinishReason::aborted follows
  virtual void release(RequestId id) = 0;  // gives back the blocks of a held request; idempotent

  // Schedule, prepare, forward, sample, commit: one step. Appends what it produced to *outputs. False: nothing to do.
  //
  // A step that fails (memory, a method, the device) is no error of this call. The answers that had rows in it, on a device
  // error also those of the step in flight before it and what lay swapped out, each end with one last Output that says why
  // (FinishReason::failed); nothing else of the step is emitted, and none of its blocks is published. All others go on with
  // the next call.
  virtual Result<bool> step(std::vector<Output>* outputs) = 0;

  // Sleeps until there is something to step for: a request or its abort or release has arrived, work goes on, wake() was called;
  // or until the time is up (false). From the thread that steps.
  virtual bool wait_for_work(double timeout_s) = 0;
  // Ends the wait that goes on, or the next one. From any thread.
  virtual void wake() = 0;

  // As things stood after the last step: it waits for none. From any thread.
  virtual EngineStats stats() const = 0;
  virtual KvMemory kv_memory() const = 0;  // not from within a step
  // Waits until a store below the pool has taken what was computed, or not (EngineStats tells), but for no disk that hangs. From
  // the thread that calls step; the destructor does the same.
  virtual void flush_store() = 0;
  // Prompt tokens prefilled so far of a request that is being prefilled, for progress bars; 0 if unknown.
  virtual int64_t computed_tokens(RequestId id) const = 0;
  // Where a live or held request stands. From the thread that calls step. not_found: unknown, not taken over by a step yet, or
  // over; invalid_argument: it has no answer `index`.
  virtual Result<SparseRequestState> request_state(RequestId id, int32_t index = 0) const = 0;
  // Called for every row and layer of requests with trace set.
  virtual void set_trace(std::function<void(const SelectionTrace&)> callback) = 0;
  // Float32 logits of the last computed row of each sampled sequence go here too: [vocab]. Called inside the step, before the token
  // that is taken from them is emitted.
  virtual void set_logits_tap(std::function<void(RequestId, int32_t index, std::span<const float>)> tap) = 0;
};

}  // namespace fovea
