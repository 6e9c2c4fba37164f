// Requests and what comes back.
#pragma once

#include <fovea/status.h>
#include <fovea/types.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace fovea {

using TokenId = int32_t;
class TokenGrammar;  // grammar.h

// How a token is chosen, in vLLM's order: Request::grammar, logit_bias and min_tokens; the three penalties, in their order below;
// temperature, top_k, top_p, min_p.
struct SamplingParams {
  static constexpr int32_t kLogprobsMax = 20;
  static constexpr size_t kLogitBiasMax = 1024;

  float temperature = 0.0f;         // 0: greedy
  int32_t top_k = 0;                // 0: all
  float top_p = 1.0f;               // (0, 1]
  float min_p = 0.0f;               // [0, 1), relative to the most likely token
  float repetition_penalty = 1.0f;  // > 0; over prompt and output, as transformers has it
  float frequency_penalty = 0.0f;   // [-2, 2]; taken from a token's logit for each time the output holds it (OpenAI's rule)
  float presence_penalty = 0.0f;    // [-2, 2]; likewise, once
  std::vector<std::pair<TokenId, float>> logit_bias;  // each token once; [-100, 100], added to its logit
  std::optional<uint64_t> seed;                       // with it a request repeats exactly
  int32_t n = 1;                                      // answers; they share the prompt's blocks
  int32_t max_tokens = 256;                           // per answer; 0: prefill only
  std::vector<std::string> stop;                      // the answer ends before the first of these
  std::vector<TokenId> stop_token_ids;
  bool ignore_eos = false;
  int32_t min_tokens = 0;  // until there are so many no end token, no stop token and no stop string ends the answer
  // Asks for Output::logprobs: of each token of the answer, and of the N most likely ones in its place; [0, 20].
  std::optional<int32_t> logprobs;
  // Likewise of the prompt's tokens: Output::prompt_logprobs. They are all computed: nothing of the prompt is taken from the prefix
  // cache, nor left there. Not with fork_of.
  std::optional<int32_t> prompt_logprobs;
};

// Sampling as somebody asks for it: what is left out is the model's (ModelInfo::sampling).
struct SamplingOverrides {
  std::optional<float> temperature, top_p, min_p, repetition_penalty;
  std::optional<int32_t> top_k;
  SamplingParams rest;  // all others

  SamplingParams over(const SamplingParams& defaults) const {
    SamplingParams s = rest;
    s.temperature = temperature.value_or(defaults.temperature);
    s.top_k = top_k.value_or(defaults.top_k);
    s.top_p = top_p.value_or(defaults.top_p);
    s.min_p = min_p.value_or(defaults.min_p);
    s.repetition_penalty = repetition_penalty.value_or(defaults.repetition_penalty);
    return s;
  }
};

struct Request {
  std::vector<TokenId> prompt;  // never empty, not even with fork_of
  SamplingParams sampling;
  std::string decode_method;   // label of a method; empty: the engine's
  std::string prefill_method;  // likewise; a fork continues its parent's
  int32_t budget_tokens = 0;   // 0: the method's own budget
  std::string fairness_key;    // requests of one key are served in order, keys in turn
  // Prefixes are shared with requests of the same salt alone, here and in a store. At most 1024 bytes; a fork has its parent's.
  std::string cache_salt;
  // What the answer may say; null: anything. Not with given_answer or min_tokens.
  std::shared_ptr<const TokenGrammar> grammar;
  // Keep the sequence's blocks when it is finished, until release(): a document that questions fork.
  bool hold = false;
  // The prompt continues this held request's tokens instead of standing alone.
  std::optional<RequestId> fork_of;
  // An answer that is known: its tokens are taken in place of sampled ones, and it ends with the last of them at the latest. Rows
  // and logits are those of a request that had sampled them. Needs n = 1 and max_tokens > 0; empty: tokens are sampled.
  std::vector<TokenId> given_answer;
  bool trace = false;       // report Selections to the engine's trace callback
  bool trace_mass = false;  // and the true attention mass of blocks for the answer's rows; costs dense attention
};

enum class FinishReason : uint8_t { none, stop, length, aborted, failed };

const char* finish_reason_name(FinishReason reason);

// What was read ahead of attention from a store (docs/offload.md), in extents: a block of one layer and KV head.
struct PrefetchStats {
  // Upper ends of the buckets of queue_time, in milliseconds; the last one has none.
  static constexpr double kQueueMs[] = {0.1, 0.3, 1, 3, 10, 50, 200};

  int64_t hits = 0;       // came before attention wanted them
  int64_t late = 0;       // attention wanted them while they were queued or on their way
  int64_t wasted = 0;     // came, and were dropped or evicted before anything read them
  int64_t cancelled = 0;  // were dropped before they were read
  int64_t left_out = 0;   // were wanted and not asked for, as a bound was reached; of an engine alone
  int64_t skipped = 0;    // late_policy best_effort: blocks of rows' lists that attention did without
  int64_t bytes = 0;      // that were read ahead
  double queue_s = 0;     // reads waited for their turn, summed over the reads of a layer
  std::array<int64_t, 8> queue_time{};  // such reads, by how long
};

