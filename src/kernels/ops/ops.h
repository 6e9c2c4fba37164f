// Ops: every numeric operation of a forward pass, behind one interface. One plain Params struct per operation:
// fovea/kernels/<family>.h; fovea/kernels.h has the conventions, and offers them to others.
//
// Input that violates a stated bound is a bug and asserts (where the host can see it).
#pragma once

#include <fovea/kernels.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

namespace fovea {

class Stream;

// What makes the result of a gated call of its two products.
inline SiluMulParams gate_of(const LinearParams& p) {
  return {.gate = p.weights[0].out, .up = p.weights[1].out, .out = p.weights[0].out, .rows = p.rows, .dim = p.weights[0].n()};
}

class Ops {
 public:
  virtual ~Ops() = default;
  virtual std::string_view name() const = 0;
  virtual Numerics numerics() const = 0;
  // What this backend has: ref every operation, cpu all but those that copy between a device's memory and the host's, cuda what
  // cuda_op_set() lists. Ask before use (at attach, at load): calling an operation that is not in the set is a bug and aborts.
  virtual OpSet supported() const = 0;
  // Whether embed and linear take weights of this type, and whether moe_experts does; others take plain ones alone. Ask at load.
  virtual bool takes(WeightType type) const { return is_plain(type); }
  virtual bool experts_take(WeightType type) const { return takes(type); }
  virtual Status prepare(const OpsLimits& limits) = 0;

  // One method an operation: void embed(const EmbedParams&, Stream&), and so on.
  // paged_decode takes each row on its own: memory-bound, split over blocks and merged; splits depend on the row's length alone.
  // paged_prefill takes tiles of query rows: compute-bound; a row's bits do not depend on which rows share its tile.
#define FOVEA_OP(op, Params) \
  virtual void op(const Params&, Stream&) { lacks(OpKind::op); }
  FOVEA_FOR_EACH_OP(FOVEA_OP)
#undef FOVEA_OP

  // A norm, then products that alone read its result: x is first.out, which may be left unwritten. A backend with something better
  // than one after the other overrides it, and what follows.
  virtual void linear_after(const RmsNormParams& first, const LinearParams& p, Stream& s) {
    rms_norm(first, s);
    linear(p, s);
  }
  // A feed-forward layer: linear_after() with gate_up, which is gated, then down of its result, which it alone reads.
  virtual void feed_forward(const RmsNormParams& first, const LinearParams& gate_up, const LinearParams& down, Stream& s) {
    linear_after(first, gate_up, s);
    linear(down, s);
  }

 private:
  [[noreturn]] void lacks(OpKind op) const {
    std::fprintf(stderr, "fovea: %s is not an operation of backend %s\n", op_name(op), std::string(name()).c_str());
    std::abort();
  }
};

}  // namespace fovea
