// Ops: every numeric operation of a forward pass, behind one interface. One plain Params struct per operation.
//
// Pointers are device memory of the backend (host memory for ref and cpu), arrays of lengths, indices and counts among
// them; the Params structs themselves, Selection and LinearParams::weights are host memory, read before the call returns.
// Shapes are row-major, innermost last; T is the number of token rows, H query heads, KV heads, d head_dim, bs block size
// in tokens. Activations are float32.
// Operations are enqueued on `stream` in order; on the CPU they are finished when the call returns. They allocate
// nothing and wait for nothing: prepare() sizes all scratch once, and what a launch looks like follows from the plain
// numbers of Params alone, never from an array, so that a captured launch replays with other lengths.
// Input that violates a stated bound is a bug and asserts (where the host can see it).
#pragma once

#include <fovea/status.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "kernels/ops/attention.h"
#include "kernels/ops/dsa.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/kv_write.h"
#include "kernels/ops/limits.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/mla.h"
#include "kernels/ops/moe.h"
#include "kernels/ops/op_set.h"
#include "kernels/ops/residency.h"
#include "kernels/ops/sample.h"
#include "kernels/ops/select.h"
#include "kernels/ops/xattention.h"

namespace fovea {

class Stream;

class Ops {
 public:
  virtual ~Ops() = default;
  virtual std::string_view name() const = 0;
  virtual Numerics numerics() const = 0;
  // What this backend has: ref every operation, cpu all but those that copy between a device's memory and the host's, cuda what a
  // GQA model needs and the choice by hash codes. Ask before
  // use (at attach, at load): calling an operation that is not in the set is a bug and aborts.
  virtual OpSet supported() const = 0;
  virtual Status prepare(const OpsLimits& limits) = 0;

  // One method an operation: void embed(const EmbedParams&, Stream&), and so on.
  // paged_decode takes each row on its own: memory-bound, split over blocks and merged; splits depend on the row's length alone.
  // paged_prefill takes tiles of query rows: compute-bound; a row's bits do not depend on which rows share its tile.
#define FOVEA_OP(op, Params) \
  virtual void op(const Params&, Stream&) { lacks(OpKind::op); }
  FOVEA_FOR_EACH_OP(FOVEA_OP)
#undef FOVEA_OP

 private:
  [[noreturn]] void lacks(OpKind op) const {
    std::fprintf(stderr, "fovea: %s is not an operation of backend %s\n", op_name(op), std::string(name()).c_str());
    std::abort();
  }
};

}  // namespace fovea
