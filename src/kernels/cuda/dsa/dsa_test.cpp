// The DSA indexer on a GPU, over the table that the CPU's tests walk.
#include "kernels/cuda/dsa/dsa.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/gpu_test_util.h"
#include "kernels/dsa_cases.h"
#include "kernels/ref/dsa_index.h"
#include "kernels/ref/dsa_topk.h"

namespace fovea {
namespace {

using testing::device_ok;
using testing::DeviceArray;
using testing::DsaCase;
using testing::DsaLists;
using testing::DsaProblem;
using testing::IndexData;

template <typename T>
DeviceArray<T> upload(const T* from, int64_t count) {
  return DeviceArray<T>(std::vector<T>(from, from + count));
}

// A choice whose arrays lie on the device, `fill` in its outputs.
class OnDevice {
 public:
  OnDevice(const IndexTopkParams& p, int64_t seqs, int64_t slots)
      : q_(upload(p.q, int64_t{p.rows} * p.heads * p.keys.dim)),
        weights_(upload(p.weights, int64_t{p.rows} * p.heads)),
        row_seq_(upload(p.row_seq, p.rows)),
        row_len_(upload(p.row_len, p.rows)),
        table_(upload(p.keys.block_table, seqs * p.keys.table_stride)),
        keys_(upload(static_cast<const std::byte*>(p.keys.k), slots * p.keys.dim * index_element_bytes(p.keys.precision))),
        indices_(std::vector<int32_t>(int64_t{p.rows} * p.out.capacity, -7)),
        counts_(std::vector<int32_t>(p.rows, -7)),
        p_(p) {
    if (p.keys.scale) scales_ = upload(p.keys.scale, slots);
    p_.q = q_.data(), p_.weights = weights_.data(), p_.row_seq = row_seq_.data(), p_.row_len = row_len_.data();
    p_.keys.k = keys_.data(), p_.keys.scale = scales_.data(), p_.keys.block_table = table_.data();
    p_.out.indices = indices_.data(), p_.out.counts = counts_.data();
    if (p.mapped.indices) {
      mapped_ = DeviceArray<int32_t>(std::vector<int32_t>(int64_t{p.rows} * p.mapped.capacity, -7));
      starts_ = upload(p.ragged_start, p.rows);
      p_.mapped.indices = mapped_.data(), p_.ragged_start = starts_.data();
    }
    if (p.logits) {
      logits_ = DeviceArray<float>(std::vector<float>(p.logits_floats));
      p_.logits = logits_.data();
    }
  }

  const IndexTopkParams& params() const { return p_; }
  void set_lengths(const std::vector<int32_t>& row_len) { row_len_.upload(row_len); }
  // What the choice left, where the host's Params want it.
  void download(const IndexTopkParams& to) const {
    const auto copy = [](const DeviceArray<int32_t>& from, int32_t* into) { std::ranges::copy(from.download(), into); };
    copy(indices_, to.out.indices);
    copy(counts_, to.out.counts);
    if (to.mapped.indices) copy(mapped_, to.mapped.indices);
  }

 private:
  DeviceArray<float> q_, weights_, scales_, logits_;
  DeviceArray<int32_t> row_seq_, row_len_, table_, starts_;
  DeviceArray<std::byte> keys_;
  DeviceArray<int32_t> indices_, counts_, mapped_;
  IndexTopkParams p_;
};

struct How {
  Numerics numerics = Numerics::f32;  // bf16: on tensor cores, where the device has those that there is a kernel for
  IndexSpace space = IndexSpace::slot;
  int32_t logits_rows = 0;
  int32_t max_rows = 0;  // what is prepared for; 0: the problem's
};

class DsaTest : public testing::GpuTest {
 protected:
  void prepare(cuda::IndexTopk& topk, int32_t heads, int32_t dim, int32_t k, int32_t max_rows, Numerics numerics = Numerics::f32) {
    OpsLimits limits;
    limits.max_rows = max_rows;
    limits.index_heads = heads;
    limits.index_dim = dim;
    limits.index_topk = k;
    const Status s = topk.prepare(limits, *device_, numerics);
    ASSERT_TRUE(s.ok()) << s.message();
  }

