// What the methods of the GSA family are made of: how many blocks each row keeps, the lists that hold them, the choice by codes.
// A method says how blocks are scored.
#pragma once

#include <fovea/options.h>

#include "device/step_memory.h"
#include "sparse/gsa_family/common.h"
#include "sparse/method.h"

#include <string>
#include <utility>
#include <vector>

namespace fovea {

class GsaFamily : public Method {
 public:
  std::string lineage() const override { return "dense"; }  // it decodes only: prefill is dense
  std::vector<int32_t> dense_layers() const override { return options_.dense_layers; }
  std::vector<int32_t> reuse_layers() const override { return options_.reuse_layers; }
  int64_t estimate_blocks(int64_t tokens, int32_t budget_tokens) const override;

 protected:
  explicit GsaFamily(GsaOptions options) : options_(std::move(options)) {}

  // Checks the options and takes the memory of a step; `groups`: lists per row.
  Status attach_lists(const ModelShape& shape, const MethodLimits& limits, Device& device, StepMemory& staging, int32_t groups);
  // How many blocks each row keeps, into k_, and lists that hold them. Only a step with more rows or larger budgets than any
  // before it moves the buffer, never one of a steady decode.
  Status begin_lists(const StepRows& step);
  // What every choice of blocks by a step's queries is told; the lists go to `units` and counts_.
  QueryBlockChoice query_choice(const SelectInputs& in, int32_t* units) const;
  // Lists of the best blocks by their tokens' codes.
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

 private:
  Status reserve_units(int64_t entries);
};

}  // namespace fovea
