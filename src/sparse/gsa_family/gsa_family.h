// What the methods of the GSA family are made of: how many blocks each row keeps, the lists that hold them, the choice by codes,
// what `overlap` carries from step to step, and what later steps will want near. A method says how blocks are scored.
//
// Memory of a request: with `overlap` its lists, twice (a step may be taken back): 2 x layers x groups x (the power of two that holds
// its largest k) entries of 4 bytes, in host memory. Taken when the request begins and as its context doubles, never by a step of a
// steady decode, and given back when it finishes. A fork begins without any.
#pragma once

#include <fovea/options.h>

#include "device/step_memory.h"
#include "sparse/gsa_family/chosen_lists.h"
#include "sparse/gsa_family/common.h"
#include "sparse/method.h"

#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace fovea {

// Of a prefetch, by the place of its request in the queue: 0 URGENT at 0, 1 HIGH up to 4, 2 NORMAL up to 16, else 3 LOW.
int32_t prefetch_priority(int32_t queue_position);

class GsaFamily : public Method {
 public:
  std::string lineage() const override { return "dense"; }  // it decodes only: prefill is dense
  std::vector<int32_t> dense_layers() const override { return options_.dense_layers; }
  std::vector<int32_t> reuse_layers() const override { return options_.reuse_layers; }
  int64_t estimate_blocks(int64_t tokens, int32_t budget_tokens) const override;
  void request_finish(SequenceId sequence) override { lists_.erase(sequence); }
  Status step_begin(const StepRows& step) override;
  void step_finish(bool ok) override;
  Status select(const SelectInputs& in, Ops& ops, Stream& stream, Selection* out) override;
  LateRule late_rule() const override {
    return {options_.late_policy == LatePolicy::best_effort, options_.init_window_sz, options_.local_window_sz};
  }
  // Of each request's last row: with `overlap` what its next step reads, by its place in the queue; and, where blocks are scored by
  // codes and prefetch_ahead is not 0, the k / 4 blocks next in score behind those it keeps, LOW.
  const GsaOptions* prefetch_options() const override { return &options_; }
  void keep_wants() override { wanted_ = true; }
  void take_wants(LayerIdx layer, std::vector<Want>* wants) override;

 protected:
  explicit GsaFamily(GsaOptions options) : options_(std::move(options)) {}

  // Checks the options and takes the memory of a step; `groups`: lists per row.
  Status attach_lists(const ModelShape& shape, const MethodLimits& limits, Device& device, StepMemory& staging, int32_t groups);
  // What each row's own query would read, into `units` and counts_.
  virtual void score(const SelectInputs& in, int32_t* units, Ops& ops, Stream& stream) = 0;
  // Whether scores choose at all: else overlap changes nothing, and there is nothing to want.
  virtual bool chooses_by_scores() const { return true; }
  // What every choice of blocks by a step's queries is told; the lists go to `units` and counts_.
  QueryBlockChoice query_choice(const SelectInputs& in, int32_t* units) const;
  // Lists of the best blocks by their tokens' codes, and with wants the next best.
  void select_by_codes(const SelectInputs& in, int32_t* units, Ops& ops, Stream& stream);
  Selection selection(int32_t rows) const;

  int32_t blocks_of(int64_t tokens) const { return static_cast<int32_t>((tokens + shape_.block_size - 1) / shape_.block_size); }

  GsaOptions options_;
  ModelShape shape_;
  MethodLimits limits_;
  Device* device_ = nullptr;
  PlacedCodec codec_;
  int32_t groups_ = 1;          // lists per row
  Buffer units_;                // int32 [rows, groups, capacity of this step]; grows with the largest step
  Buffer counts_;               // int32 [rows, groups]
  Staged<int32_t> k_;           // [rows] blocks each row keeps, from lengths alone
  int32_t capacity_ = 0;        // of this step: the power of two that holds its largest k
  uint32_t units_version_ = 0;  // how often units_ has moved
  StepRows step_;

 private:
  bool overlaps() const { return options_.overlap && chooses_by_scores(); }
  bool guesses() const { return wanted_ && options_.prefetch && options_.prefetch_ahead > 0; }
  Status begin_lists(const StepRows& step);
  Status reserve(Buffer* buffer, int64_t entries, const char* what);
  bool is_last_row(const StepRows& step, int32_t row) const;
  void read_by_earlier_scores(const SelectInputs& in);
  void keep_lists(const SelectInputs& in);

  Buffer scored_;       // with overlap: as units_, what this step's scores chose for the next
  Buffer next_units_;   // with wants: int32 [rows, groups, capacity / 4], next in score; of the layer that was chosen last
  Buffer next_counts_;  // int32 [rows, groups]
  std::unordered_map<SequenceId, std::unique_ptr<ChosenLists>> lists_;  // with overlap
  std::vector<ChosenLists*> row_lists_;                                 // [rows] of this step; null: the row pads a batch
  LayerIdx chosen_{-1};                                                 // the layer of which take_wants() may tell
  bool has_next_ = false;                                               // next_units_ are of the last choice
  bool wanted_ = false;                                                 // keep_wants() was called
};

}  // namespace fovea