  void run_params(cuda::IndexTopk& topk, const IndexTopkParams& p, int64_t seqs, int64_t slots) {
    OnDevice problem(p, seqs, slots);
    topk.run(problem.params(), handle());
    ASSERT_TRUE(device_ok());
    problem.download(p);
  }

  DsaLists run(const DsaProblem& problem, const How& how = {}) {
    const DsaCase& c = problem.shape();
    cuda::IndexTopk topk;
    prepare(topk, c.heads, c.dim, c.topk, how.max_rows > 0 ? how.max_rows : problem.rows(), how.numerics);
    return problem.run([&](const IndexTopkParams& p) { run_params(topk, p, std::ssize(c.seqs), problem.slots()); }, how.space,
                       how.logits_rows);
  }
};

TEST_F(DsaTest, EqualsTheReferenceOnHostileCases) {
  for (const DsaCase& c : testing::dsa_cases()) {
    SCOPED_TRACE(c.name);
    const DsaProblem problem(c);
    const DsaLists want = problem.run(ref::index_topk, IndexSpace::slot);
    EXPECT_EQ(run(problem), want);
  }
}

TEST_F(DsaTest, TheMaterialisedFormEqualsTheReferenceInAnyChunks) {
  for (const DsaCase& c : testing::dsa_cases()) {
    SCOPED_TRACE(c.name);
    const DsaProblem problem(c);
    const DsaLists want = problem.run(ref::index_topk, IndexSpace::ragged);
    for (int32_t rows : {1, 7, problem.rows()})
      EXPECT_EQ(run(problem, {.space = IndexSpace::ragged, .logits_rows = rows}), want) << rows;
  }
}

// Long enough for several cuts of every list and for several ranges of keys; more rows than there are lists.
std::vector<DsaCase> long_cases() {
  using enum IndexPrecision;
  return {
      {"decode", 4, 128, 16, exact, {{1, 30000}, {1, 9000}, {1, 17}}, 512},
      {"decode fp8", 4, 128, 64, fp8, {{2, 30000}}, 2048},
      {"rows", 4, 64, 16, bf16, {{150, 12000}, {40, 3000}}, 256},
      {"more rows than lists", 1, 8, 16, bf16, {{1300, 4000}}, 32},
      {"ties", 4, 32, 64, bf16, {{70, 12000}}, 1024, IndexData::integers},
      {"equal", 2, 16, 16, bf16, {{5, 40000}}, 2048, IndexData::constant},
      {"zeros", 2, 16, 16, exact, {{5, 40000}}, 2048, IndexData::zeros},
      {"a window and more of marks", 1, 16, 64, fp8, {{2, 300000}}, 700},
      {"DeepSeek heads, bf16", 64, 128, 64, bf16, {{21, 9000}, {1, 2100}, {3, 8000}}, 2048},
      {"DeepSeek heads, fp8", 64, 128, 16, fp8, {{21, 9000}, {1, 2100}, {3, 8000}}, 2048},
      {"128 heads, bf16", 100, 120, 8, bf16, {{6, 3000}}, 300},
      {"128 heads, most of the keys", 100, 120, 8, bf16, {{6, 3000}}, 2000},
      {"32 heads, fp8", 32, 64, 256, fp8, {{30, 3000}}, 300},
  };
}

TEST_F(DsaTest, StreamingEqualsMaterialisedOnLongContexts) {
  for (const DsaCase& c : long_cases()) {
    SCOPED_TRACE(c.name);
    const DsaProblem problem(c);
    for (Numerics numerics : {Numerics::f32, Numerics::bf16}) {
      const DsaLists want = run(problem, {.numerics = numerics, .logits_rows = problem.rows()});
      EXPECT_EQ(run(problem, {.numerics = numerics, .max_rows = 1}), want);
    }
  }
}

// Where a list differs from the reference's by more than keys whose scores are within rounding of its worst; empty: nowhere.
std::string difference(const DsaProblem& problem, const DsaLists& got, const DsaLists& want) {
  if (got.counts != want.counts) return "counts";
  const DsaCase& c = problem.shape();
  const float tolerance = c.precision == IndexPrecision::fp8 ? 4e-3f : 1e-5f;  // e4m3 is summed with some 14 bits
  std::vector<float> scores(problem.max_len());
  for (int32_t r = 0; r < problem.rows(); ++r) {
    const auto of_row = [&](const DsaLists& lists) {
      const auto from = lists.positions.begin() + int64_t{r} * c.topk;
      return std::vector<int32_t>(from, from + lists.counts[r]);
    };
    const std::vector<int32_t> mine = of_row(got), best = of_row(want);
    if (!std::ranges::is_sorted(mine, std::less_equal<>())) return "order of row " + std::to_string(r);
    if (mine == best) continue;
    ref::index_logits(problem.params(), r, 1, scores.data(), problem.max_len());
    float worst = scores[best[0]], most = 0.0f;
    for (int32_t s : best) worst = std::min(worst, scores[s]), most = std::max(most, std::abs(scores[s]));
    for (int32_t s : mine) {
      if (s < 0 || s >= problem.row_len()[r] || !(scores[s] >= worst - tolerance * most)) {
        return "row " + std::to_string(r) + " has " + std::to_string(s);
      }
    }
    for (int32_t s : best) {
      if (!std::ranges::binary_search(mine, s) && scores[s] > worst + tolerance * most) {
        return "row " + std::to_string(r) + " lacks " + std::to_string(s);
      }
    }
  }
  return "";
}

TEST_F(DsaTest, TensorCoresChooseAsTheReferenceUpToRounding) {
  std::vector<DsaCase> cases = testing::dsa_cases();
  for (const DsaCase& c : long_cases()) {
    if (c.seqs[0].rows * int64_t{c.seqs[0].len} * c.heads * c.dim < int64_t{2} << 30) cases.push_back(c);
  }
  for (const DsaCase& c : cases) {
    SCOPED_TRACE(c.name);
    const DsaProblem problem(c);
    const DsaLists want = problem.run(ref::index_topk),
                   got = run(problem, {.numerics = Numerics::bf16, .space = IndexSpace::position});
    EXPECT_EQ(difference(problem, got, want), "");
    if (c.data != IndexData::normal) EXPECT_EQ(got, want) << "sums are exact in any order";
  }
}

TEST_F(DsaTest, TensorCoresFuseTheTransform) {
  const DsaProblem problem({"", 64, 128, 16, IndexPrecision::fp8, {{9, 700}, {1, 90}}, 100});
  const How how{.numerics = Numerics::bf16};
  std::vector<int32_t> counts;
  const DsaLists fused = run(problem, how), after = run(problem, {.numerics = Numerics::bf16, .space = IndexSpace::position});
  EXPECT_EQ(problem.transformed(ref::index_transform, after, how.space, &counts), fused.mapped);
}

TEST_F(DsaTest, PagesAndTheirSizeChangeNothing) {
  for (Numerics numerics : {Numerics::f32, Numerics::bf16}) {
    for (IndexPrecision precision : {IndexPrecision::exact, IndexPrecision::bf16, IndexPrecision::fp8}) {
      std::vector<DsaLists> all;
      for (int32_t block_size : {16, 64}) {
        const DsaCase c{"", 4, 64, block_size, precision, {{5, 3000}, {1, 777}}, 200};
        for (uint64_t pages : {1, 2}) {
          all.push_back(run(DsaProblem(c, 7, pages), {.numerics = numerics, .space = IndexSpace::position}));
          EXPECT_EQ(all.back(), all.front()) << block_size << " " << pages;
        }
      }
    }
  }
}

// A row's score has the same bits in any batch.
TEST_F(DsaTest, ARowDoesNotDependOnTheRowsBesideIt) {
  for (IndexPrecision precision : {IndexPrecision::bf16, IndexPrecision::fp8}) {
    const DsaCase c{"", 64, 128, 16, precision, {{11, 5000}, {3, 700}}, 300};
    const DsaProblem problem(c);
    const DsaLists all = run(problem, {.numerics = Numerics::bf16});
    cuda::IndexTopk topk;
    prepare(topk, c.heads, c.dim, c.topk, 1, Numerics::bf16);
    for (int32_t r = 0; r < problem.rows(); ++r) {
      IndexTopkParams p = problem.params();
      std::vector<int32_t> positions(c.topk), counts(1);
      p.rows = 1;
      p.q += int64_t{r} * c.heads * c.dim, p.weights += int64_t{r} * c.heads, p.row_seq += r, p.row_len += r;
      p.out = {IndexSpace::position, 1, c.topk, positions.data(), counts.data()};
      run_params(topk, p, std::ssize(c.seqs), problem.slots());
      ASSERT_TRUE(std::equal(positions.begin(), positions.end(), all.positions.begin() + int64_t{r} * c.topk)) << r;
    }
  }
}

TEST_F(DsaTest, RanksAsTheReferenceDoes) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr int32_t kLen = 20000, kTopk = 300, kDim = 16;
  std::mt19937 rng(5);
  // One head, one dimension after another's zeros: a key's score is its first element where the weight is 1.
  for (const std::vector<float>& kinds :
       std::vector<std::vector<float>>{{0.0f, 1.0f, 2.0f}, {kNan, 3.0f, kInf, 1e-40f}, {kNan}, {kNan, 0.0f}, {1e38f, kInf, 5.0f}}) {
    for (float weight : {1.0f, -1.0f}) {
      for (IndexPrecision precision : {IndexPrecision::exact, IndexPrecision::bf16}) {
        const bool bf16 = precision == IndexPrecision::bf16;
        std::vector<std::byte> keys(int64_t{kLen} * kDim * index_element_bytes(precision));
        for (int64_t s = 0; s < kLen; ++s) {
          const float kind = kinds[rng() % kinds.size()];  // tensor cores multiply padding too, and infinity with it
          store_f32(keys.data(), bf16 ? DType::bf16 : DType::f32, s * kDim, bf16 && std::isinf(kind) ? 2e38f : kind);
        }
        std::vector<float> q(kDim, 0.0f);
        q[0] = 1;
        std::vector<int32_t> table(kLen / 16), want(kTopk), got(kTopk);
        std::iota(table.begin(), table.end(), 0);
        const int32_t zero = 0, len = kLen;
        int32_t count = 0;
        IndexTopkParams p;
        p.rows = p.heads = 1;
        p.q = q.data();
        p.weights = &weight;
        p.row_seq = &zero;
        p.row_len = &len;
        p.topk = kTopk;
        p.max_len = kLen;
        p.keys = {precision, keys.data(), nullptr, 16, kDim, table.data(), kLen / 16};
        p.out = {IndexSpace::position, 1, kTopk, want.data(), &count};
        ref::index_topk(p);
        p.out.indices = got.data();
        cuda::IndexTopk topk;
        prepare(topk, 1, kDim, kTopk, 1, bf16 ? Numerics::bf16 : Numerics::f32);
        run_params(topk, p, 1, kLen);
        EXPECT_EQ(got, want) << weight << " " << bf16;
      }
    }
  }
}

// A captured launch replays with other lengths, padding among them.
TEST_F(DsaTest, ReplaysWithOtherLengths) {
  for (IndexPrecision precision : {IndexPrecision::exact, IndexPrecision::bf16, IndexPrecision::fp8}) {
    const DsaCase c{"", 4, 128, 64, precision, {{1, 5000}, {9, 3000}, {1, 400}}, 256};
    const DsaProblem problem(c);
    cuda::IndexTopk topk;
    prepare(topk, c.heads, c.dim, c.topk, problem.rows());
    DsaLists got;
    const DsaLists first = problem.run([&](const IndexTopkParams& host) {
      OnDevice device(host, std::ssize(c.seqs), problem.slots());
      topk.run(device.params(), handle());  // as an engine does: the first time eagerly
      auto graph = device_->capture(*stream_, [&] {
        topk.run(device.params(), handle());
        return Status();
      });
      ASSERT_TRUE(graph.ok()) << graph.status().message();
      std::mt19937 rng(3);
      for (int round = 0; round < 4; ++round) {
        std::vector<int32_t> lengths = problem.row_len();
        for (int32_t& len : lengths) {
          if (round > 0) len = rng() % 5 == 0 ? 0 : len - static_cast<int32_t>(rng() % static_cast<uint32_t>(len));
        }
        device.set_lengths(lengths);
        ASSERT_TRUE((*graph)->launch(*stream_).ok());
        ASSERT_TRUE(device_ok());
        device.download(host);
        IndexTopkParams p = host;
        p.row_len = lengths.data();
        std::vector<int32_t> indices(int64_t{p.rows} * p.topk), counts(p.rows);
        p.out.indices = indices.data(), p.out.counts = counts.data();
        ref::index_topk(p);
        ASSERT_TRUE(std::equal(counts.begin(), counts.end(), host.out.counts)) << round;
        ASSERT_TRUE(std::equal(indices.begin(), indices.end(), host.out.indices)) << round;
      }
    });
  }
}

TEST_F(DsaTest, AnIndexerThatIsTooLargeIsRefused) {
  OpsLimits limits;
  limits.index_heads = 129;
  limits.index_dim = 128;
  limits.index_topk = 8;
  cuda::IndexTopk topk;
  const Status s = topk.prepare(limits, *device_, Numerics::f32);
  EXPECT_FALSE(s.ok());
  EXPECT_NE(s.message().find("129 heads"), std::string::npos) << s.message();
}

TEST_F(DsaTest, TransformEqualsTheReferenceOnEveryCase) {
  for (const DsaCase& c : testing::dsa_cases()) {
    SCOPED_TRACE(c.name);
    const DsaProblem problem(c);
    const DsaLists after = problem.run(ref::index_topk);
    for (IndexSpace space : {IndexSpace::slot, IndexSpace::ragged}) {
      std::vector<int32_t> want_counts, counts;
      const std::vector<int32_t> want = problem.transformed(ref::index_transform, after, space, &want_counts);
      const auto transform = [&](IndexTransformParams t) {
        const int64_t entries = int64_t{t.in.rows} * t.in.capacity;
        const auto in = upload(t.in.indices, entries), in_counts = upload(t.in.counts, t.in.rows),
                   out = upload(t.out.indices, entries), out_counts = upload(t.out.counts, t.in.rows),
                   seq = upload(t.row_seq, t.in.rows), start = upload(t.ragged_start, t.in.rows),
                   table = upload(t.block_table, std::ssize(c.seqs) * t.table_stride);
        const TopkIndices to = t.out;
        t.in.indices = in.data(), t.in.counts = in_counts.data(), t.out.indices = out.data(), t.out.counts = out_counts.data();
        t.row_seq = seq.data(), t.ragged_start = start.data(), t.block_table = table.data();
        cuda::index_transform(t, handle());
        ASSERT_TRUE(device_ok());
        std::ranges::copy(out.download(), to.indices);
        std::ranges::copy(out_counts.download(), to.counts);
      };
      EXPECT_EQ(problem.transformed(transform, after, space, &counts), want);
      EXPECT_EQ(counts, want_counts);
    }
  }
}

// ---- index_write ----

struct WriteOut {
  std::vector<float> q, weights, scale;
  std::vector<std::byte> plane;
  bool operator==(const WriteOut&) const = default;
};

struct WriteProblem {
  static constexpr int32_t kTokens = 21, kBlock = 16, kSlots = 32;

