#include "kernels/cpu/linear/linear.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <type_traits>

#include "base/check.h"
#include "kernels/cpu/linear/amx_linear.h"
#include "kernels/cpu/linear/gemv.h"
#include "kernels/cpu/linear/linear_convert.h"
#include "kernels/cpu/linear/linear_f32.h"
#include "kernels/cpu/quant/fp8_gemv.h"
#include "kernels/cpu/quant/interleave.h"
#include "kernels/cpu/quant/unpack.h"

namespace fovea::cpu {
namespace {

static_assert(kFewRows == kGemvMaxRows && kFewRows == kAmxLinearMaxRows && kFewRows == kQuantGemvRows);
constexpr int64_t kTaskBytes = 256 << 10;                   // of weights that one task of few rows reads
constexpr int64_t kTaskRows = 192;                          // at most, a multiple of all units:
constexpr int64_t kGemvUnit = 12;                           // whole register tiles of 4 or 3 rows
constexpr int64_t kGemvUnitOfOne = 8;                       // for one row of x: of 8 rows or 1
constexpr int64_t kTilesUnit = 64;                          // of amx_linear
constexpr int64_t kPieces[] = {512, 256, 128, 64, 32, 16};  // rows that oneDNN kernels are compiled for
constexpr int64_t kDequantisedRows = 4;                     // of W at once for gemv: its register tile
constexpr int64_t kPackRows = 16;                           // rows of x that one task packs

int64_t round_up(int64_t x, int64_t unit) { return (x + unit - 1) / unit * unit; }

int64_t total_n(const LinearParams& p) {
  int64_t n = 0;
  for (int32_t i = 0; i < p.count; ++i) n += p.weights[i].n();
  return n;
}

// Rows of W in a task of few rows: enough to be worth handing out, few enough that no worker waits long at
// the end; a multiple of `unit`, the rows that the kernel takes at once.
int64_t few_width(const LinearParams& p, const LinearWeight& w, int64_t unit, int threads) {
  const int64_t by_bytes = kTaskBytes / (w.w.row_bytes());
  const int64_t by_share = total_n(p) / (4 * threads);
  return std::clamp(std::min(by_bytes, by_share) / unit * unit, unit, kTaskRows);
}

// Whole panels, as many as fit, unless that leaves workers idle.
int64_t f32_width(const LinearParams& p, int threads) {
  const int64_t share = total_n(p) / (3 * threads) / kF32PanelRows * kF32PanelRows;
  return std::clamp(share, kF32PanelRows, kF32SliceRows);
}

int64_t int8_width(const LinearParams& p, int threads) {
  const int64_t share = total_n(p) / (3 * threads) / kQuantPanelRows * kQuantPanelRows;
  return std::clamp(share, kQuantPanelRows, kQuantSliceRows);
}

void add_bias(const LinearWeight& w, int64_t begin, int64_t n, int64_t rows) {
  if (!w.bias) return;
  for (int64_t r = 0; r < rows; ++r) {
    float* out = w.out + r * w.n() + begin;
    for (int64_t j = 0; j < n; ++j) out[j] += w.bias[begin + j];
  }
}

}  // namespace

// ---- Scratch

template <typename T>
Linear::Buffer<T> Linear::allocate(int64_t count) {
  const size_t bytes = static_cast<size_t>(round_up(count * static_cast<int64_t>(sizeof(T)) + 64, 64));
  return Buffer<T>(static_cast<T*>(std::aligned_alloc(64, bytes)));
}

// Slices of W that a worker gives to oneDNN: two a worker where n is small, never more than 1024 rows.
int64_t Linear::library_width(int64_t n) const {
  return std::min(n, std::clamp<int64_t>(round_up(n / (2 * threads_), 64), 64, 1024));
}

Status Linear::prepare(const OpsLimits& limits, int threads, Numerics numerics, const CpuFeatures& features, Int8Rows int8) {
  if (limits.max_rows < 1 || limits.max_k < 1 || limits.max_n < 1 || threads < 1)
    return Status::invalid_argument("linear: max_rows " + std::to_string(limits.max_rows) + ", max_k " +
                                    std::to_string(limits.max_k) + ", max_n " + std::to_string(limits.max_n) + ", threads " +
                                    std::to_string(threads) + ": each must be at least 1");
  limits_ = limits;
  host_ = {numerics, features, int8};
  threads_ = threads;
  shares_ = std::make_unique<TaskShares>(threads);
  products_.clear();
  workers_.clear();
  workers_.resize(threads);
  const int64_t k = limits.max_k;
  bool enough = true;
  const auto need = [&](auto& buffer, int64_t count) {
    using T = std::remove_reference_t<decltype(buffer[0])>;
    buffer = allocate<T>(count);
    enough = enough && buffer != nullptr;
  };
  for (FewRows& few : few_) {
    need(few.even_odd, gemv_packed_floats(kFewRows, k));
    need(few.natural, gemv_packed_floats(kFewRows, k));
    need(few.tiles, amx_packed_halves(k));
    for (auto& packed : few.quantised) need(packed, int8 != Int8Rows::none ? quant_pieces(k) * kFewRows : 0);
  }
  packed_.reset();
  x_bf16_.reset();
  if (!host_.uses_library()) {
    need(packed_, f32_packed_floats(limits.max_rows, k));
    for (Worker& w : workers_) need(w.panels, kF32ScratchFloats);
  } else if (limits.max_rows > kFewRows) {
    need(x_bf16_, limits.max_rows * k);
  }
  x_int8_.reset();
  if (host_.multiplies_int8() && limits.max_rows > kFewRows) {
    need(x_int8_, quant_pieces(k) * limits.max_rows);
    for (Worker& w : workers_) need(w.quant_panels, kQuantScratchPanels);
  }
  if (!enough)
    return Status::resource_exhausted("linear: no memory for the scratch of " + std::to_string(limits.max_rows) + " rows of " +
                                      std::to_string(k));
  return {};
}

Status Linear::add_shape(int k, int n, WeightType type) {
  if (k < 1 || k > limits_.max_k || n < 1 || n > limits_.max_n)
    return Status::invalid_argument("linear: weights [" + std::to_string(n) + ", " + std::to_string(k) + "] beyond max_n " +
                                    std::to_string(limits_.max_n) + ", max_k " + std::to_string(limits_.max_k));
  for (Worker& w : workers_) {
    const int64_t floats = is_plain(type) ? 0 : kDequantisedRows * k;
    if (w.rows_size < floats) w.rows = allocate<float>(w.rows_size = floats);
    if (floats > 0 && !w.rows)
      return Status::resource_exhausted("linear: no memory for rows of " + std::to_string(k) + " dequantised weights");
  }
  if (!host_.uses_library() || limits_.max_rows <= kFewRows) return {};
  const int64_t width = library_width(n);
  int64_t scratch = 0;
  for (const int64_t slice : {width, n % width}) {
    if (slice == 0) continue;
    for (const int64_t rows : kPieces) {
      if (rows > limits_.max_rows || rows < host_.library_rows()) continue;
      const Key key{rows, k, slice, n};
      auto found = products_.find(key);
      if (found == products_.end()) {
        FOVEA_ASSIGN(LibraryProduct product, LibraryProduct::create(rows, k, slice, n, threads_));
        found = products_.emplace(key, std::move(product)).first;
      }
      scratch = std::max(scratch, static_cast<int64_t>(found->second.scratch_bytes()));
    }
  }
  for (Worker& w : workers_) {
    if (w.library_size < scratch) w.library = allocate<uint8_t>(w.library_size = scratch);
    const int64_t converted = type == WeightType::bf16 ? 0 : width * k;
    if (w.weights_size < converted) w.weights = allocate<uint16_t>(w.weights_size = converted);
    if ((scratch > 0 && !w.library) || (converted > 0 && !w.weights))
      return Status::resource_exhausted("linear: no memory for the scratch of weights [" + std::to_string(n) + ", " +
                                        std::to_string(k) + "]");
  }
  return {};
}

// ---- Sharing out the rows of W

template <typename WidthOf>
int64_t Linear::spans(const LinearParams& p, WidthOf width_of) {
  int64_t tasks = 0;
  for (int32_t i = 0; i < p.count; ++i) {
    const int64_t width = width_of(p.weights[i]);
    tasks += (p.weights[i].n() + width - 1) / width;
  }
  return tasks;
}

template <typename WidthOf>
Linear::Span Linear::span_at(const LinearParams& p, int64_t task, WidthOf width_of) {
  for (int32_t i = 0; i < p.count; ++i) {
    const LinearWeight& w = p.weights[i];
    const int64_t width = width_of(w);
    const int64_t tasks = (w.n() + width - 1) / width;
    if (task < tasks) return {&w, task * width, std::min(width, w.n() - task * width)};
    task -= tasks;
  }
  FOVEA_CHECK(false && "linear: a task beyond the last");
}

void Linear::run(const LinearParams& p, ThreadPool& pool) {
  FOVEA_CHECK(p.rows >= 0 && p.rows <= limits_.max_rows && p.k >= 1 && p.k <= limits_.max_k);
  FOVEA_CHECK(pool.size() <= threads_);
  FOVEA_CHECK(std::all_of(p.weights, p.weights + p.count, [&](const LinearWeight& w) { return w.w.cols == p.k; }));
  if (p.rows == 0 || p.count == 0) return;
  if (p.full_precision) return run_full_precision(p, pool);
  const auto rounds = [](const LinearWeight& w) { return quant_gemv_takes(w.w.type); };
  const auto sixteens = [](const LinearWeight& w) { return by_sixteen(w.w.type); };
  const CallWeights weights = !std::all_of(p.weights, p.weights + p.count, rounds)    ? CallWeights::other
                              : std::all_of(p.weights, p.weights + p.count, sixteens) ? CallWeights::sixteens
                                                                                      : CallWeights::quantised;
  const LinearPlan plan = choose(host_, p.rows, false, weights);
  if (plan.many == LinearKernel::int8 || plan.many == LinearKernel::int8_amx) return run_int8(p, plan.many, pool);
  if ((host_.int8 == Int8Rows::all && std::any_of(p.weights, p.weights + p.count, rounds)) ||
      (p.rows <= kFewRows && !(p.as_many && !host_.uses_library()))) {
    for (int32_t first = 0; first < p.rows; first += kFewRows) run_few(p, first, std::min(kFewRows, p.rows - first), pool);
    return;
  }
  plan.many == LinearKernel::library ? run_library(p, plan.many_rows, pool) : run_f32(p, pool);
}

// ---- 1 to 16 rows

void Linear::pack_few(const LinearParams& p, int32_t first, int32_t rows, bool as_many, FewRows& few) const {
  few.first = first;
  few.as_many = as_many;
  few.rows = rows;
  bool even_odd = false, natural = false, tiles = false, quantised[kXOrders] = {};
  for (int32_t i = 0; i < p.count; ++i) {
    const WeightType type = p.weights[i].w.type;
    const LinearKernel kernel = few_kernel(host_, rows, type, as_many);
    if (kernel == LinearKernel::amx)
      tiles = true;
    else if (kernel == LinearKernel::fp8)
      continue;  // takes x as it is
    else if (kernel == LinearKernel::quant)
      quantised[static_cast<int>(x_order(p.weights[i].w, host_.features))] = true;
    else
      (type == WeightType::bf16 ? even_odd : natural) = true;
  }
  const float* x = few.x = p.x + static_cast<int64_t>(first) * p.k;
  if (even_odd) gemv_pack(x, p.k, rows, p.k, DType::bf16, few.even_odd.get());
  if (natural) gemv_pack(x, p.k, rows, p.k, DType::f32, few.natural.get());
  if (tiles) amx_linear_pack(x, p.k, rows, p.k, few.tiles.get());
  for (int i = 0; i < kXOrders; ++i) {
    if (quantised[i]) quantise_x(x, rows, p.k, 0, rows, static_cast<XOrder>(i), few.quantised[i].get());
  }
}

void Linear::multiply_few(const LinearParams& p, const Span& span, const FewRows& few, int worker) const {
  const LinearWeight& w = *span.weight;
  const LinearKernel kernel = few_kernel(host_, few.rows, w.w.type, few.as_many);
  const uint8_t* rows_of_w = w.w.row(span.begin);
  const float* bias = w.bias ? w.bias + span.begin : nullptr;
  float* out = w.out + static_cast<int64_t>(few.first) * w.n() + span.begin;
  if (kernel == LinearKernel::quant) {
    const XOrder order = x_order(w.w, host_.features);
    quant_gemv({.packed = few.quantised[static_cast<int>(order)].get(),
                .rows = few.rows,
                .w = w.w.some_rows(span.begin, span.n),
                .bias = bias,
                .out = out,
                .out_stride = w.n()},
               host_.features);
    return;
  }
  if (kernel == LinearKernel::fp8) return fp8_gemv({few.x, p.k, few.rows, w.w.some_rows(span.begin, span.n), bias, out, w.n()});
  if (!is_plain(w.w.type)) return multiply_dequantised(span, few, p.k, workers_[worker].rows.get());
  if (kernel == LinearKernel::amx) {
    amx_linear({.packed = few.tiles.get(),
                .rows = few.rows,
                .k = p.k,
                .w = reinterpret_cast<const uint16_t*>(rows_of_w),
                .n = span.n,
                .bias = bias,
                .out = out,
                .out_stride = w.n()});
    return;
  }
  const float* packed = w.dtype() == DType::bf16 ? few.even_odd.get() : few.natural.get();
  gemv({.packed = packed,
        .rows = few.rows,
        .k = p.k,
        .w = rows_of_w,
        .dtype = w.dtype(),
        .n = span.n,
        .bias = bias,
        .out = out,
        .out_stride = w.n()});
}

// As gemv for float32 weights, of which a register tile at a time lies in cache.
void Linear::multiply_dequantised(const Span& span, const FewRows& few, int64_t k, float* rows_of_w) const {
  const LinearWeight& w = *span.weight;
  for (int64_t j = span.begin; j < span.begin + span.n; j += kDequantisedRows) {
    const int64_t n = std::min(kDequantisedRows, span.begin + span.n - j);
    for (int64_t i = 0; i < n; ++i) unpack_f32(w.w, j + i, 0, k, rows_of_w + i * k);
    gemv({.packed = few.natural.get(),
          .rows = few.rows,
          .k = k,
          .w = rows_of_w,
          .dtype = DType::f32,
          .n = n,
          .bias = w.bias ? w.bias + j : nullptr,
          .out = w.out + int64_t{few.first} * w.n() + j,
          .out_stride = w.n(),
          .in_cache = true});
  }
}

void Linear::run_few(const LinearParams& p, int32_t first, int32_t rows, ThreadPool& pool) {
  pack_few(p, first, rows, p.as_many, few_[0]);
  const auto width_of = [&](const LinearWeight& w) {
    const bool tiles = few_kernel(host_, rows, w.w.type, p.as_many) == LinearKernel::amx;
    const int64_t unit = tiles ? kTilesUnit : w.w.interleaved ? kInterleavedRows : rows == 1 ? kGemvUnitOfOne : kGemvUnit;
    return few_width(p, w, unit, pool.size());
  };
  shares_->parallel_for(pool, spans(p, width_of),
                        [&](int64_t task, int worker) { multiply_few(p, span_at(p, task, width_of), few_[0], worker); });
}

// ---- Many rows, float32

// The kernel for few rows, as often as it takes: there are few outputs, and it is the one that no mode rounds for.
void Linear::run_full_precision(const LinearParams& p, ThreadPool& pool) {
  constexpr int64_t kSlice = 24;  // outputs of a task: whole register tiles
  for (int32_t i = 0; i < p.count; ++i) {
    const LinearWeight& w = p.weights[i];
    FOVEA_CHECK(is_plain(w.w.type));
    for (int32_t first = 0; first < p.rows; first += kFewRows) {
      const int32_t rows = std::min(kFewRows, p.rows - first);
      float* packed = few_[0].natural.get();
      gemv_pack(p.x + int64_t{first} * p.k, p.k, rows, p.k, w.dtype(), packed);
      pool.parallel_for((w.n() + kSlice - 1) / kSlice, [&](int64_t slice, int) {
        const int64_t n = slice * kSlice;
        gemv({.packed = packed,
              .rows = rows,
              .k = p.k,
              .w = w.w.row(n),
              .dtype = w.dtype(),
              .n = std::min(kSlice, w.n() - n),
              .bias = w.bias ? w.bias + n : nullptr,
              .out = w.out + int64_t{first} * w.n() + n,
              .out_stride = w.n()});
      });
    }
  }
}

void Linear::run_f32(const LinearParams& p, ThreadPool& pool) {
  pool.parallel_for((p.rows + kPackRows - 1) / kPackRows, [&](int64_t task, int) {
    f32_pack(p.x, p.rows, p.k, task * kPackRows, std::min<int64_t>(p.rows, (task + 1) * kPackRows), packed_.get());
  });
  const int64_t width = f32_width(p, pool.size());
  const auto width_of = [width](const LinearWeight&) { return width; };
  pool.parallel_for(spans(p, width_of), [&](int64_t task, int worker) {
    const Span span = span_at(p, task, width_of);
    const LinearWeight& w = *span.weight;
    linear_f32({.packed = packed_.get(),
                .rows = p.rows,
                .k = p.k,
                .w = w.w.some_rows(span.begin, span.n),
                .bias = w.bias ? w.bias + span.begin : nullptr,
                .out = w.out + span.begin,
                .out_stride = w.n()},
               workers_[worker].panels.get());
  });
}

// ---- Many rows, int8

void Linear::run_int8(const LinearParams& p, LinearKernel kernel, ThreadPool& pool) {
  const bool tiles = kernel == LinearKernel::int8_amx;
  pool.parallel_for((p.rows + kPackRows - 1) / kPackRows, [&](int64_t task, int) {
    const int64_t begin = task * kPackRows, end = std::min<int64_t>(p.rows, begin + kPackRows);
    quantise_x(p.x, p.rows, p.k, begin, end, tiles ? XOrder::natural : XOrder::biased, x_int8_.get());
  });
  const int64_t width = int8_width(p, pool.size());
  const auto width_of = [width](const LinearWeight&) { return width; };
  pool.parallel_for(spans(p, width_of), [&](int64_t task, int worker) {
    const Span span = span_at(p, task, width_of);
    const LinearWeight& w = *span.weight;
    const QuantGemmSlice slice{.packed = x_int8_.get(),
                               .rows = p.rows,
                               .w = w.w.some_rows(span.begin, span.n),
                               .bias = w.bias ? w.bias + span.begin : nullptr,
                               .out = w.out + span.begin,
                               .out_stride = w.n()};
    (tiles ? quant_gemm_amx : quant_gemm)(slice, workers_[worker].quant_panels.get());
  });
}

// ---- Many rows, bf16

void Linear::run_library(const LinearParams& p, int32_t rows, ThreadPool& pool) {
  for (int32_t i = 0; i < p.count; ++i) {
    if (p.weights[i].n() > 0) FOVEA_CHECK(add_shape(p.k, p.weights[i].n(), p.weights[i].w.type).ok());
  }
  pool.parallel_for((p.rows + kPackRows - 1) / kPackRows, [&](int64_t task, int) {
    const int64_t begin = task * kPackRows * p.k, end = std::min<int64_t>(p.rows, (task + 1) * kPackRows) * p.k;
    round_to_bf16(p.x + begin, end - begin, x_bf16_.get() + begin);
  });
  // oneDNN takes whole pieces; what is left goes to the kernels for few rows, at most 16 at a time.
  int groups = 0;
  for (int32_t first = rows; first < p.rows; first += kFewRows)
    pack_few(p, first, std::min(kFewRows, p.rows - first), true, few_[groups++]);
  const auto width_of = [&](const LinearWeight& w) { return w.n() > 0 ? library_width(w.n()) : 1; };
  pool.parallel_for(spans(p, width_of),
                    [&](int64_t task, int worker) { multiply_library(p, span_at(p, task, width_of), worker, rows, groups); });
}

void Linear::multiply_library(const LinearParams& p, const Span& span, int worker, int64_t rows, int few_groups) {
  const LinearWeight& w = *span.weight;
  Worker& own = workers_[worker];
  const int64_t k = p.k;
  const auto* weights = reinterpret_cast<const uint16_t*>(w.w.row(span.begin));
  if (w.w.type != WeightType::bf16) {
    unpack_bf16(w.w, span.begin, span.n, own.weights.get());
    weights = own.weights.get();
  }
  int64_t row = 0;
  for (const int64_t piece : kPieces) {
    for (; row + piece <= rows; row += piece) {
      const auto found = products_.find(Key{piece, k, span.n, w.n()});
      FOVEA_CHECK(found != products_.end());
      found->second.run(worker, x_bf16_.get() + row * k, weights, w.out + row * w.n() + span.begin, own.library.get());
    }
  }
  add_bias(w, span.begin, span.n, rows);
  for (int i = 0; i < few_groups; ++i) multiply_few(p, span, few_[i], worker);
}

}  // namespace fovea::cpu
