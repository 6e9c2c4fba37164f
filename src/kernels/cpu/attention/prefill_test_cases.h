// What the tests of both prefill engines share: cases, and the properties that every engine holds bit for
// bit.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/attention_cases.h"
#include "kernels/cpu/attention/prefill_attention.h"
#include "kernels/ops/key_gate.h"
#include "kernels/ref/attention.h"

namespace fovea::testing {

using cpu::PrefillEngine;

// Float32 sums of up to some thousand terms against float64.
constexpr float kFloat32Tolerance = 2e-5f;

struct Tolerance {
  float out = kFloat32Tolerance;
  float lse = kFloat32Tolerance;  // of max(1, |lse|)
};

#ifdef FOVEA_SANITIZED
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// What the shared table leaves out: more rows than a tile has lanes, on both sides of key tiles; groups
// larger than a tile.
inline std::vector<AttentionCase> prefill_cases() {
  std::vector<AttentionCase> cases;
  int index = 0;
  const auto add = [&](AttentionCase c) {
    int64_t longest = 0, pairs = 0;
    for (const SeqShape& s : c.seqs) {
      longest = std::max<int64_t>(longest, s.len);
      pairs += static_cast<int64_t>(s.rows) * s.len * c.heads;
    }
    // Sanitizers are 10 times slower: they walk a third of the table and leave what is large to the plain
    // build.
    if (!kSanitized || (longest < 1000 && pairs < 140000)) cases.push_back(std::move(c));
  };
  for (const AttentionCase& c : attention_cases()) {
    if (!kSanitized || ++index % 3 == 0) add(c);
  }
  add({.name = "tiles", .heads = 8, .kv_heads = 2, .seqs = {{130, 259}, {57, 57}}});
  add({.name = "tiles_d128", .heads = 3, .kv_heads = 1, .head_dim = 128, .seqs = {{140, 385}}, .dtype = DType::f32});
  add({.name = "tiles_masks", .heads = 4, .kv_heads = 2, .seqs = {{111, 300}}, .soft_cap = 3.0f, .window = 140, .alibi = true});
  add({.name = "group_130", .heads = 130, .kv_heads = 1, .seqs = {{3, 140}}});
  add({.name = "xattention",
       .seqs = {{256, 384}},
       .select = true,
       .groups = HeadGroups::per_query_head,
       .tokens_per_unit = 128,
       .rows_per_list = 128,
       .keep = 0.6});
  add({.name = "tiles_list", .heads = 8, .seqs = {{70, 700}}, .select = true, .rows_per_list = 50, .keep = 0.5});
  return cases;
}

inline Status prepare(cpu::PrefillAttention& attention, const AttentionProblem& problem, int threads, const PrefillEngine& engine) {
  OpsLimits limits;
  limits.max_rows = std::max(1, problem.rows());
  limits.head_dim = problem.shape().head_dim;
  return attention.prepare(limits, threads, engine);
}

inline void run(AttentionProblem& problem, ThreadPool& pool, const PrefillEngine& engine) {
  cpu::PrefillAttention attention;
  ASSERT_TRUE(prepare(attention, problem, pool.size(), engine).ok());
  attention.run(problem.params(), pool);
}

// Out and lse of the problem against what they should be.
inline void expect_near(AttentionProblem& problem, const std::vector<float>& want_out, const std::vector<float>& want_lse,
                        Tolerance tolerance = Tolerance()) {
  const std::vector<float>&out = problem.out(), &lse = problem.lse();
  const int64_t d = problem.shape().head_dim;
  for (size_t i = 0; i < out.size(); ++i) {
    ASSERT_NEAR(out[i], want_out[i], tolerance.out) << "(row, head) " << i / d << " dim " << i % d;
  }
  for (size_t i = 0; i < lse.size(); ++i) {
    if (std::isinf(want_lse[i])) {
      ASSERT_EQ(lse[i], want_lse[i]) << "(row, head) " << i;
    } else {
      ASSERT_NEAR(lse[i], want_lse[i], tolerance.lse * std::max(1.0f, std::abs(want_lse[i]))) << "(row, head) " << i;
    }
  }
}

inline float largest_value(const AttentionProblem& problem) {
  float most = 0;
  for (size_t s = 0; s < problem.shape().seqs.size(); ++s) {
    for (float v : problem.values(static_cast<int32_t>(s))) most = std::max(most, std::abs(v));
  }
  return most;
}

inline bool same_bits(const float* a, const float* b, size_t n) { return n == 0 || std::memcmp(a, b, n * sizeof(float)) == 0; }

// The rows [first, end) of a problem as a call of their own.
struct Chunk {
  Chunk(AttentionProblem& problem, int32_t first, int32_t end) : params(problem.params()) {
    const AttentionCase& c = problem.shape();
    const int64_t from = static_cast<int64_t>(first) * c.heads;
    skip_row_heads(params, from);
    params.lse += from;
    for (int32_t s = 0, row = 0; s < params.num_seqs; row += c.seqs[s++].rows) {
      const int32_t begin = std::max(first, row), stop = std::min(end, row + c.seqs[s].rows);
      indptr.push_back(indptr.back() + std::max(0, stop - begin));
      len.push_back(stop > begin ? c.seqs[s].len - (row + c.seqs[s].rows - stop) : c.seqs[s].len);
    }
    params.q_indptr = indptr.data();
    params.seq_len = len.data();
    if (params.selection != nullptr && params.selection->kind != Selection::Kind::all) cut_selection(first, end);
  }
  Chunk(const Chunk&) = delete;

