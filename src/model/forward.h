// One forward pass over a batch of rows: what a model takes and gives, whatever its architecture.
#pragma once

#include "base/arena.h"
#include "kv/extent_cache.h"
#include "kv/kv_cache.h"
#include "model/config.h"
#include "model/placed_weights.h"
#include "sparse/layer_policy.h"
#include "sparse/method.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <vector>

namespace fovea {

// Rows of a step that one attention call serves: consecutive in the batch, one method, one kernel. Views of the engine's
// step buffers.
struct RowGroup {
  enum class Kind : uint8_t { prefill, decode };
  // Where the blocks of its sequences lie.
  enum class Blocks : uint8_t {
    in_pool,   // every one has a column of its own
    mobile,    // not all have: what rows choose is given columns before they read it, wave by wave
    streamed,  // likewise, and they read everything: laid out beside them, a few KV heads at a time
  };
  Kind kind = Kind::decode;
  Blocks blocks = Blocks::in_pool;
  int32_t first_row = 0;
  int32_t rows = 0;
  int32_t num_seqs = 0;
  // Device memory.
  const int32_t* q_indptr = nullptr;  // [num_seqs + 1], relative to first_row
  const int32_t* seq_len = nullptr;   // [num_seqs]
  const int32_t* row_seq = nullptr;   // [rows] row of the table
  const int32_t* row_len = nullptr;   // [rows] keys visible to the row: its position + 1
  PageTableView table;                // BlockIds; its row 0 is the group's first sequence
  PageTableView columns;              // where K and V lie, of a group in_pool; null: the same
  // As q_indptr and seq_len, in host memory.
  const int32_t* host_q_indptr = nullptr;
  const int32_t* host_seq_len = nullptr;
  PageTableView host_table;  // as `table`, likewise
  // Of a group that is streamed.
  const int32_t* rows_of_seq = nullptr;  // [num_seqs, 2] of each sequence {0, its rows}, in the device's
  int32_t wave_rows = 0;                 // of a mobile group on a device: rows that find columns together
  // Sparse groups only. Decode: every row chooses for itself.
  Method* method = nullptr;
  const LayerPolicy* policy = nullptr;
  std::span<const PlaneIdx> planes;  // of the method, in the order it declared them
  StepRows step;
};

// How a layer scores keys, beside its Selection.
struct LayerScores {
  const float* q = nullptr;  // [group's rows, H, d], post-rope
  KvView kv;                 // with the group's page table
  float scale = 1.0f;
};

// Told of every Selection before attention reads through it: counts bytes, draws pictures.
class SelectionObserver {
 public:
  virtual ~SelectionObserver() = default;
  // `scores`: how the layer scores keys; null where that cannot be told by q, K and a scale (windows, MLA).
  virtual void on_selection(const RowGroup& group, LayerIdx layer, const Selection& selection,
                            const LayerScores* scores = nullptr) = 0;
  // Told what rows [first_row, first_row + rows) of the batch had to wait for together, where not all of their blocks lie in the
  // pool.
  virtual void on_fetched(int32_t first_row, int32_t rows, const ExtentCounts& counts) {}
};

// Told of what sparse rows of mobile groups read, so that blocks are brought near before they are wanted.
class ReadAhead {
 public:
  virtual ~ReadAhead() = default;
  // Before a wave is resolved: what has come is put where it will look.
  virtual void collect() = 0;
  // Until when a wave of rows that may do without what is late waits for it: seconds of Clock. `share`: of such rows of the step.
  virtual double deadline_s(double share) = 0;
  // What a wave did without, and how many blocks a row of it.
  virtual void late(const RowGroup& group, LayerIdx layer, std::span<const ExtentCache::Late> late) = 0;
  virtual void skipped(SequenceId sequence, int32_t units) = 0;
  // After the group's rows have read in a layer.
  virtual void tell(const RowGroup& group, LayerIdx layer) = 0;
};

// Takes the logits of prompt rows, a piece at a time.
class PromptLogitsReader {
 public:
  virtual ~PromptLogitsReader() = default;
  // ForwardBatch::logits has those of rows [first_row, first_row + rows) of the batch; until it returns.
  virtual Status read(int32_t first_row, int32_t rows) = 0;
};

struct RowRange {
  int32_t first_row = 0, rows = 0;
};

// Arrays are device memory.
struct ForwardBatch {
  int32_t tokens = 0;                      // T
  bool prompt_rows = false;                // some are of prompts or questions: LinearParams::as_many
  const int32_t* ids = nullptr;            // [T]; -1 - i: previous[i]
  const int32_t* previous = nullptr;       // tokens that the step before sampled
  const int32_t* positions = nullptr;      // [T]
  const int64_t* slot_mapping = nullptr;   // [T] where K and V go
  const int64_t* block_mapping = nullptr;  // [T] where the codes go; null: the same
  std::span<const RowGroup> groups;        // cover all rows, in order
  const int32_t* logit_rows = nullptr;     // [num_logit_rows] rows whose logits are wanted
  int32_t num_logit_rows = 0;
  float* logits = nullptr;  // [num_logit_rows, vocab]
  // Rows whose logits are read, by `reader`, before those of logit_rows are made in their place: at most scored_at_once.
  std::span<const RowRange> scored;
  int32_t scored_at_once = 0;
  PromptLogitsReader* reader = nullptr;
  int64_t* keys_read = nullptr;  // [T] or null: what attention of groups with a method read (ops.h)
  int64_t* fetched = nullptr;    // [T, 2] or null: ResolveParams::counts, where the host does not see it
  SelectionObserver* observer = nullptr;
  ReadAhead* read_ahead = nullptr;  // null: nothing is prefetched
};

// The end of a pass, the same in every model: only the wanted rows are normed, as `last` says of all of them (the last block's output
// joins the residual stream there), and projected: project(rows) takes as many to b.logits. The scored ones come first.
template <typename Project>
Status make_logits(const ForwardBatch& b, const RmsNormParams& last, Ops& ops, Stream& stream, Project&& project) {
  const auto make = [&](int32_t rows, int64_t first, const int32_t* index) {
    RmsNormParams p = last;
    p.x += first * p.dim;
    p.add += first * p.dim;
    p.rows = rows;
    p.row_index = index;
    ops.rms_norm(p, stream);
    project(rows);
  };
  for (const RowRange& range : b.scored) {
    for (int32_t done = 0; done < range.rows;) {
      const int32_t rows = std::min(b.scored_at_once, range.rows - done);
      make(rows, range.first_row + done, nullptr);
      FOVEA_TRY(b.reader->read(range.first_row + done, rows));
      done += rows;
    }
  }
  if (b.num_logit_rows > 0) make(b.num_logit_rows, 0, b.logit_rows);
  return {};
}

// What has to be kept up to date beside K and V whenever they are written.
class Summaries {
 public:
  static constexpr size_t kPlanesMax = 8;  // of one method

