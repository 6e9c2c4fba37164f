// Hostile problems for whole blocks, element types, page tables and the parts of hash_select, as the tests of every backend walk
// them. Array<T> is memory of the backend: made of a vector, with data() and download().
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/hash_cases.h"
#include "kernels/ref/cache_ops.h"
#include "kernels/ref/hash.h"
#include "kernels/ref/hash_ops.h"

namespace fovea::testing {

template <typename T>
struct HostArray {
  explicit HostArray(std::vector<T> values) : host(std::move(values)) {}
  T* data() { return host.data(); }
  std::vector<T> download() const { return host; }
  std::vector<T> host;
};

// Planes of different sizes and strides, pairs in any order; what is no target stays.
template <template <typename> typename Array, typename Run>
void expect_copy_blocks(const Run& run) {
  constexpr int kBlocks = 9;
  struct Plane {
    int64_t bytes, from_stride, to_stride;
  };
  const std::vector<Plane> shapes = {{16, 16, 16}, {4096, 4096, 4112}, {70000, 70016, 70000}, {48, 64, 160}};
  const std::vector<std::vector<int64_t>> lists = {{}, {3, 0}, {8, 1, 8, 2, 5, 0, 4, 7}};
  for (const auto& pairs : lists) {
    std::mt19937 rng(3);
    std::vector<std::vector<uint8_t>> from, to, want;
    for (const Plane& s : shapes) {
      from.emplace_back(kBlocks * s.from_stride);
      to.emplace_back(kBlocks * s.to_stride);
      for (auto* memory : {&from.back(), &to.back()}) {
        for (uint8_t& x : *memory) x = static_cast<uint8_t>(rng());
      }
    }
    want = to;
    std::vector<Array<uint8_t>> device_from, device_to;
    std::vector<BlockPlane> host_planes, planes;
    for (size_t i = 0; i < shapes.size(); ++i) {
      const Plane& s = shapes[i];
      device_from.emplace_back(from[i]);
      device_to.emplace_back(to[i]);
      host_planes.push_back({from[i].data(), want[i].data(), s.from_stride, s.to_stride, s.bytes});
      planes.push_back({device_from[i].data(), device_to[i].data(), s.from_stride, s.to_stride, s.bytes});
    }
    const auto count = static_cast<int32_t>(pairs.size() / 2), num_planes = static_cast<int32_t>(planes.size());
    ref::copy_blocks({host_planes.data(), num_planes, pairs.data(), count});
    Array<BlockPlane> device_planes(planes);
    Array<int64_t> device_pairs(pairs);
    run(CopyBlocksParams{device_planes.data(), num_planes, device_pairs.data(), count});
    for (size_t i = 0; i < shapes.size(); ++i) EXPECT_EQ(device_to[i].download(), want[i]) << count << " pairs, plane " << i;
  }
}

// Within one cache.
template <template <typename> typename Array, typename Run>
void expect_copy_within(const Run& run) {
  std::vector<uint8_t> memory(8 * 32);
  for (size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<uint8_t>(i);
  Array<uint8_t> device(memory);
  Array<BlockPlane> plane({BlockPlane{device.data(), device.data(), 32, 32, 32}});
  Array<int64_t> pairs({0, 5, 0, 6, 3, 7});
  run(CopyBlocksParams{plane.data(), 1, pairs.data(), 3});
  std::memcpy(&memory[5 * 32], &memory[0], 32);
  std::memcpy(&memory[6 * 32], &memory[0], 32);
  std::memcpy(&memory[7 * 32], &memory[3 * 32], 32);
  EXPECT_EQ(device.download(), memory);
}

// Every pair of types over every edge of both, with scales and without.
template <template <typename> typename Array, typename Run>
void expect_convert(const Run& run) {
  const DType types[] = {DType::f32, DType::f16, DType::bf16, DType::fp8_e4m3, DType::fp8_e5m2};
  const float edges[] = {0.0f,    -0.0f,  INFINITY, -INFINITY, NAN,    65504.0f, 65520.0f, 1e-8f,    6e-8f,    1.00390625f,
                         3.4e38f, 1e-40f, 447.9f,   448.1f,    464.0f, 61441.0f, -432.0f,  0x1p-10f, 0x3p-17f, 1.0625f};
  const std::vector<float> in_scales = {0.5f, 3.0f, 0.013f}, out_scales = {0.25f, 0.7f, 11.0f};
  constexpr int64_t kRows = 5, kElements = 333;
  for (const DType in : types) {
    for (const DType out : types) {
      for (int scaled = 0; scaled < 4; ++scaled) {
        std::mt19937 rng(7);
        std::normal_distribution<float> normal;
        const size_t size = kRows * in_scales.size() * kElements;
        std::vector<uint8_t> from(size * dtype_bytes(in)), want(size * dtype_bytes(out), 0xcc);
        for (size_t i = 0; i < size; ++i) store_f32(from.data(), in, i, i % 3 ? normal(rng) : edges[i / 3 % std::size(edges)]);
        Array<uint8_t> device_from(from), device_to(want);
        Array<float> in_scale(in_scales), out_scale(out_scales);
        ConvertParams p{from.data(), want.data(), in, out, kRows, static_cast<int32_t>(in_scales.size()), kElements};
        p.in_scale = scaled & 1 ? in_scales.data() : nullptr;
        p.out_scale = scaled & 2 ? out_scales.data() : nullptr;
        ref::convert(p);
        p.in = device_from.data(), p.out = device_to.data();
        p.in_scale = scaled & 1 ? in_scale.data() : nullptr;
        p.out_scale = scaled & 2 ? out_scale.data() : nullptr;
        run(p);
        const std::vector<uint8_t> got = device_to.download();
        for (size_t i = 0; i < size; ++i) {
          const float a = load_as_f32(got.data(), out, i), b = load_as_f32(want.data(), out, i);
          ASSERT_TRUE(std::isnan(a) ? std::isnan(b) : a == b && std::signbit(a) == std::signbit(b))
              << dtype_name(in) << " to " << dtype_name(out) << ", element " << i << ": " << a << ", not " << b;
        }
      }
    }
  }
}

// Empty rows, rows that fill their blocks and rows longer than the table; tables without rows; too little room.
template <template <typename> typename Array, typename ToCsr, typename FromCsr>
void expect_page_tables(const ToCsr& to_csr, const FromCsr& from_csr) {
  constexpr int kBlockSize = 16, kStride = 7;
  std::vector<int32_t> hostile = {0, 1, 15, 16, 17, 0, 112, 113, 200, -3, 0, 33}, many(700);
  for (size_t i = 0; i < many.size(); ++i) many[i] = static_cast<int32_t>(i * 37 % 113);
  for (const std::vector<int32_t>& lens : {hostile, many, std::vector<int32_t>(), std::vector<int32_t>{0}}) {
    for (const int64_t capacity : {int64_t{5000}, int64_t{20}}) {
      const auto rows = static_cast<int32_t>(lens.size());
      std::vector<int32_t> table(lens.size() * kStride);
      for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int32_t>(1000 + i * 7);
      std::vector<int32_t> indptr(rows + 1, -9), last(lens.size() + 1, -9), indices(capacity, -9);
      Array<int32_t> d_table(table), d_lens(lens), d_indptr(indptr), d_last(last), d_indices(indices);
      ref::page_table_to_csr(
          {table.data(), kStride, lens.data(), rows, kBlockSize, indptr.data(), last.data(), indices.data(), capacity});
      to_csr(PageTableToCsrParams{d_table.data(), kStride, d_lens.data(), rows, kBlockSize, d_indptr.data(), d_last.data(),
                                  d_indices.data(), capacity});
      EXPECT_EQ(d_indptr.download(), indptr);
      EXPECT_EQ(d_last.download(), last);
      EXPECT_EQ(d_indices.download(), indices);
      if (indptr.back() > capacity) continue;
      for (const int64_t stride : {int64_t{kStride}, int64_t{9}, int64_t{2}}) {
        std::vector<int32_t> back(lens.size() * stride + 1, -9), back_lens(lens.size() + 1, -9);
        Array<int32_t> d_back(back), d_back_lens(back_lens);
        ref::csr_to_page_table(
            {indptr.data(), indices.data(), last.data(), rows, kBlockSize, back.data(), stride, back_lens.data()});
        from_csr(CsrToPageTableParams{d_indptr.data(), d_indices.data(), d_last.data(), rows, kBlockSize, d_back.data(), stride,
                                      d_back_lens.data()});
        EXPECT_EQ(d_back.download(), back) << "stride " << stride;
        EXPECT_EQ(d_back_lens.download(), back_lens);
      }
    }
  }
}

// hash_encode of a problem's queries, hamming_scores of these, are what ref makes of them; block_topk by such scores chooses what
// hash_select does.
template <template <typename> typename Array, typename Encode, typename Score>
void expect_hash_parts(const Encode& encode, const Score& score) {
  for (const auto& [shape, codes] : hash_cases()) {
    SCOPED_TRACE(::testing::Message() << shape);
    HashProblem s(shape, 4, 300, codes);
    const int words = shape.bits / 64;
    const int64_t vectors = int64_t{shape.rows} * shape.heads;
    std::vector<uint64_t> want(vectors * words, 7);
    std::vector<uint16_t> factors(vectors, 7);
    Array<uint64_t> d_codes(want);
    Array<uint16_t> d_factors(factors);
    Array<float> q(s.q), signs(s.signs);
    HashEncodeParams e{s.q.data(), vectors, s.codec, want.data(), factors.data()};
    ref::hash_encode(e);
    e.x = q.data(), e.codec.signs = signs.data(), e.codes = d_codes.data(), e.factors = d_factors.data();
    encode(e);
    EXPECT_EQ(d_codes.download(), want);
    EXPECT_EQ(d_factors.download(), factors);
    if (codes != Codes::symmetric) continue;

    std::vector<float> scores(int64_t{shape.rows} * shape.kv_heads * s.max_blocks, -9.0f);
    Array<float> d_scores(scores);
    Array<int32_t> row_seq(s.row_seq), row_len(s.row_len), slots(s.slots);
    Array<uint64_t> keys(s.codes);
    HammingScoresParams p;
    p.rows = shape.rows, p.num_heads = shape.heads, p.kv_heads = shape.kv_heads, p.block_size = shape.block_size;
    p.query_codes = want.data(), p.row_seq = s.row_seq.data(), p.row_len = s.row_len.data();
    p.table = s.p.table, p.codes = s.p.codes, p.scores = scores.data(), p.max_blocks = s.max_blocks;
    ref::hamming_scores(p);
    p.query_codes = d_codes.data(), p.row_seq = row_seq.data(), p.row_len = row_len.data();
    p.table.slots = slots.data(), p.codes.codes = keys.data(), p.scores = d_scores.data();
    score(p);
    EXPECT_EQ(d_scores.download(), scores);
  }
}

}  // namespace fovea::testing