  WriteProblem(IndexPrecision precision, int32_t heads, int32_t dim, int32_t rope, bool interleaved) {
    std::mt19937 rng(9);
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<float>& v, int64_t count) {
      v.resize(count);
      for (float& x : v) x = normal(rng);
    };
    fill(start.q, int64_t{kTokens} * heads * dim), fill(start.weights, int64_t{kTokens} * heads);
    fill(k, int64_t{kTokens} * dim), fill(norm, dim), fill(bias, dim);
    fill(cos, kTokens * rope / 2), fill(sin, kTokens * rope / 2);
    start.scale.assign(kSlots, 9.0f);
    start.plane.assign(kSlots * dim * index_element_bytes(precision), std::byte{0x5a});
    slots.resize(kSlots);
    std::iota(slots.begin(), slots.end(), 0);
    std::shuffle(slots.begin(), slots.end(), rng);
    slots.resize(kTokens);
    slots[3] = slots[20] = -1;
    p.tokens = kTokens;
    p.heads = heads;
    p.rope_dim = rope;
    p.rope_interleaved = interleaved;
    p.keys = {precision, nullptr, nullptr, kBlock, dim, nullptr, 0};
  }

  WriteOut reference() const {
    WriteOut out = start;
    IndexWriteParams host = p;
    host.k = k.data(), host.norm_weight = norm.data(), host.norm_bias = bias.data(), host.slot_mapping = slots.data();
    host.cos = cos.data(), host.sin = sin.data();
    host.q = out.q.data(), host.weights = out.weights.data(), host.keys.k = out.plane.data(), host.keys.scale = out.scale.data();
    ref::index_write(host);
    return out;
  }

