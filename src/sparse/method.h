// Method: a way to select what attention reads. Methods are made by the registry from a name and options, declare the
// planes they keep, and turn a layer's queries into a Selection. Kernels and engine know only this interface.
//
// UCM's hooks map to it so: build_sparse_meta -> step_begin; attention_begin -> select; attention_finished and
// execute_finished -> step_finish; register_kv_caches -> planes; estimate_num_slots_sparsed -> estimate_blocks.
#pragma once

#include <fovea/options.h>
#include <fovea/selection.h>
#include <fovea/status.h>
#include <fovea/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/ops/ops.h"
#include "kv/plane_spec.h"

namespace fovea {

class Device;
class StepMemory;

// Sizes of the largest step, so that a method allocates once.
struct MethodLimits {
  int32_t max_rows = 1;      // query rows of one select() call
  int64_t max_len = 1;       // tokens of a sequence
  OpSet ops = OpSet::all();  // what the backend has
  bool host = true;          // device memory is the host's
  Ops* host_ops = nullptr;   // the CPU's, where it is not and a method asked for them (GsaScoring::host)
};

// The rows of one step that one method serves. Host arrays, but for those named so; they live until step_finish. Rows that
// only pad a batch have length 0.
struct StepRows {
  int32_t rows = 0;
  bool prefill = false;                        // rows of prompts; else of questions and answers
  const int32_t* row_seq = nullptr;            // [rows] row of the block table
  const int32_t* row_len = nullptr;            // [rows] keys visible to the row: its position + 1
  const SequenceId* row_sequence = nullptr;    // [rows] whose row it is
  const int32_t* row_budget_tokens = nullptr;  // [rows] the request's own budget in tokens; 0: the method's
  const int32_t* device_row_seq = nullptr;     // row_seq and row_len in device memory
  const int32_t* device_row_len = nullptr;
  // As AttentionParams has them: sequence s owns rows [q_indptr[s], q_indptr[s+1]) and has seq_len[s] keys.
  int32_t num_seqs = 0;
  const int32_t* q_indptr = nullptr;         // [num_seqs + 1]
  const int32_t* seq_len = nullptr;          // [num_seqs]
  const int32_t* device_q_indptr = nullptr;  // both in device memory
  const int32_t* device_seq_len = nullptr;
};

// What a layer offers for a choice. Device memory of the backend. Pointers a model does not have are null.
struct SelectInputs {
  LayerIdx layer;
  const StepRows* step = nullptr;
  const float* q = nullptr;              // [rows, H, d], post-rope
  const float* index_q = nullptr;        // [rows, Hi, di], as index_write leaves them for the method's index_keys(); or null
  const float* index_weights = nullptr;  // [rows, Hi], likewise
  PageTableView block_table;             // BlockIds
  PageTableView host_block_table;        // the same in host memory
  KvView kv;                             // K and V of the layer, this step's included; MLA: k is the latent, v is null
  std::byte* const* planes = nullptr;    // this layer's array of each plane that planes() declared, in that order
  ReadSoon soon[2];                      // what the layer reads behind its attention, as HashSelectParams has it
};

// K and V that a step wrote in one layer, for all its rows, sparse or not. Device memory.
struct KvWritten {
  LayerIdx layer;
  int32_t tokens = 0;
  const int64_t* slot_mapping = nullptr;  // [tokens] block * bs + offset; -1: the row wrote nothing
  const int64_t* code_mapping = nullptr;  // likewise where its codes go; null: the same
  KvView kv;                              // kv.table is empty
  // This layer's array of each plane that planes() declared; null: the fused cache write, or an earlier method that shares the
  // plane, keeps it up to date.
  std::byte* const* planes = nullptr;
};

// A prefetch hint: a block that later steps will probably read.
struct Want {
  SequenceId sequence;
  LayerIdx layer;
  KvHeadIdx head;
  int32_t logical_block = 0;
  int32_t priority = 0;  // by the request's place in the queue: 0 URGENT at 0, 1 HIGH to 4, 2 NORMAL to 16; else 3 LOW, as guesses
  int32_t steps_ahead = 1;  // it is expected to be read within so many steps
  bool guess = false;       // else it is known to be read
};

class Method {
 public:
  virtual ~Method() = default;

