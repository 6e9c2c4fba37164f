// The operations without an engine, for those who build their own: attention over paged KV, cache writes, selection, and what else
// a forward pass computes. One plain Params struct an operation, in fovea/kernels/<family>.h; docs/kernels.md is the tour.
//
// Pointers in Params are memory of the device (host memory on a CPU), arrays of lengths, indices and counts among them; the caller
// owns it. The Params structs themselves, Selection and LinearParams::weights are host memory, read before the call returns. Shapes
// are row-major, innermost last; T is the number of token rows, H query heads, KV heads, d head_dim, bs block size in tokens.
// Activations are float32, unless a Params has a dtype for them. Operations are enqueued on a stream in order; on a CPU they are
// finished when the call returns. They allocate nothing and wait for nothing: prepare() sizes all scratch once, and what a launch
// looks like follows from the plain numbers of Params alone, never from an array, so that a captured launch replays with other
// lengths.
#pragma once

#include <fovea/kernels/attention.h>
#include <fovea/kernels/cache.h>
#include <fovea/kernels/elementwise.h>
#include <fovea/kernels/indexer.h>
#include <fovea/kernels/limits.h>
#include <fovea/kernels/linear.h>
#include <fovea/kernels/mla.h>
#include <fovea/kernels/moe.h>
#include <fovea/kernels/op_set.h>
#include <fovea/kernels/page_table.h>
#include <fovea/kernels/residency.h>
#include <fovea/kernels/sample.h>
#include <fovea/kernels/select.h>
#include <fovea/kernels/xattention.h>
#include <fovea/status.h>

#include <memory>
#include <string>

namespace fovea {

struct KernelOptions {
  std::string device = "cpu";  // cpu; cuda or cuda:N; ref: the scalar definitions of all operations, slow
  int threads = 0;             // cpu: of its pool, the calling thread among them; 0: one for each core it may use
  // Of linear layers and prefill attention. bf16: where the hardware multiplies it, else float32; and LinearParams::as_many.
  Numerics numerics = Numerics::bf16;
};

// Calls of one object come from one thread at a time and, on a GPU, go to one stream: they share its scratch.
class Kernels {
 public:
  // Errors: invalid_argument, unsupported (no such device here), in one line that names the option.
  static Result<Kernels> create(const KernelOptions& options);
  Kernels(Kernels&&) noexcept;
  Kernels& operator=(Kernels&&) noexcept;
  ~Kernels();

  const std::string& description() const;  // "cpu, 2 threads", "cuda: NVIDIA H200, sm_90, 139.8 GiB"
  OpSet supported() const;

  // Sizes scratch; before the first call, and again where limits grow (no call is under way then).
  Status prepare(const OpsLimits& limits);

  // One method an operation: Status paged_decode(const AttentionParams& params, void* stream = nullptr), and so on; op_set.h lists
  // them. `stream` is a cudaStream_t, null CUDA's default one; a CPU ignores it. Errors: unsupported where the device lacks the
  // operation, invalid_argument where plain numbers of the Params break what its header says: both name it, and nothing was
  // enqueued. What arrays hold is not looked at.
  // On a GPU some arrays are read ahead of earlier work on the stream, and do not change under way: weights (WeightView, norms,
  // signs), and of kv_write and hash_select what says where to read and write (slots, lengths, budgets, page tables). Have these
  // written by copies, or by kernels that ended before the operation ahead of such a call was enqueued.
#define FOVEA_OP(op, Params) Status op(const Params& params, void* stream = nullptr);
  FOVEA_FOR_EACH_OP(FOVEA_OP)
#undef FOVEA_OP

 private:
  struct Impl;
  explicit Kernels(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace fovea