  WriteOut on_device(cudaStream_t stream) const {
    const DeviceArray<float> d_k(k), d_norm(norm), d_bias(bias), d_cos(cos), d_sin(sin), q(start.q), weights(start.weights),
        scale(start.scale);
    const DeviceArray<int64_t> d_slots(slots);
    const DeviceArray<std::byte> plane(start.plane);
    IndexWriteParams d = p;
    d.k = d_k.data(), d.norm_weight = d_norm.data(), d.norm_bias = d_bias.data(), d.slot_mapping = d_slots.data();
    d.cos = d_cos.data(), d.sin = d_sin.data();
    d.q = q.data(), d.weights = weights.data(), d.keys.k = plane.data(), d.keys.scale = scale.data();
    cuda::index_write(d, stream);
    EXPECT_TRUE(device_ok());
    return {q.download(), weights.download(), scale.download(), plane.download()};
  }

  IndexWriteParams p;
  WriteOut start;
  std::vector<float> k, norm, bias, cos, sin;
  std::vector<int64_t> slots;
};

TEST_F(DsaTest, WriteEqualsTheReferenceBitForBit) {
  for (IndexPrecision precision : {IndexPrecision::exact, IndexPrecision::bf16, IndexPrecision::fp8}) {
    for (bool interleaved : {false, true}) {
      for (int32_t heads : {19, 0}) {
        for (auto [dim, rope] : {std::pair{128, 64}, {64, 64}, {16, 0}, {8, 2}, {40, 24}, {256, 64}}) {
          if (precision == IndexPrecision::fp8 && (dim == 40 || dim == 256)) continue;
          const WriteProblem problem(precision, heads, dim, rope, interleaved);
          const WriteOut want = problem.reference(), got = problem.on_device(handle());
          SCOPED_TRACE(::testing::Message() << heads << " heads of " << dim << ", precision " << static_cast<int>(precision));
          EXPECT_EQ(got.q, want.q);
          EXPECT_EQ(got.weights, want.weights);
          EXPECT_EQ(got.scale, want.scale);
          EXPECT_EQ(got.plane, want.plane);
        }
      }
    }
  }
}

}  // namespace
}  // namespace fovea