// Counted, never estimated; but in layers with a sliding window, what a Selection holds before the window counts as read.
struct RequestStats {
  int64_t prompt_tokens = 0;  // the parent's included
  int64_t cached_tokens = 0;  // of them found in the prefix cache or a parent
  int64_t loaded_tokens = 0;  // of them, behind those, read from a store; the rest was computed
  int64_t loaded_bytes = 0;   // that were read for them and verified
  double load_s = 0;          // from its first read to its last
  // Where the context is larger than the KV pool (docs/offload.md). A block of one layer and KV head that a row read:
  int64_t offload_hits = 0;    // lay in the pool
  int64_t offload_misses = 0;  // was read for it, once for all rows that were read together
  int64_t offload_bytes = 0;   // that were read for rows, prefill's included
  double offload_s = 0;        // spent waiting for them
  PrefetchStats prefetch;      // for this request's rows; where several want the same, for who asked first
  int64_t output_tokens = 0;
  int64_t preemptions = 0;
  int64_t rows_by_method = 0;      // question and answer rows computed, by the decode method or densely
  int64_t kv_bytes_read = 0;       // selected K and V those rows read
  int64_t summary_bytes_read = 0;  // codes those rows scanned
  int64_t kv_bytes_dense = 0;      // K and V dense attention would have read for the same rows
  // Of prefill rows: query-key pairs that attention worked on, over heads and layers, and that dense attention would have.
  int64_t prefill_pairs_read = 0;
  int64_t prefill_pairs_dense = 0;
  int64_t context_tokens = 0;  // prompt and output at the end
  double queue_s = 0;          // submitted to first scheduled
  double ttft_s = 0;           // submitted to first token
  double decode_s = 0;         // first token to last

  int64_t computed_tokens() const { return prompt_tokens - cached_tokens - loaded_tokens; }  // of the prompt
  double kv_bytes_share() const {
    return kv_bytes_dense == 0 ? 1.0 : double(kv_bytes_read + summary_bytes_read) / double(kv_bytes_dense);
  }
  double prefill_share() const { return prefill_pairs_dense == 0 ? 1.0 : double(prefill_pairs_read) / double(prefill_pairs_dense); }
};

// Blocks that a request's next steps may read and that do not lie in the pool.
enum class PrefetchState : uint8_t {
  none,     // nothing: every block lies in the pool
  pending,  // on its way
  ready,    // has come
};

// One answer of a live request as it stands between two steps (UCM's GSAReqStat).
struct SparseRequestState {
  RequestId request_id;
  int32_t index = 0;                      // which of the n answers; until the prompt is computed they share the first one's blocks
  int64_t scheduled_tokens = 0;           // rows it had in the last step that it took part in
  int64_t computed_tokens = 0;            // tokens whose K and V are in the cache
  std::vector<BlockId> block_ids;         // of its tokens, in order; empty while it waits or is swapped out
  std::vector<std::string> block_hashes;  // content keys in hex of its first blocks: those that were prefilled, full or a held tail
  // Logical blocks that its last question or answer row read in any layer that does not read everything by policy, ascending.
  // On a GPU of requests with `trace` alone: other selections stay on the device.
  std::vector<int32_t> selected_blocks;
  PrefetchState prefetch = PrefetchState::none;
  int64_t bytes_read = 0;   // K, V and summaries, of question and answer rows
  int64_t bytes_saved = 0;  // what dense attention would have read beyond that
};

// Of the softmax of the model's own float32 logits, before anything in SamplingParams or a grammar changed them (vLLM's
// raw_logprobs; OpenAI's API gives the same). -inf: the token cannot come.
struct TokenLogprob {
  TokenId token = 0;
  float logprob = 0;  // natural
  int32_t rank = 0;   // 1: no token is more likely
};
struct TokenLogprobs {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;  // the N most likely, descending, then by id; `chosen` may be one of them
};

// One event of one answer. Text never ends in half a character and never holds part of a stop string.
struct Output {
  RequestId request;
  int32_t index = 0;            // which of the n answers
  std::vector<TokenId> tokens;  // new since the last event
  std::string text;             // likewise
  // [tokens] where SamplingParams::logprobs asked for it, else empty. Engine::token_bytes has the text of single tokens.
  std::vector<TokenLogprobs> logprobs;
  // In the first event of answer 0 where SamplingParams::prompt_logprobs asked for it: [prompt], its first without `top` and of
  // logprob and rank 0, for nothing lies before it.
  std::vector<TokenLogprobs> prompt_logprobs;
  bool finished = false;
  FinishReason reason = FinishReason::none;
  Status error;        // with FinishReason::failed
  RequestStats stats;  // whole when finished
};

}  // namespace fovea