  void cut_selection(int32_t first, int32_t end) {
    const Selection& whole = *params.selection;
    selection = whole;
    int32_t skip = first;
    if (whole.row_indptr != nullptr) {
      skip = 0;
      while (whole.row_indptr[skip + 1] <= first) ++skip;
      for (int32_t r = skip; r <= whole.rows; ++r) {
        selection_indptr.push_back(std::clamp(whole.row_indptr[r], first, end) - first);
      }
      selection.row_indptr = selection_indptr.data();
    }
    selection.rows -= skip;
    const int64_t lists = static_cast<int64_t>(skip) * whole.groups;
    if (whole.units) selection.units += lists * whole.capacity;
    if (whole.counts) selection.counts += lists;
    if (whole.begins) selection.begins += lists;
    if (whole.ends) selection.ends += lists;
    params.selection = &selection;
  }

  AttentionParams params;
  Selection selection;
  std::vector<int32_t> indptr{0}, len, selection_indptr;
};

// A key after the query, though another row of its tile reads it, changes no bit, were it NaN.
inline void expect_no_later_keys(const AttentionCase& c, const PrefillEngine& engine) {
  AttentionProblem problem(c);
  ThreadPool pool(2);
  run(problem, pool, engine);
  const std::vector<float> before = problem.out();
  const int64_t width = static_cast<int64_t>(c.heads) * c.head_dim;
  for (int32_t last = 1; last <= 2; ++last) {  // first the last row's key, then the last two rows'
    for (int32_t s = 0; s < static_cast<int32_t>(c.seqs.size()); ++s) {
      if (c.seqs[s].rows >= last) problem.write_token(s, c.seqs[s].len - last, NAN, last == 1 ? NAN : INFINITY);
    }
    run(problem, pool, engine);
    for (int32_t row = 0; row < problem.rows(); ++row) {
      if (problem.row_pos(row) >= c.seqs[problem.row_seq(row)].len - last) continue;
      ASSERT_TRUE(same_bits(&problem.out()[row * width], &before[row * width], width)) << "row " << row;
    }
  }
}

// Any cut of the rows and any number of threads gives the same bits.
inline void expect_rows_alone(const AttentionCase& c, const PrefillEngine& engine) {
  AttentionProblem problem(c);
  ThreadPool one(1), two(2);
  run(problem, one, engine);
  const std::vector<float> out = problem.out(), lse = problem.lse();
  cpu::PrefillAttention attention;
  ASSERT_TRUE(prepare(attention, problem, 2, engine).ok());
  const int32_t sizes[] = {1, 2, 5, 17, 64};
  for (int32_t start : {0, 3}) {
    std::fill(problem.out().begin(), problem.out().end(), NAN);
    for (int32_t first = 0, i = start; first < problem.rows(); ++i) {
      const int32_t end = std::min(problem.rows(), first + sizes[i % 5]);
      Chunk chunk(problem, first, end);
      attention.run(chunk.params, i % 2 == 0 ? one : two);
      first = end;
    }
    ASSERT_TRUE(same_bits(problem.out().data(), out.data(), out.size()));
    ASSERT_TRUE(same_bits(problem.lse().data(), lse.data(), lse.size()));
  }
}

// A range of KV heads as a call of its own gives the whole call's bits.
inline void expect_head_ranges(const AttentionCase& c, const PrefillEngine& engine) {
  AttentionProblem problem(c);
  ThreadPool pool(2);
  run(problem, pool, engine);
  const std::vector<float> out = problem.out(), lse = problem.lse();
  cpu::PrefillAttention attention;
  ASSERT_TRUE(prepare(attention, problem, pool.size(), engine).ok());
  std::fill(problem.out().begin(), problem.out().end(), NAN);
  std::fill(problem.lse().begin(), problem.lse().end(), NAN);
  for (int32_t first = 0, count = 1; first < c.kv_heads; first += count++) {
    HeadRange range(problem.params(), first, std::min(count, c.kv_heads - first));
    attention.run(range.params, pool);
  }
  ASSERT_TRUE(same_bits(problem.out().data(), out.data(), out.size()));
  ASSERT_TRUE(same_bits(problem.lse().data(), lse.data(), lse.size()));
}

inline void expect_narrow_rows(const PrefillEngine& engine) {
  for (const AttentionCase& c : narrow_cases()) {
    for (const DType dtype : {DType::bf16, DType::f16}) {
      AttentionProblem problem(c);
      NarrowActivations narrow(problem, dtype);
      ThreadPool pool(2);
      cpu::PrefillAttention attention;
      ASSERT_TRUE(prepare(attention, problem, pool.size(), engine).ok());
      attention.run(problem.params(), pool);
      attention.run(narrow.params(), pool);
      EXPECT_EQ(narrow.out(), narrow.rounded(problem.out())) << c.name << " " << dtype_name(dtype);
    }
  }
}

// K and V that come while the call runs, NaN until the gate lets them through, give the bits of those that were there.
inline void expect_gated(const PrefillEngine& engine) {
  AttentionProblem problem({.name = "gated", .heads = 8, .kv_heads = 2, .seqs = {{70, 700}}});
  ThreadPool pool(2);
  run(problem, pool, engine);
  const std::vector<float> out = problem.out(), lse = problem.lse();
  KvView& kv = problem.params().kv;
  ASSERT_EQ(kv.layout, KvLayout::hnd);
  std::vector<uint8_t> k(problem.k_memory().size(), 0xFF), v(problem.v_memory().size(), 0xFF);
  kv.k = k.data(), kv.v = v.data();
  const int32_t blocks = (problem.seq_len()[0] + kv.block_size - 1) / kv.block_size;
  const int64_t element = dtype_bytes(kv.dtype), bytes = int64_t{kv.block_size} * kv.head_dim * element;
  KeyGate gate;
  problem.params().gate = &gate;
  const auto read_all = [&] {
    for (int32_t i = 0; i < 2 * blocks; ++i) {
      if (i % 16 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      const int32_t head = i / blocks, slot = kv.table.slots[head * kv.table.head_stride + i % blocks];
      const int64_t at = (slot * kv.block_stride + head * kv.head_stride) * element;
      std::memcpy(&k[static_cast<size_t>(at)], &problem.k_memory()[static_cast<size_t>(at)], static_cast<size_t>(bytes));
      std::memcpy(&v[static_cast<size_t>(at)], &problem.v_memory()[static_cast<size_t>(at)], static_cast<size_t>(bytes));
      if (i % 5 == 0 || i + 1 == 2 * blocks) gate.open(i + 1);
    }
  };
  double waited_s = 0;
  // A caller that loses its core meanwhile waits for nothing.
  for (int round = 0; round < 100 && waited_s == 0; ++round) {
    std::ranges::fill(k, 0xFF);
    std::ranges::fill(v, 0xFF);
    std::fill(problem.out().begin(), problem.out().end(), NAN);
    gate.close(blocks);
    std::thread reader(read_all);
    run(problem, pool, engine);
    reader.join();
    waited_s = gate.take_waited_s();
    ASSERT_TRUE(same_bits(problem.out().data(), out.data(), out.size()));
    ASSERT_TRUE(same_bits(problem.lse().data(), lse.data(), lse.size()));
  }
  EXPECT_GT(waited_s, 0);
}

}  // namespace fovea::testing
