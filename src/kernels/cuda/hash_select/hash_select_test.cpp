#include "kernels/cuda/hash_select/hash_select.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/cuda/gpu_test_util.h"
#include "kernels/cuda/kv_write/kv_write.h"
#include "kernels/cuda/late_copy_test_util.h"
#include "kernels/hash_cases.h"
#include "kernels/ref/hash.h"

namespace fovea {
namespace {

using testing::device_ok;
using testing::DeviceArray;

using testing::Codes;
using testing::HashLists;
using testing::HashProblem;
using testing::HashShape;

HashLists reference(HashProblem& s) {
  return s.run([](const HashSelectParams& p) { ref::hash_select(p); });
}

class OnDevice {
 public:
  explicit OnDevice(HashProblem& s)
      : row_len(s.row_len), ks(s.ks), codes(s.codes), q(s.q), row_seq_(s.row_seq), slots_(s.slots), signs_(s.signs) {
    p = s.p;
    units_ = DeviceArray<int32_t>(std::vector<int32_t>(s.lists() * p.capacity, -9));
    counts_ = DeviceArray<int32_t>(std::vector<int32_t>(s.lists(), -9));
    p.q = q.data(), p.row_seq = row_seq_.data(), p.row_len = row_len.data(), p.k = ks.data();
    p.codes.codes = codes.data(), p.codes.codec.signs = signs_.data(), p.table.slots = slots_.data();
    p.units = units_.data(), p.counts = counts_.data();
  }
  HashLists read() const { return {units_.download(), counts_.download(), {}, {}}; }
  void poison() {
    units_.upload(std::vector<int32_t>(units_.size(), -9));
    counts_.upload(std::vector<int32_t>(counts_.size(), -9));
  }

  HashSelectParams p;
  DeviceArray<int32_t> row_len, ks;
  DeviceArray<uint64_t> codes;
  DeviceArray<float> q;

