// A method of the gsa family on its own: a shape and options to attach it with.
#pragma once

#include "sparse/gsa/gsa.h"

#include <cstdint>
#include <memory>

namespace fovea::testing {

inline ModelShape shape_of(int32_t block_size = 8) {
  ModelShape s;
  s.num_layers = 3;
  s.num_heads = 4;
  s.kv_heads = 2;
  s.head_dim = 64;
  s.block_size = block_size;
  s.kv_bytes_per_token_head = int64_t{2} * s.head_dim * 4;
  return s;
}

inline GsaOptions options_of(GsaRepresentation representation, int32_t budget_tokens = 32) {
  GsaOptions o;
  o.representation = representation;
  o.budget_tokens = budget_tokens;
  return o;
}

inline Status attach(Gsa& m, const ModelShape& shape) {
  static const std::unique_ptr<Device> device = make_cpu_device();
  StepMemory staging(*device);
  return m.attach(shape, {4, 1000}, *device, staging);
}

}  // namespace fovea::testing
