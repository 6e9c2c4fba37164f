// GSA (UCM; docs/methods.md): sparse decode whose unread blocks may lie outside the pool. It scores blocks by one of several
// representations, keeps the best per layer and KV head, and names what later steps will want near. Host memory only.
//
// Memory of a request: its lists, layers x KV heads x (the power of two that holds its largest k) entries of 4 bytes, only with
// `overlap` or where its wants are taken; with `recency` a count for each block. Taken when the request begins and as its context doubles,
// never by a step of a steady decode, and given back when it finishes. A fork begins without any.
#pragma once

#include "sparse/gsa/chosen_lists.h"
#include "sparse/gsa/recency.h"
#include "sparse/gsa_family/gsa_family.h"

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace fovea {

// Of a prefetch, by the place of its request in the queue: 0 URGENT at 0, 1 HIGH up to 4, 2 NORMAL up to 16, else 3 LOW.
int32_t prefetch_priority(int32_t queue_position);

class Gsa final : public GsaFamily {
 public:
  explicit Gsa(GsaOptions options) : GsaFamily(std::move(options)) {}

  std::string_view name() const override { return "gsa"; }
  OpSet needs() const override {
    using enum OpKind;
    return {block_summaries, encode_codes, summary_select, attention_mass, block_topk};
  }

  Status attach(const ModelShape& shape, const MethodLimits& limits, Device& device, StepMemory& staging) override;
  std::vector<PlaneSpec> planes() const override;
  bool codes_view(std::byte* plane, CodesView* out) const override;
  void request_begin(SequenceId sequence) override { state_of(sequence); }
  void request_finish(SequenceId sequence) override;
  Status step_begin(const StepRows& step) override;
  void on_kv_written(const KvWritten& written, Ops& ops, Stream& stream) override;
  Status select(const SelectInputs& in, Ops& ops, Stream& stream, Selection* out) override;
  int64_t summary_bytes(int64_t row_len) const override;
  // With MethodLimits::wants. Of the last step: with `overlap` what the next one reads; else, with LOW priority, what the last one read. Once.
  void take_wants(std::vector<Want>* wants) override;

 private:
  struct Request {
    SequenceId id;
    ChosenLists lists;
    Recency recency;
    int32_t queue_position = 0;  // in the last step
  };

  bool keeps_lists() const { return options_.overlap || (options_.prefetch && limits_.wants); }
  bool has_codec() const;
  Request& state_of(SequenceId sequence);
  Status reserve_scored();
  void choose_by_recency(const StepRows& step);
  void score(const SelectInputs& in, int32_t* units, Ops& ops, Stream& stream);
  void select_by_mass(const SelectInputs& in, int32_t* units, Ops& ops, Stream& stream);
  void read_by_earlier_scores(const SelectInputs& in);
  void keep_lists(const SelectInputs& in, const int32_t* units);

  Buffer scored_;               // with overlap: as units_, what this step's scores chose for the next
  Buffer mass_;                 // float [kMassRows, kv_heads, blocks]: oracle
  std::vector<int32_t> order_;  // [blocks]: recency
  std::unordered_map<SequenceId, std::unique_ptr<Request>> requests_;
  std::vector<Request*> row_request_;  // [rows] of this step
  std::vector<Request*> stepped_;      // requests of this step, in order of their rows, until their wants are taken
};

}  // namespace fovea
