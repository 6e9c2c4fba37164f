// GSA On-Device (UCM; docs/algorithms.md): per-token sign-hash codes of keys, scores of the query against them, top-k
// blocks per KV head. Codes live in the plane `codes` and are written by the fused cache write.
#pragma once

#include "sparse/gsa_family/gsa_family.h"

#include <cstddef>
#include <string_view>
#include <utility>

namespace fovea {

class GsaOnDevice : public GsaFamily {
 public:
  explicit GsaOnDevice(GsaOptions options) : GsaFamily(std::move(options)) {}

  std::string_view name() const override { return "gsa_on_device"; }
  bool chooses_without_keys() const override { return true; }

  Status attach(const ModelShape& shape, const MethodLimits& limits, Device& device, StepMemory& staging) override;
  std::vector<PlaneSpec> planes() const override { return {codes_plane(options_, shape_, scores_on_host())}; }
  bool codes_view(std::byte* plane, CodesView* out) const override;
  void on_kv_written(const KvWritten& written, Ops& ops, Stream& stream) override;
  int64_t summary_bytes(int64_t row_len) const override { return row_len * shape_.kv_heads * code_bytes(options_, shape_); }

 private:
  Status score(const SelectInputs& in, int32_t* units, Ops& ops, Stream& stream) override {
    return select_by_codes(in, units, ops, stream);
  }
};

}  // namespace fovea
