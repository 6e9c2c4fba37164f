// The DSA indexer on a GPU, over the table that the CPU's tests walk.
#include "kernels/cuda/dsa/dsa.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
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

class DsaTest : public testing::GpuTest {
 protected:
  void prepare(cuda::IndexTopk& topk, int32_t heads, int32_t dim, int32_t k, int32_t max_rows) {
    OpsLimits limits;
    limits.max_rows = max_rows;
    limits.index_heads = heads;
    limits.index_dim = dim;
    limits.index_topk = k;
    const Status s = topk.prepare(limits, *device_);
    ASSERT_TRUE(s.ok()) << s.message();
  }

  void run_params(cuda::IndexTopk& topk, const IndexTopkParams& p, int64_t seqs, int64_t slots) {
    OnDevice problem(p, seqs, slots);
    topk.run(problem.params(), handle());
    ASSERT_TRUE(device_ok());
    problem.download(p);
  }

  DsaLists run(const DsaProblem& problem, IndexSpace space = IndexSpace::slot, int32_t logits_rows = 0, int32_t max_rows = 0) {
    const DsaCase& c = problem.shape();
    cuda::IndexTopk topk;
    prepare(topk, c.heads, c.dim, c.topk, max_rows > 0 ? max_rows : problem.rows());
    return problem.run([&](const IndexTopkParams& p) { run_params(topk, p, std::ssize(c.seqs), problem.slots()); }, space,
                       logits_rows);
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
    for (int32_t rows : {1, 7, problem.rows()}) EXPECT_EQ(run(problem, IndexSpace::ragged, rows), want) << rows;
  }
}

// Long enough for several cuts of every list and for several ranges of keys; more rows than there are lists.
TEST_F(DsaTest, StreamingEqualsMaterialisedOnLongContexts) {
  const DsaCase cases[] = {
      {"decode", 4, 128, 16, IndexPrecision::exact, {{1, 30000}, {1, 9000}, {1, 17}}, 512},
      {"decode fp8", 4, 128, 64, IndexPrecision::fp8, {{2, 30000}}, 2048},
      {"rows", 4, 64, 16, IndexPrecision::bf16, {{150, 12000}, {40, 3000}}, 256},
      {"more rows than lists", 1, 8, 16, IndexPrecision::bf16, {{700, 20000}}, 32},
      {"ties", 4, 32, 64, IndexPrecision::bf16, {{70, 12000}}, 1024, IndexData::integers},
      {"equal", 2, 16, 16, IndexPrecision::exact, {{5, 40000}}, 2048, IndexData::constant},
      {"zeros", 2, 16, 16, IndexPrecision::exact, {{5, 40000}}, 2048, IndexData::zeros},
      {"a window and more of marks", 1, 8, 64, IndexPrecision::fp8, {{2, 300000}}, 700},
  };
  for (const DsaCase& c : cases) {
    SCOPED_TRACE(c.name);
    const DsaProblem problem(c);
    const DsaLists want = run(problem, IndexSpace::slot, problem.rows());
    EXPECT_EQ(run(problem, IndexSpace::slot, 0, 1), want);
  }
}

TEST_F(DsaTest, PagesAndTheirSizeChangeNothing) {
  for (IndexPrecision precision : {IndexPrecision::exact, IndexPrecision::bf16, IndexPrecision::fp8}) {
    std::vector<DsaLists> all;
    for (int32_t block_size : {16, 64}) {
      const DsaCase c{"", 4, 64, block_size, precision, {{5, 3000}, {1, 777}}, 200};
      for (uint64_t pages : {1, 2}) {
        all.push_back(run(DsaProblem(c, 7, pages), IndexSpace::position));
        EXPECT_EQ(all.back(), all.front()) << block_size << " " << pages;
      }
    }
  }
}

TEST_F(DsaTest, RanksAsTheReferenceDoes) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  std::mt19937 rng(5);
  // One head, one dimension after another's zeros: a key's score is its first element where the weight is 1.
  for (const std::vector<float>& kinds :
       std::vector<std::vector<float>>{{0.0f, 1.0f, 2.0f}, {kNan, 3.0f, kInf, 1e-40f}, {kNan}, {kNan, 0.0f}, {1e38f, kInf, 5.0f}}) {
    for (float weight : {1.0f, -1.0f}) {
      const int32_t len = 20000, k = 300, zero = 0;
      std::vector<float> keys(int64_t{len} * 16, 0.0f), q(16, 0.0f);
      for (int32_t s = 0; s < len; ++s) keys[int64_t{s} * 16] = kinds[rng() % kinds.size()];
      q[0] = 1;
      std::vector<int32_t> table(len / 16), want(k), got(k);
      std::iota(table.begin(), table.end(), 0);
      int32_t count = 0;
      IndexTopkParams p;
      p.rows = p.heads = 1;
      p.q = q.data();
      p.weights = &weight;
      p.row_seq = &zero;
      p.row_len = &len;
      p.topk = k;
      p.max_len = len;
      p.keys = {IndexPrecision::exact, keys.data(), nullptr, 16, 16, table.data(), len / 16};
      p.out = {IndexSpace::position, 1, k, want.data(), &count};
      ref::index_topk(p);
      p.out.indices = got.data();
      cuda::IndexTopk topk;
      prepare(topk, 1, 16, k, 1);
      run_params(topk, p, 1, len);
      EXPECT_EQ(got, want);
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
  const Status s = topk.prepare(limits, *device_);
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