 private:
  DeviceArray<int32_t> row_seq_, slots_;
  DeviceArray<float> signs_;
  DeviceArray<int32_t> units_, counts_;
};

class HashSelectTest : public testing::GpuTest {
 protected:
  HashLists run(HashProblem& s) {
    OnDevice on_device(s);
    cuda::HashSelect select;
    const Status prepared = select.prepare(s.limits, *device_);
    EXPECT_TRUE(prepared.ok()) << prepared.message();
    select.run(on_device.p, {handle(), cuda::runs_code_for_hopper()});
    EXPECT_TRUE(device_ok());
    const HashLists lists = on_device.read();
    on_device.p.own_keys_new = true;  // nothing is
    const auto bytes = static_cast<int64_t>(on_device.codes.size() * sizeof(uint64_t));
    on_device.p.soon[0] = {on_device.codes.data(), bytes};
    on_device.p.soon[1] = {reinterpret_cast<const char*>(on_device.codes.data()) + 5, bytes - 5};
    on_device.poison();
    select.run(on_device.p, {handle(), cuda::runs_code_for_hopper()});
    EXPECT_TRUE(device_ok());
    EXPECT_EQ(on_device.read(), lists);
    return lists;
  }
};

// What the tests of the CPU walk, and every width of a vector and a code.
std::vector<std::pair<HashShape, Codes>> cases() {
  auto all = testing::hash_cases();
  for (int dim : {64, 80, 96, 128, 256}) {
    for (int bits : {64, 128, 192, 256}) {
      for (const Codes codes : {Codes::symmetric, Codes::asymmetric, Codes::with_factor}) {
        all.emplace_back(HashShape{8, 4, 2, 16, dim, bits}, codes);
      }
    }
  }
  return all;
}

TEST_F(HashSelectTest, EqualsTheReferenceOnHostileShapes) {
  uint32_t seed = 0;
  for (const auto& [shape, codes] : cases()) {
    HashProblem s(shape, ++seed, 40 * shape.block_size + 3, codes);
    for (int k : {1, 2, 3, 17, 40, 41, 60}) {
      for (auto [init, local] : {std::pair{1, 2}, {0, 0}, {4, 0}, {3, 50}}) {
        s.set_k(k);
        s.p.init_blocks = init, s.p.local_blocks = local;
        const HashLists want = reference(s), got = run(s);
        ASSERT_EQ(got.counts, want.counts) << shape << ", codes " << static_cast<int>(codes);
        ASSERT_EQ(got.units, want.units) << shape << ", codes " << static_cast<int>(codes) << ", k " << k << " init " << init
                                         << " local " << local;
      }
    }
  }
}

// Every kernel; lists of several thread blocks, of a cluster of two and of one (on 132 multiprocessors). Few launches: it is the case
// that compute-sanitizer gets of them all (tools/gpu.sh).
TEST_F(HashSelectTest, EveryKernelOnce) {
  const auto check = [&](const HashShape& shape, Codes codes) {
    HashProblem s(shape, 4, 700, codes);
    s.set_k(5);
    ASSERT_EQ(run(s), reference(s)) << shape << ", codes " << static_cast<int>(codes);
  };
  for (int bits : {64, 128, 192, 256}) {
    for (const Codes codes : {Codes::symmetric, Codes::asymmetric, Codes::with_factor}) check({1, 4, 2, 16, 64, bits}, codes);
  }
  for (int rows : {8, 17}) check({rows, 8, 8, 16, 64, 128}, Codes::asymmetric);
}

TEST_F(HashSelectTest, LongRows) {
  for (int longest : {4097, 16 * 8192, 16 * 8192 + 1}) {
    for (const Codes codes : {Codes::symmetric, Codes::asymmetric, Codes::with_factor}) {
      HashProblem s({2, 8, 2, 16, 128, 128}, 4, longest, codes);
      for (int k : {32, 128, 5000}) {
        s.set_k(k);
        ASSERT_EQ(run(s), reference(s)) << longest << " tokens, k " << k;
      }
    }
  }
}

// Who chooses changes nothing: one that was there to choose, or, where it did not wait, whoever came last.
// Thread blocks come in waves, and two problems take turns: whoever chooses too early finds another's ranks in the scratch they share.
TEST_F(HashSelectTest, ChoosersApartNeedNotWait) {
  const auto beside = device_->make_stream();
  for (const auto& [kv_heads, block, tokens] : {std::tuple{1, 16, 40000}, {8, 16, 40000}, {1, 8, 90000}}) {
    const HashShape shape{1, 4 * kv_heads, kv_heads, block, 128, 128};
    HashProblem problems[] = {{shape, 4, tokens, Codes::asymmetric}, {shape, 12, tokens, Codes::asymmetric}};
    for (HashProblem& s : problems) s.set_k(128);
    const HashLists want[] = {reference(problems[0]), reference(problems[1])};
    OnDevice on_device[] = {OnDevice(problems[0]), OnDevice(problems[1])};
    for (const int32_t looks : {0, 1, cuda::HashSelect::kLooks}) {
      cuda::HashSelect select;
      ASSERT_TRUE(select.prepare(problems[0].limits, *device_, looks).ok());
      for (int launch = 0; launch < 20; ++launch) {
        OnDevice& here = on_device[launch % 2];
        here.poison();
        testing::hold_multiprocessors_but(6, cuda_stream(*beside));
        select.run(here.p, {handle(), cuda::runs_code_for_hopper()});
        ASSERT_TRUE(device_ok());
        ASSERT_EQ(here.read(), want[launch % 2]) << kv_heads << " heads, " << looks << " looks, launch " << launch;
      }
    }
  }
}

// Thread blocks of a list that are a cluster, or one: ranks stay in shared memory where they fit.
TEST_F(HashSelectTest, ListsOfOneOrTwoThreadBlocks) {
  uint32_t seed = 20;
  for (const auto& [rows, kv_heads, share] : {std::tuple{6, 8, false}, {17, 8, false}, {50, 2, true}}) {
    for (const Codes codes : {Codes::symmetric, Codes::asymmetric, Codes::with_factor}) {
      for (int longest : {40 * 16 + 3, 9000}) {
        HashProblem s({rows, kv_heads, kv_heads, 16, 64, 128, false, share}, ++seed, longest, codes);
        for (int k : {1, 17, 60, 400}) {
          s.set_k(k);
          ASSERT_EQ(run(s), reference(s)) << rows << " rows, longest " << longest << ", k " << k;
        }
      }
    }
  }
}

// A list that shared memory does not hold, of which many blocks are kept and few.
TEST_F(HashSelectTest, AMillionTokensInSmallBlocks) {
  for (const bool share : {false, true}) {
    for (const Codes codes : {Codes::symmetric, Codes::asymmetric}) {
      HashProblem s({1, 2, 2, 8, 64, 64, false, share}, 4, 8 * 130000 + 3, codes);
      for (const int k : {20000, 40}) {
        s.set_k(k);
        ASSERT_EQ(run(s), reference(s)) << k;
      }
    }
  }
}

// Three scores at equal distances, the best two of as many blocks as are kept: halving the range of ranks lands on that of the second.
TEST_F(HashSelectTest, ACutThatIsTheRankOfMany) {
  constexpr int kBlocks = 900, kBlock = 8;
  HashProblem s({1, 1, 1, kBlock, 64, 64}, 4, kBlocks * kBlock);
  s.p.init_blocks = 0, s.p.local_blocks = 0;
  s.set_k(500);
  uint64_t own = 0;
  ref::hash_encode(s.codec, s.q.data(), &own);
  for (int b = 0; b < kBlocks; ++b) {
    const int different = b >= 400 && b < 800 ? 6 : b % 2 ? 4 : 2;  // bits
    std::fill_n(s.codes.begin() + s.slots[b] * kBlock, kBlock, own ^ ((uint64_t{1} << different) - 1));
  }
  EXPECT_EQ(run(s), reference(s));
}

// More rows than scratch holds at once.
TEST_F(HashSelectTest, RowsInSeveralPasses) {
  for (const Codes codes : {Codes::symmetric, Codes::asymmetric}) {
    HashProblem s({20, 2, 2, 16, 64, 64}, 6, 3000, codes);
    s.set_k(9);
    s.limits.max_len = 16 * (int64_t{1} << 20) * 4;  // two lists of 4M blocks a row: 16 MiB
    ASSERT_LT(cuda::hash::choose_scratch(s.limits).rows, 20);
    ASSERT_EQ(run(s), reference(s));
  }
}

// The query's own code in the last, partial block: inside the length it must win, one token beyond it must
// not.
TEST_F(HashSelectTest, TokensBeyondTheLengthNeverCount) {
  for (const int bs : {16, 128}) {
    HashProblem s({1, 1, 1, bs, 64, 128}, 4, bs * 60);
    s.p.init_blocks = 0, s.p.local_blocks = 0;
    s.set_k(1);
    uint64_t own[2];
    ref::hash_encode(s.codec, s.q.data(), own);
    const std::vector<uint64_t> codes = s.codes;
    for (int offset = 0; offset < bs; offset += 1 + bs / 32) {
      s.codes = codes;
      for (int w = 0; w < 2; ++w) s.codes[(s.slots[50] * 2 + w) * bs + offset] = own[w];
      for (int len : {50 * bs + offset + 1, 50 * bs + offset}) {
        if (len == 50 * bs) continue;  // the block is not there at all
        s.row_len[0] = len;
        EXPECT_EQ(run(s).units[0] == 50, len == 50 * bs + offset + 1) << offset << " " << len;
      }
    }
  }
}

// Codes are read ahead of the kernel that writes those of the rows' own keys, not these. Each key is its row's first query, of which
// one block is kept: that of the key. The last row has the query of the one before, which is of its sequence: the lower index wins.
TEST_F(HashSelectTest, OwnKeysThatAreWrittenRightBefore) {
  constexpr int kRows = 3, kHeads = 8, kKvHeads = 2, kDim = 128, kBlock = 16;
  HashProblem s({kRows, kHeads, kKvHeads, kBlock, kDim, 128}, 9, 3000, Codes::asymmetric);
  s.set_k(1);
  s.p.init_blocks = 0, s.p.local_blocks = 0;
  s.row_len = {3000, 1984, 1985}, s.row_seq = {0, 1, 1};
  const int expected[] = {187, 123, 123};
  std::mt19937 rng(5);
  std::normal_distribution<float> normal;
  for (float& x : s.q) x = normal(rng);
  std::copy_n(s.q.begin() + kHeads * kDim, kHeads * kDim, s.q.begin() + 2 * kHeads * kDim);
  OnDevice on_device(s);
  on_device.p.own_keys_new = true;
  std::vector<float> keys;
  std::vector<int64_t> places;
  int64_t blocks = 0;
  for (const int32_t slot : s.slots) blocks = std::max<int64_t>(blocks, slot + 1);
  for (int r = 0; r < kRows; ++r) {
    for (int h = 0; h < kKvHeads; ++h) {
      const float* q = s.q.data() + (r * kHeads + h * (kHeads / kKvHeads)) * kDim;
      keys.insert(keys.end(), q, q + kDim);
    }
    const int last = s.row_len[r] - 1;
    places.push_back(int64_t{s.slots[s.row_seq[r] * s.p.table.seq_stride + last / kBlock]} * kBlock + last % kBlock);
  }
  DeviceArray<float> q(s.q), k(keys), v(keys), planes(std::vector<float>(2 * blocks * kKvHeads * kBlock * kDim));
  DeviceArray<int64_t> mapping(places);
  KvWriteParams w;
  w.tokens = kRows, w.num_heads = kHeads;
  w.q = q.data(), w.k = k.data(), w.v = v.data(), w.slot_mapping = mapping.data();
  w.kv.k = planes.data(), w.kv.v = planes.data() + planes.size() / 2;
  w.kv.dtype = DType::f32, w.kv.kv_heads = kKvHeads, w.kv.head_dim = kDim, w.kv.block_size = kBlock;
  w.kv.block_stride = kKvHeads * kBlock * kDim, w.kv.head_stride = kBlock * kDim;
  w.codes = &on_device.p.codes;
  cuda::HashSelect select;
  ASSERT_TRUE(select.prepare(s.limits, *device_).ok());
  auto graph = device_->capture(*stream_, [&] {
    const cuda::Queue queue{handle(), cuda::runs_code_for_hopper()};
    cuda::kv_write(w, queue);
    select.run(on_device.p, queue);
    return Status();
  });
  ASSERT_TRUE(graph.ok()) << graph.status().message();
  for (int turn = 0; turn < 20; ++turn) {
    on_device.codes.upload(s.codes);
    on_device.poison();
    ASSERT_TRUE((*graph)->launch(*stream_).ok());
    ASSERT_TRUE(device_ok());
    const HashLists lists = on_device.read();
    for (int r = 0; r < kRows; ++r) {
      for (int h = 0; h < kKvHeads; ++h) {
        EXPECT_EQ(lists.units[(r * kKvHeads + h) * s.p.capacity], expected[r]) << "row " << r << " head " << h;
      }
    }
  }
}

// Begun while the kernel ahead still runs, it reads no query before it is there, nor codes, unless the rows' own keys alone are new.
TEST_F(HashSelectTest, WaitsForWhatTheKernelAheadWrites) {
  for (const Codes codes : {Codes::symmetric, Codes::asymmetric, Codes::with_factor}) {
    HashProblem s({2, 8, 2, 16, 128, 128}, 4, 3000, codes);
    s.set_k(20);
    OnDevice on_device(s);
    cuda::HashSelect select;
    ASSERT_TRUE(select.prepare(s.limits, *device_).ok());
    select.run(on_device.p, {handle()});  // loads its code, which waits for the device
    ASSERT_TRUE(device_ok());
    const DeviceArray<float> q(s.q);
    const DeviceArray<uint64_t> all(s.codes);
    for (const bool own_keys_new : {true, false}) {
      on_device.p.own_keys_new = own_keys_new;
      on_device.poison();
      on_device.q.upload(std::vector<float>(q.size(), 1.0f));
      std::vector<testing::LateCopy> copies = {{on_device.q.data(), q.data(), static_cast<int64_t>(q.size() * sizeof(float))}};
      if (!own_keys_new) {
        on_device.codes.upload(std::vector<uint64_t>(all.size()));
        copies.push_back({on_device.codes.data(), all.data(), static_cast<int64_t>(all.size() * sizeof(uint64_t))});
      }
      testing::copy_late(copies, handle());
      select.run(on_device.p, {handle(), cuda::runs_code_for_hopper()});
      ASSERT_TRUE(device_ok());
      EXPECT_EQ(on_device.read(), reference(s)) << static_cast<int>(codes) << ", own keys " << own_keys_new;
    }
  }
}

// A captured launch replays with other lengths and k.
TEST_F(HashSelectTest, GraphFollowsLengths) {
  HashProblem s({3, 8, 2, 16, 128, 128}, 9, 5000, Codes::with_factor);
  s.set_k(40);
  OnDevice on_device(s);
  cuda::HashSelect select;
  ASSERT_TRUE(select.prepare(s.limits, *device_).ok());
  auto graph = device_->capture(*stream_, [&] {
    select.run(on_device.p, {handle(), cuda::runs_code_for_hopper()});
    return Status();
  });
  ASSERT_TRUE(graph.ok()) << graph.status().message();
  for (const std::vector<int32_t>& lengths : {std::vector<int32_t>{5000, 1, 15}, {3000, 0, 4999}, {0, 900, 16}}) {
    s.row_len = lengths;
    s.ks = {40, lengths[0] / 200 + 1, 7};
    on_device.row_len.upload(s.row_len);
    on_device.ks.upload(s.ks);
    on_device.poison();
    ASSERT_TRUE((*graph)->launch(*stream_).ok());
    ASSERT_TRUE(device_ok());
    EXPECT_EQ(on_device.read(), reference(s)) << lengths[0];
  }
}

TEST(HashSelectConfig, ScratchStaysWithinTheBudget) {
  OpsLimits limits;
  limits.max_decode_rows = 256, limits.kv_heads = 8, limits.block_size = 16;
  for (int64_t max_len : {1, 1000, 131072, 1 << 20}) {
    limits.max_len = max_len;
    const cuda::hash::Scratch s = cuda::hash::choose_scratch(limits, 64 << 20);
    EXPECT_GE(s.rows, 1);
    EXPECT_LE(s.rows, 256);
    EXPECT_LE(s.bytes(8), 64 << 20);
    EXPECT_GE(s.blocks * 16, max_len);
  }
}

}  // namespace
}  // namespace fovea
