// GSA On-Device (UCM; docs/algorithms.md): per-token sign-hash codes of keys, Hamming scores of the query, top-k
// blocks per KV head. Codes live in the plane `codes` and are written by the fused cache write.
#pragma once

#include <fovea/method.h>
#include <fovea/options.h>

#include "kernels/ref/hash.h"

#include <memory>
#include <optional>

namespace fovea {

class GsaOnDevice final : public Method {
 public:
  explicit GsaOnDevice(GsaOptions options) : options_(std::move(options)) {}

  std::string_view name() const override { return "gsa_on_device"; }
  std::string lineage() const override { return "dense"; }  // it decodes only: prefill is dense
  bool sparse() const override { return true; }

  Status attach(const ModelShape& shape, const MethodLimits& limits) override;
  std::vector<PlaneSpec> planes() const override;
  bool codes_view(std::byte* plane, CodesView* out) const override;
  void step_begin(const StepRows& step) override;
  Status select(const SelectInputs& in, Ops& ops, Stream& stream, Selection* out) override;
  int64_t estimate_blocks(int64_t tokens, int32_t budget_tokens) const override;
  int64_t summary_bytes(int64_t row_len) const override;

 private:
  GsaOptions options_;
  ModelShape shape_;
  MethodLimits limits_;
  std::optional<HashRotation> rotation_;
  int32_t groups_ = 1;             // lists per row
  int64_t units_capacity_ = 0;     // of units_, in entries
  // Sized in attach() for the largest step; pages of units_ are taken from the system as steps touch them.
  std::unique_ptr<int32_t[]> units_;   // [rows, groups, capacity of this step]
  std::unique_ptr<int32_t[]> counts_;  // [rows, groups]
  std::unique_ptr<int32_t[]> k_;       // [rows] blocks each row keeps, from lengths alone
  int32_t capacity_ = 0;               // of this step: its largest k
  int32_t max_len_ = 0;                // of this step
};

}  // namespace fovea