  // `planes`: where those that the method declared lie, in that order. The first method to name a plane keeps it.
  void add(Method* method, std::span<const PlaneIdx> planes);
  // The codes that the fused cache write keeps: a view of this layer's, or false where there are none.
  bool fused_codes(const KvCache& kv, LayerIdx layer, CodesView* out) const;
  // Methods that keep keys of a DSA indexer: the i-th, and where its keys of this layer lie.
  size_t index_count() const { return indexers_.size(); }
  const Method* index_keys(size_t i, const KvCache& kv, LayerIdx layer, IndexKeysView* out) const;
  // Everything else, once K and V lie in the cache.
  void update(const KvWriteParams& written, const KvCache& kv, LayerIdx layer, Ops& ops, Stream& stream) const;
  void update(KvWritten written, const KvCache& kv, Ops& ops, Stream& stream) const;
  // A plane that was not loaded with its K and V: whether it follows from them (keys of an indexer do not), and making it so,
  // with the bits that it had.
  bool can_rebuild(PlaneIdx plane, const Ops& ops) const;
  void rebuild(PlaneIdx plane, KvWritten written, const KvCache& kv, Ops& ops, Stream& stream) const;

 private:
  struct Keeper {
    Method* method;
    std::vector<PlaneIdx> planes;
    std::vector<uint8_t> mine;  // [planes]
  };
  const Keeper* keeper_of(PlaneIdx plane) const;  // the first method that names it; null: none

  std::vector<Keeper> keepers_;
  std::vector<size_t> indexers_;  // of keepers_
  const Method* codes_ = nullptr;
  PlaneIdx codes_plane_;
};

// One product of an input: out = x W^T + bias.
struct Product {
  const WeightView* w;
  WeightVector bias;  // empty: none
  float* out;         // [rows, w->rows]
};

// The products of one input x [rows, w->cols], in one call so that a decode step has one parallel region for all.
class ProductGroup {
 public:
  ProductGroup(const float* x, int32_t rows, std::initializer_list<Product> products, bool full_precision = false,
               bool as_many = false, bool gated = false);
  ProductGroup(const ProductGroup&) = delete;
  ProductGroup& operator=(const ProductGroup&) = delete;

  const LinearParams& params() const { return params_; }

 private:
  std::array<LinearWeight, 3> weights_;
  LinearParams params_;  // points into weights_
};

void project(const float* x, int32_t rows, std::initializer_list<Product> products, Ops& ops, Stream& stream,
             bool full_precision = false);

class Transformer {
 public:
  virtual ~Transformer() = default;
  // Bytes of scratch a pass of up to this size takes from the arena.
  virtual size_t workspace_bytes(int32_t max_tokens, int32_t max_logit_rows) const = 0;
  virtual Status forward(const ForwardBatch& batch, KvCache& kv, const Summaries& summaries, Ops& ops, Stream& stream,
                         Arena& arena) = 0;
};

// Llama, Qwen2 and Qwen3, dense. `weights` outlives the result.
std::unique_ptr<Transformer> make_llama(const ModelConfig& config, const PlacedWeights& weights);

// The largest pass a Transformer will see.
struct ForwardLimits {
  int32_t max_rows = 1;
  int32_t max_seqs = 1;
  int64_t max_len = 1;       // tokens of a sequence
  OpSet ops = OpSet::all();  // what the backend has
  int64_t prefix_chunk = 0;  // most tokens of a chunk of a prefix that is read whole (latent models); 0: as memory allows
};

// DeepSeek-V3.2 and GLM-5. `weights` outlives the result. Errors: unsupported (a backend without latent attention),
// resource_exhausted.
Result<std::unique_ptr<Transformer>> make_deepseek_v32(const ModelConfig& config, const PlacedWeights& weights,
                                                       const ForwardLimits& limits, Device& device);

}  // namespace fovea
