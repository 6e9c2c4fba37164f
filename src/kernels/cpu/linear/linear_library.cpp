#include "kernels/cpu/linear/linear_library.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <dnnl.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"

// OpenMP's own interface; its header is not installed for every compiler that we build with.
extern "C" int omp_get_max_threads(void);
extern "C" void omp_set_num_threads(int);

namespace fovea::cpu {
namespace {

using dnnl::memory;

struct AlignedFree {
  void operator()(void* p) const { std::free(p); }
};
using Buffer = std::unique_ptr<void, AlignedFree>;

Buffer allocate(size_t bytes) { return Buffer(std::aligned_alloc(64, (bytes + 127) / 64 * 64)); }

dnnl::engine cpu_engine() { return dnnl::engine(dnnl::engine::kind::cpu, 0); }

// What one worker needs to run a primitive: streams and memory handles must not be shared.
struct Bound {
  Bound(const dnnl::engine& engine, const dnnl::matmul::primitive_desc& desc)
      : stream(engine),
        x(desc.src_desc(), engine, nullptr),
        w(desc.weights_desc(), engine, nullptr),
        out(desc.dst_desc(), engine, nullptr),
        scratch(desc.scratchpad_desc(), engine, nullptr) {}

  void run(const dnnl::matmul& product, void* x_at, void* w_at, void* out_at, void* scratch_at) {
    SingleThreaded here;
    x.set_data_handle(x_at);
    w.set_data_handle(w_at);
    out.set_data_handle(out_at);
    scratch.set_data_handle(scratch_at);
    const std::array<dnnl_exec_arg_t, 4> args = {
        {{DNNL_ARG_SRC, x.get()}, {DNNL_ARG_WEIGHTS, w.get()}, {DNNL_ARG_DST, out.get()}, {DNNL_ARG_SCRATCHPAD, scratch.get()}}};
    // The C interface: the C++ one copies the arguments into a new vector.
    const dnnl_status_t status = dnnl_primitive_execute(product.get(), stream.get(), args.size(), args.data());
    FOVEA_CHECK(status == dnnl_success);
  }

