// What a runner is asked to do in one step, and what comes of it: plain data, so that a scheduler and N runners need know
// nothing else of each other.
#pragma once

#include "kv/block_place.h"
#include "kv/cache_op.h"
#include "model/forward.h"
#include "runner/last_read.h"

#include <fovea/request.h>
#include <fovea/types.h>

#include <cstdint>
#include <span>
#include <vector>

namespace fovea {

// In place of a token that the step in flight samples and no one has read yet.
inline constexpr int32_t kUnreadToken = -1;

// Whose rows these are: what is counted and shown of them. Outlives the step that it is in.
struct RowOwner {
  SequenceId id;
  RequestId request;
  int32_t index = 0;  // which of the n answers
  bool trace = false;
  bool trace_mass = false;
  int32_t prompt_tokens = 0;  // a forked parent's included
  LastRead last_read;         // by question and answer rows, where the host sees them
  RequestStats stats;
};

// Consecutive tokens of one sequence that run with one method.
struct PlannedRows {
  RowOwner* owner = nullptr;
  bool prefill = false;  // else rows of a question or answer, each of which reads for itself
  bool answer = false;   // the one row of a token that was sampled
  int32_t method = 0;    // index into the runner's methods; 0: dense
  int32_t budget_tokens = 0;
  int64_t first_position = 0;
  std::span<const int32_t> tokens;            // one for each row
  std::span<const BlockPlace> blocks;         // of the sequence, up to the last row's; none is swapped out
  int32_t first_sample = 0, num_samples = 0;  // of StepInput::samples: drawn from the last row's logits
  int32_t scored = 0;                         // leading rows whose logits go to Runner::set_prompt_logits
};

struct PlannedSample {
  SequenceId sequence;
  const SamplingParams* params = nullptr;
  float uniform = 0;                 // the random number of this token, in [0, 1)
  std::span<const int32_t> history;  // the sequence's tokens so far, for its repetition penalty
  bool chosen_by_host = false;       // from Runner::logits: what the device samples of it is nobody's
};

struct StepInput {
  std::span<const CacheOp> moves;  // carried out first, in order
  // Where the pool has fewer columns than there are blocks: [blocks] the column of each, or -1. Empty: its own number.
  std::span<const SlotId> columns;
  std::span<const uint8_t> stored;  // [blocks] likewise: what it holds lies below too
  std::vector<PlannedRows> rows;
  std::vector<PlannedSample> samples;
  int32_t num_tokens = 0;  // rows in all
};

// How launch() ended.
struct Launched {
  enum class End : uint8_t {
    ok,
    failed,  // nothing of the step counts
    retry,   // likewise, but its moves were carried out and it may be launched again
  };
  End end = End::ok;
  Status why;
  bool moves_failed = false;  // failed: the moves may not have been carried out either
};

struct SampledToken {
  SequenceId sequence;
  int32_t token = 0;
};

// What a question or answer row read, or the rows of a prompt, counted on the device.
struct RowRead {
  SequenceId sequence;
  int32_t rows_by_method = 0;  // question and answer rows
  int64_t kv_bytes = 0, kv_bytes_dense = 0, summary_bytes = 0;
  int64_t prefill_pairs = 0, prefill_pairs_dense = 0;
  int64_t looked_up = 0, missed = 0;  // (layer, KV head, block), where not every block lies in the pool
};

// Valid until the next launch().
struct StepResult {
  std::span<const SampledToken> tokens;  // in the order of StepInput::samples
  std::span<const RowRead> reads;        // empty where the host sees Selections and has counted already
};

}  // namespace fovea