  // As flags and files name it: "gsa_on_device".
  virtual std::string_view name() const = 0;
  // Determines what a prefill by this method leaves in the cache, parameters included; "dense" if it is dense.
  virtual std::string lineage() const = 0;
  // Which rows it can serve: questions and answers; prompts.
  virtual bool decodes() const { return true; }
  virtual bool prefills() const { return false; }
  // Prefill only: what it computes depends on tiles of this many tokens, at multiples of it. Chunks, prefix hits and
  // published blocks are cut there.
  virtual int32_t prefill_alignment() const { return 1; }
  // Prefill rows of tiles that end at or below this position take the dense path.
  virtual int64_t prefill_min_context() const { return 0; }
  // The model was trained for this choice: it is part of what the model computes, for prompts, questions and answers alike.
  // All rows that see more than prefill_min_context() keys make it, whatever sparse_min_context says, and what any row
  // computed can be prefilled again.
  virtual bool trained() const { return false; }
  // select() and on_kv_written() look at planes alone, never at K: its rows may choose among blocks that lie elsewhere than in the
  // pool. (Codes that the fused cache write keeps count as such.)
  virtual bool chooses_without_keys() const { return false; }
  // Operations it calls that not every backend has: attach() refuses one without them.
  virtual OpSet needs() const { return {}; }
  // Serves models with latent attention (SelectInputs::kv is a latent plane).
  virtual bool reads_latents() const { return false; }
  // Layers that read everything; layers that read what the nearest layer before them chose.
  virtual std::vector<int32_t> dense_layers() const { return {}; }
  virtual std::vector<int32_t> reuse_layers() const { return {}; }

  // Called once, before planes(). Rejects options that do not fit the model, naming them. What select() needs of the host
  // in every step is taken from `staging` and filled in step_begin(); the rest is device memory of the method's own.
  virtual Status attach(const ModelShape& shape, const MethodLimits& limits, Device& device, StepMemory& staging) = 0;
  // Raises the limits of operations that select() calls and that an engine without the method would not need.
  virtual void raise_limits(OpsLimits*) const {}
  // Planes of one name are shared between methods, so a plane's name tells its configuration.
  virtual std::vector<PlaneSpec> planes() const { return {}; }
  // Hash codes in planes()[0], which the fused cache write can keep up to date (it keeps those of one method; others make
  // theirs in on_kv_written). False: the method has none. `plane`: this layer's codes array.
  virtual bool codes_view(std::byte* plane, CodesView* out) const { return false; }

  // Keys of a DSA indexer: where this layer's lie, with the planes of planes(). The forward pass writes them for every token
  // before select(), and prepares index_q and index_weights for their precision. False: the method keeps none.
  virtual bool index_keys(std::byte* const* planes, IndexKeysView* out) const { return false; }

  virtual void request_begin(SequenceId) {}
  virtual void request_finish(SequenceId) {}
  // Before staging is uploaded, once for each group of rows it serves (prefill and decode apart). resource_exhausted: no
  // memory for a step this large.
  virtual Status step_begin(const StepRows&) { return {}; }
  // What select() of this step bakes into a captured graph besides the number of rows: steps with another key replay
  // another graph.
  virtual uint64_t graph_key() const { return 0; }
  // The step is over. Not `ok`: nothing of it counts, and the same rows may come again, so what step_begin() and select() have
  // noted for later steps is as it was before. Called once for each step_begin() that was ok.
  virtual void step_finish(bool ok) {}
  // select() waits for its queries, so nothing of it can be captured.
  virtual bool waits() const { return false; }
  // In every step and layer, used or not: summaries are kept for every token. Enqueues only.
  virtual void on_kv_written(const KvWritten&, Ops&, Stream&) {}

  // Fills *out with a view of buffers that live until the next select() of this method or step_finish().
  virtual Status select(const SelectInputs& in, Ops& ops, Stream& stream, Selection* out) = 0;

  // Blocks whose K and V a decode row with `tokens` visible keys reads (what a sparse request really keeps): of all KV heads together,
  // by their number.
  virtual int64_t estimate_blocks(int64_t tokens, int32_t budget_tokens) const = 0;
  // The most that one KV head of such a row may read, where heads read unlike numbers of blocks.
  virtual int64_t most_blocks(int64_t tokens, int32_t budget_tokens) const { return estimate_blocks(tokens, budget_tokens); }
  // Bytes of summaries that choosing for one row and one layer scans.
  virtual int64_t summary_bytes(int64_t row_len) const { return 0; }
  // Whether rows may do without blocks that are late (counted), and how many of their first and last ones never.
  struct LateRule {
    bool may_skip = false;
    int32_t init_units = 0, local_units = 0;
  };
  virtual LateRule late_rule() const { return {}; }
  // What prefetch may do for its rows; null: it wants nothing.
  virtual const GsaOptions* prefetch_options() const { return nullptr; }
  // From now on take_wants() is called (the host alone): without it a method keeps nothing for it.
  virtual void keep_wants() {}
  // Of the layer that select() has just chosen for; once.
  virtual void take_wants(LayerIdx, std::vector<Want>*) {}
};

}  // namespace fovea
