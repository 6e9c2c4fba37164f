// What the methods of the GSA family are made of: how many blocks each row keeps, the lists that hold them, the choice by codes,
// what `overlap` carries from step to step, and what later steps will want near. A method says how blocks are scored.
//
// Memory of a request: with `overlap` its lists, twice (a step may be taken back): 2 x layers x groups x (the power of two that
// holds the largest k of all requests so far) entries of 4 bytes, in memory of the device. Taken as requests begin and contexts
// double, never by a step of a steady decode; another request takes it over. A fork begins without any.
#pragma once

#include <fovea/options.h>

#include "device/step_memory.h"
#include "sparse/gsa_family/common.h"
#include "sparse/gsa_family/kept_lists.h"
#include "sparse/method.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace fovea {

// Of a prefetch, by the place of its request in the queue: 0 URGENT at 0, 1 HIGH up to 4, 2 NORMAL up to 16, else 3 LOW.
int32_t prefetch_priority(int32_t queue_position);

class GsaFamily : public Method {
 public:
  std::string lineage() const override { return "dense"; }  // it decodes only: prefill is dense
  OpSet needs() const override { return overlaps() ? OpSet{OpKind::carry_over} : OpSet(); }
  std::vector<int32_t> dense_layers() const override { return options_.dense_layers; }
  std::vector<int32_t> reuse_layers() const override { return options_.reuse_layers; }
  int64_t estimate_blocks(int64_t tokens, int32_t budget_tokens) const override;
  int64_t most_blocks(int64_t tokens, int32_t budget_tokens) const override;
  void request_finish(SequenceId sequence) override { kept_.forget(sequence); }
  Status step_begin(const StepRows& step) override;
  void step_finish(bool ok) override;
  bool waits() const override { return scores_on_host(); }
  uint64_t graph_key() const override { return uint64_t{version_ + kept_.version()} << 32 | static_cast<uint32_t>(capacity_); }
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

  // Checks the options and what the device has, and takes the memory of a step; `groups`: lists per row.
  Status attach_lists(const ModelShape& shape, const MethodLimits& limits, Device& device, StepMemory& staging, int32_t groups);
  // What each row's own query would read, into `units` and counts_.
  virtual Status score(const SelectInputs& in, int32_t* units, Ops& ops, Stream& stream) = 0;
  // Whether scores choose at all: else overlap changes nothing, and there is nothing to want.
  virtual bool chooses_by_scores() const { return true; }
  // What every choice of blocks by a step's queries is told; the lists go to `units` and counts_.
  QueryBlockChoice query_choice(const SelectInputs& in, int32_t* units) const;
  MassBudget mass_budget() const;
  // Lists of the best blocks by their tokens' codes, and with wants the next best.
  Status select_by_codes(const SelectInputs& in, int32_t* units, Ops& ops, Stream& stream);
  // Codes of a GPU run in RAM: their plane is the host's, and the CPU chooses.
  bool scores_on_host() const { return !limits_.host && options_.scoring == GsaScoring::host; }
  Status place_codec(Device& device);
  Selection selection(int32_t rows) const;
  // Room for int32 entries. A buffer that moves makes other graphs.
  Status reserve(Buffer* buffer, int64_t entries, const char* what, bool pinned = false);

  int32_t blocks_of(int64_t tokens) const { return static_cast<int32_t>((tokens + shape_.block_size - 1) / shape_.block_size); }

  GsaOptions options_;
  ModelShape shape_;
  MethodLimits limits_;
  Device* device_ = nullptr;
  PlacedCodec codec_;
  int32_t groups_ = 1;    // lists per row
  Buffer units_;          // int32 [rows, groups, capacity of this step]; grows with the largest step
  Buffer counts_;         // int32 [rows, groups]
  Staged<int32_t> k_;     // [rows] blocks each row keeps, from lengths alone
  int32_t capacity_ = 0;  // of this step: the power of two that holds its longest list
  StepRows step_;

 private:
  int32_t longest_list(int32_t k, int32_t blocks) const;
  bool overlaps() const { return options_.overlap && chooses_by_scores(); }
  bool guesses() const { return wanted_ && options_.prefetch && options_.prefetch_ahead > 0; }
  Status begin_lists(const StepRows& step);
  Status read_by_earlier_scores(const SelectInputs& in, Ops& ops, Stream& stream);

  Status select_on_host(HashSelectParams p, const SelectInputs& in, Stream& stream);

  // GsaScoring::host: what the CPU chooses by and into, pinned, and its own view of the codes.
  struct OnHost {
    std::unique_ptr<Device> device;
    std::unique_ptr<Stream> stream;
    std::unique_ptr<Event> queries_there;
    PlacedCodec codec;
    Buffer q;              // float [max_rows, H, d]
    Buffer units, counts;  // as units_ and counts_
  };
  OnHost host_;
  Buffer scored_;          // with overlap: as units_, what this step's scores chose for the next
  Buffer next_units_;      // with wants: int32 [rows, groups, capacity / 4], next in score; of the layer that was chosen last
  Buffer next_counts_;     // int32 [rows, groups]
  KeptLists kept_;         // with overlap
  uint32_t version_ = 0;   // how often a buffer has moved
  LayerIdx chosen_{-1};    // the layer of which take_wants() may tell
  bool has_next_ = false;  // next_units_ are of the last choice
  bool wanted_ = false;    // keep_wants() was called
};

}  // namespace fovea
