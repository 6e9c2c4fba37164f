// One forward pass over a batch of rows: what a model takes and gives, whatever its architecture.
#pragma once

#include "base/arena.h"
#include "kv/kv_cache.h"
#include "model/config.h"
#include "model/placed_weights.h"
#include "sparse/layer_policy.h"

#include <fovea/method.h>
#include <fovea/ops.h>

#include <cstdint>
#include <memory>
#include <span>

namespace fovea {

// Rows of a step that one attention call serves: consecutive in the batch, one method, one kernel. Views of the engine's
// step buffers.
struct RowGroup {
  enum class Kind : uint8_t { prefill, decode };
  Kind kind = Kind::decode;
  int32_t first_row = 0;
  int32_t rows = 0;
  int32_t num_seqs = 0;
  // Device memory.
  const int32_t* q_indptr = nullptr;  // [num_seqs + 1], relative to first_row
  const int32_t* seq_len = nullptr;   // [num_seqs]
  PageTableView table;                // its row 0 is the group's first sequence
  // Sparse groups only (kind decode): every row chooses for itself.
  Method* method = nullptr;
  const LayerPolicy* policy = nullptr;
  std::span<const PlaneIdx> planes;   // of the method, in the order it declared them
  StepRows step;
};

// Told of every Selection before attention reads through it: counts bytes, draws pictures.
class SelectionObserver {
 public:
  virtual ~SelectionObserver() = default;
  virtual void on_selection(const RowGroup& group, LayerIdx layer, const Selection& selection) = 0;
};

// Arrays are device memory.
struct ForwardBatch {
  int32_t tokens = 0;                    // T
  const int32_t* ids = nullptr;          // [T]; -1 - i: previous[i]
  const int32_t* previous = nullptr;     // tokens that the step before sampled
  const int32_t* positions = nullptr;    // [T]
  const int64_t* slot_mapping = nullptr; // [T]
  std::span<const RowGroup> groups;      // cover all rows, in order
  const int32_t* logit_rows = nullptr;   // [num_logit_rows] rows whose logits are wanted
  int32_t num_logit_rows = 0;
  float* logits = nullptr;               // [num_logit_rows, vocab]
  int64_t* keys_read = nullptr;          // [T] or null: what attention of groups with a method read (ops.h)
  SelectionObserver* observer = nullptr;
};

class Transformer {
 public:
  virtual ~Transformer() = default;
  // Bytes of scratch a pass of up to this size takes from the arena.
  virtual size_t workspace_bytes(int32_t max_tokens, int32_t max_logit_rows) const = 0;
  // `codes`: the method whose hash codes the cache write keeps up to date, with its codes plane; null: none.
  virtual Status forward(const ForwardBatch& batch, KvCache& kv, const Method* codes, PlaneIdx codes_plane, Ops& ops,
                         Stream& stream, Arena& arena) = 0;
};

// Llama, Qwen2 and Qwen3, dense. `weights` outlives the result.
std::unique_ptr<Transformer> make_llama(const ModelConfig& config, const PlacedWeights& weights);

}  // namespace fovea
