// GSA On-Device (UCM; docs/algorithms.md): per-token sign-hash codes of keys, Hamming scores of the query, top-k
// blocks per KV head. Codes live in the plane `codes` and are written by the fused cache write.
#pragma once

#include <fovea/options.h>

#include "device/step_memory.h"
#include "sparse/gsa_family/common.h"
#include "sparse/method.h"

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace fovea {

class GsaOnDevice final : public Method {
 public:
  explicit GsaOnDevice(GsaOptions options) : options_(std::move(options)) {}

  std::string_view name() const override { return "gsa_on_device"; }
  std::string lineage() const override { return "dense"; }  // it decodes only: prefill is dense
  std::vector<int32_t> dense_layers() const override { return options_.dense_layers; }
  std::vector<int32_t> reuse_layers() const override { return options_.reuse_layers; }

  Status attach(const ModelShape& shape, const MethodLimits& limits, Device& device, StepMemory& staging) override;
  std::vector<PlaneSpec> planes() const override;
  bool codes_view(std::byte* plane, CodesView* out) const override;
  void on_kv_written(const KvWritten& written, Ops& ops, Stream& stream) override;
  Status step_begin(const StepRows& step) override;
  uint64_t graph_key() const override;
  Status select(const SelectInputs& in, Ops& ops, Stream& stream, Selection* out) override;
  int64_t estimate_blocks(int64_t tokens, int32_t budget_tokens) const override;
  int64_t summary_bytes(int64_t row_len) const override;

 private:
  Status reserve_units(int64_t entries);

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
};

}  // namespace fovea