  dnnl::stream stream;
  memory x, w, out, scratch;
};

dnnl::matmul::primitive_desc describe(const dnnl::engine& engine, memory::desc x, memory::desc w, memory::desc out) {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return dnnl::matmul::primitive_desc(engine, x, w, out, attributes);
}

Status library_error(const dnnl::error& e, const char* what, int64_t m, int64_t n, int64_t k) {
  return Status::unsupported(std::string("linear: oneDNN has no ") + what + " product of " + std::to_string(m) + " x " +
                             std::to_string(n) + " x " + std::to_string(k) + " (" + e.what() + ")");
}

}  // namespace

SingleThreaded::SingleThreaded() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
SingleThreaded::~SingleThreaded() { omp_set_num_threads(before_); }

// ---- LibraryProduct ------------------------------------------------------------------------------------------------

struct LibraryProduct::Impl {
  dnnl::engine engine;
  dnnl::matmul::primitive_desc desc;
  dnnl::matmul product;
  std::vector<std::unique_ptr<Bound>> bound;  // [workers]
};

LibraryProduct::LibraryProduct(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
LibraryProduct::LibraryProduct(LibraryProduct&&) noexcept = default;
LibraryProduct& LibraryProduct::operator=(LibraryProduct&&) noexcept = default;
LibraryProduct::~LibraryProduct() = default;

Result<LibraryProduct> LibraryProduct::create(int64_t rows, int64_t k, int64_t n, int64_t out_stride, int workers) {
  SingleThreaded here;  // the number of threads is fixed when the kernel is made
  try {
    auto impl = std::make_unique<Impl>();
    impl->engine = cpu_engine();
    impl->desc = describe(impl->engine, {{rows, k}, memory::data_type::bf16, memory::format_tag::ab},
                          {{k, n}, memory::data_type::bf16, memory::format_tag::ba},
                          {{rows, n}, memory::data_type::f32, memory::dims{out_stride, 1}});
    impl->product = dnnl::matmul(impl->desc);
    for (int i = 0; i < workers; ++i) impl->bound.push_back(std::make_unique<Bound>(impl->engine, impl->desc));
    return LibraryProduct(std::move(impl));
  } catch (const dnnl::error& e) {
    return library_error(e, "bf16", rows, n, k);
  }
}

size_t LibraryProduct::scratch_bytes() const { return impl_->desc.scratchpad_desc().get_size(); }

void LibraryProduct::run(int worker, const uint16_t* x, const uint16_t* w, float* out, void* scratch) const {
  impl_->bound[worker]->run(impl_->product, const_cast<uint16_t*>(x), const_cast<uint16_t*>(w), out, scratch);
}

// ---- LibraryGemm ---------------------------------------------------------------------------------------------------

struct LibraryGemm::Impl {
  struct Slice {
    dnnl::matmul::primitive_desc desc;
    dnnl::matmul product;
    std::unique_ptr<Bound> bound;
    Buffer w, scratch;
    int64_t first = 0;  // column of out
  };
  int64_t m = 0, n = 0, k = 0;
  dnnl::engine engine;
  std::vector<Slice> slices;  // one a worker
  Buffer x, out;
};

LibraryGemm::LibraryGemm(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
LibraryGemm::LibraryGemm(LibraryGemm&&) noexcept = default;
LibraryGemm& LibraryGemm::operator=(LibraryGemm&&) noexcept = default;
LibraryGemm::~LibraryGemm() = default;

Result<LibraryGemm> LibraryGemm::create(DType dtype, int64_t m, int64_t n, int64_t k, int workers) {
  if (dtype != DType::f32 && dtype != DType::bf16)
    return Status::unsupported("library GEMM: dtype " + std::string(dtype_name(dtype)) + ", f32 or bf16 expected");
  const auto type = dtype == DType::f32 ? memory::data_type::f32 : memory::data_type::bf16;
  SingleThreaded here;
  try {
    auto impl = std::make_unique<Impl>();
    impl->m = m, impl->n = n, impl->k = k;
    impl->engine = cpu_engine();
    const auto filled = [&](size_t bytes) {  // small numbers: zeros or subnormals would not be measured alike
      Buffer b = allocate(bytes);
      if (dtype == DType::f32)
        std::fill_n(static_cast<float*>(b.get()), bytes / sizeof(float), 0.5f);
      else
        std::fill_n(static_cast<uint16_t*>(b.get()), bytes / sizeof(uint16_t), uint16_t{0x3f00});
      return b;
    };
    impl->x = filled(m * k * dtype_bytes(dtype));
    impl->out = allocate(m * n * sizeof(float));
    std::memset(impl->out.get(), 0, m * n * sizeof(float));
    for (int i = 0; i < workers; ++i) {
      Impl::Slice s;
      s.first = n * i / workers;
      const int64_t width = n * (i + 1) / workers - s.first;
      if (width == 0) continue;
      s.desc = describe(impl->engine, {{m, k}, type, memory::format_tag::ab}, {{k, width}, type, memory::format_tag::any},
                        {{m, width}, memory::data_type::f32, memory::dims{n, 1}});
      s.product = dnnl::matmul(s.desc);
      s.bound = std::make_unique<Bound>(impl->engine, s.desc);
      s.w = filled(s.desc.weights_desc().get_size());
      s.scratch = allocate(s.desc.scratchpad_desc().get_size());
      impl->slices.push_back(std::move(s));
    }
    return LibraryGemm(std::move(impl));
  } catch (const dnnl::error& e) {
    return library_error(e, "packed", m, n, k);
  }
}

void LibraryGemm::run(ThreadPool& pool) {
  pool.parallel_for(static_cast<int64_t>(impl_->slices.size()), [&](int64_t i, int) {
    Impl::Slice& s = impl_->slices[i];
    s.bound->run(s.product, impl_->x.get(), s.w.get(), static_cast<float*>(impl_->out.get()) + s.first, s.scratch.get());
  });
}

double LibraryGemm::flops() const { return 2.0 * impl_->m * impl_->n * impl_->k; }

const char* LibraryGemm::kernel() const { return impl_->slices.empty() ? "none" : impl_->slices[0].desc.impl_info_str(); }

}  // namespace fovea::cpu
