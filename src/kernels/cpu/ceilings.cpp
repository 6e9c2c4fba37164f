#include "kernels/cpu/ceilings.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/ceilings.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace fovea::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// kAhead: bytes that lines are asked for ahead of their loads, into the L2 cache; 0: not asked for.
template <int64_t kAhead>
double sweep(const float* data, int64_t count) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  auto a = hn::Zero(d), b = hn::Zero(d), c = hn::Zero(d), e = hn::Zero(d);
  int64_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    a = hn::Add(a, hn::LoadU(d, data + i));
    b = hn::Add(b, hn::LoadU(d, data + i + lanes));
    c = hn::Add(c, hn::LoadU(d, data + i + 2 * lanes));
    e = hn::Add(e, hn::LoadU(d, data + i + 3 * lanes));
    for (int64_t at = 0; kAhead > 0 && at < 4 * lanes; at += 16) __builtin_prefetch(data + i + at + kAhead / 4, 0, 2);
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(a, b), hn::Add(c, e))));
}

double Sweep(const float* data, int64_t count, int way) {
  return way == 0 ? sweep<0>(data, count) : way == 1 ? sweep<2048>(data, count) : sweep<4096>(data, count);
}

// kLines: of a page, those that are asked for kPagesAhead pages ahead.
template <int64_t kLines>
double sum_pages(const std::byte* const* pages, int64_t count, int64_t bytes) {
  constexpr int64_t kPagesAhead = 16;
  const int64_t lines = std::min(kLines, bytes / 64);
  double sum = 0;
  for (int64_t i = -kPagesAhead; i < count; ++i) {
    if (i + kPagesAhead < count) {
      for (int64_t line = 0; line < lines; ++line) __builtin_prefetch(pages[i + kPagesAhead] + line * 64, 0, 2);
    }
    if (i >= 0) sum += sweep<0>(reinterpret_cast<const float*>(pages[i]), bytes / 4);
  }
  return sum;
}

double SumPages(const std::byte* const* pages, int64_t count, int64_t bytes, int way) {
  constexpr int64_t kAll = int64_t{1} << 40;
  return way == 0   ? sum_pages<0>(pages, count, bytes)
         : way == 1 ? sum_pages<kAll>(pages, count, bytes)
                    : sum_pages<4>(pages, count, bytes);
}

// Twelve chains: more than latency times ports of any current core.
double Burst(int64_t rounds) {
  const hn::ScalableTag<float> d;
  const auto x = hn::Set(d, 0.999f), y = hn::Set(d, 1e-3f);
  // Each chain begins elsewhere: of equal ones the compiler would compute one.
  const auto start = [&](float i) { return hn::Set(d, 1e-3f * i); };
  auto a0 = start(1), a1 = start(2), a2 = start(3), a3 = start(4), a4 = start(5), a5 = start(6), a6 = start(7), a7 = start(8),
       a8 = start(9), a9 = start(10), a10 = start(11), a11 = start(12);
  for (int64_t i = 0; i < rounds; ++i) {
    a0 = hn::MulAdd(a0, x, y);
    a1 = hn::MulAdd(a1, x, y);
    a2 = hn::MulAdd(a2, x, y);
    a3 = hn::MulAdd(a3, x, y);
    a4 = hn::MulAdd(a4, x, y);
    a5 = hn::MulAdd(a5, x, y);
    a6 = hn::MulAdd(a6, x, y);
    a7 = hn::MulAdd(a7, x, y);
    a8 = hn::MulAdd(a8, x, y);
    a9 = hn::MulAdd(a9, x, y);
    a10 = hn::MulAdd(a10, x, y);
    a11 = hn::MulAdd(a11, x, y);
  }
  const auto s = hn::Add(hn::Add(hn::Add(a0, a1), hn::Add(a2, a3)), hn::Add(hn::Add(a4, a5), hn::Add(a6, a7)));
  // The sum is never negative: the compiler cannot know, so the chains stay.
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(s, hn::Add(hn::Add(a8, a9), hn::Add(a10, a11))))) < 0
             ? 0.0
             : 24.0 * static_cast<double>(rounds) * static_cast<double>(hn::Lanes(d));
}

}  // namespace fovea::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <vector>

#include "base/check.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace fovea::cpu {
namespace {

double sum_over_workers(ThreadPool& pool, double (*burst)(int64_t), int64_t rounds) {
  std::vector<double> done(static_cast<size_t>(pool.size()));
  pool.parallel_for(pool.size(), [&](int64_t t, int) { done[t] = burst(rounds); });
  double sum = 0;
  for (double d : done) sum += d;
  return sum;
}

#if defined(__x86_64__)
__attribute__((target("avx512f,avx512bf16"))) double dots(int64_t rounds) {
  constexpr int kChains = 12;  // as in Burst
  const __m512i x = _mm512_set1_epi32(0x3f803f80), y = _mm512_set1_epi32(0x3a803a80);  // pairs of 1 and of 2^-10
  __m512 sum[kChains];
  for (int c = 0; c < kChains; ++c) sum[c] = _mm512_set1_ps(static_cast<float>(c));
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
    for (__m512& s : sum) s = _mm512_dpbf16_ps(s, reinterpret_cast<__m512bh>(x), reinterpret_cast<__m512bh>(y));
  }
  float total = 0;
  for (const __m512& s : sum) total += _mm512_cvtss_f32(s);
  return total < 0 ? 0.0 : 4.0 * 16 * kChains * static_cast<double>(rounds);
}
#else
double dots(int64_t) { FOVEA_CHECK(false && "AVX-512 is an x86 extension"); }
#endif

}  // namespace

HWY_EXPORT(Sweep);
HWY_EXPORT(SumPages);
HWY_EXPORT(Burst);

double read_sweep(const void* data, int64_t bytes, int way, ThreadPool& pool) {
  constexpr int64_t kSlice = int64_t{1} << 20;  // floats: 4 MiB a task
  const int64_t count = bytes / 4;
  const int64_t tasks = (count + kSlice - 1) / kSlice;
  std::vector<double> sums(static_cast<size_t>(tasks));
  const float* p = static_cast<const float*>(data);
  pool.parallel_for(
      tasks, [&](int64_t t, int) { sums[t] = HWY_DYNAMIC_DISPATCH(Sweep)(p + t * kSlice, std::min(kSlice, count - t * kSlice), way); });
  double sum = 0;
  for (double s : sums) sum += s;
  return sum;
}

double read_pages(const std::byte* const* pages, int64_t count, int64_t bytes, int way, ThreadPool& pool) {
  std::vector<double> sums(static_cast<size_t>(pool.size()));
  pool.parallel_for(pool.size(), [&](int64_t t, int) {
    const int64_t begin = count * t / pool.size(), end = count * (t + 1) / pool.size();
    sums[t] = HWY_DYNAMIC_DISPATCH(SumPages)(pages + begin, end - begin, bytes, way);
  });
  double sum = 0;
  for (double s : sums) sum += s;
  return sum;
}

double fma_burst(int64_t rounds, ThreadPool& pool) {
  return sum_over_workers(pool, [](int64_t n) { return HWY_DYNAMIC_DISPATCH(Burst)(n); }, rounds);
}

double dot_burst(int64_t rounds, ThreadPool& pool) { return sum_over_workers(pool, &dots, rounds); }

}  // namespace fovea::cpu
#endif
