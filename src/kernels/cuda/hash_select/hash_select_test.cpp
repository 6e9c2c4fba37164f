#include "kernels/cuda/hash_select/hash_select.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/cuda/gpu_test_util.h"
#include "kernels/ref/hash.h"

namespace fovea {
namespace {

using testing::device_ok;
using testing::DeviceArray;

struct Shape {
  int rows, heads, kv_heads, block_size, head_dim, bits;
  bool average = false, share = false, equal_codes = false, table_per_head = false;
};

struct Lists {
  std::vector<int32_t> units, counts;
  bool operator==(const Lists&) const = default;
};

// A pool of codes with garbage everywhere, sequences of hostile lengths, each with its own permuted pages.
struct Problem {
  Problem(const Shape& s, uint32_t seed, int longest) : shape(s), rotation(HashRotation::make(s.head_dim, s.bits).value()) {
    std::mt19937 rng(seed);
    const int words = s.bits / 64, bs = s.block_size;
    const int all[] = {longest, 1, bs - 1, 0, bs, bs + 1, 3 * bs + 5, 2 * bs};
    for (int r = 0; r < s.rows; ++r) {
      row_len.push_back(std::min(longest, all[r % 8]));
      row_seq.push_back(r % kSeqs);
    }
    max_blocks = (longest + bs - 1) / bs;
    const int pool = max_blocks + 3;
    codes.resize(static_cast<size_t>(pool) * s.kv_heads * words * bs);
    for (auto& c : codes) c = s.equal_codes ? 0x5555 : rng() | static_cast<uint64_t>(rng()) << 32;
    std::vector<int32_t> ids(pool);
    std::iota(ids.begin(), ids.end(), 0);
    for (int t = 0; t < kSeqs * (s.table_per_head ? s.kv_heads : 1); ++t) {
      std::shuffle(ids.begin(), ids.end(), rng);
      slots.insert(slots.end(), ids.begin(), ids.begin() + max_blocks);
    }
    std::normal_distribution<float> normal;
    q.resize(static_cast<size_t>(s.rows) * s.heads * s.head_dim);
    for (float& x : q) x = normal(rng);
    const HashCodec codec = rotation.codec();
    signs.assign(codec.signs, codec.signs + codec.rotations * 3 * codec.n);
    fill_params(longest);
  }

  void fill_params(int longest) {
    const Shape& s = shape;
    p.rows = s.rows, p.num_heads = s.heads, p.kv_heads = s.kv_heads, p.block_size = s.block_size;
    p.average_group = s.average, p.share_heads = s.share, p.max_len = longest;
    const int64_t head = static_cast<int64_t>(s.bits) / 64 * s.block_size;
    p.codes = {nullptr, s.kv_heads * head, head, rotation.codec()};
    p.table.seq_stride = static_cast<int64_t>(s.table_per_head ? s.kv_heads : 1) * max_blocks;
    p.table.head_stride = s.table_per_head ? max_blocks : 0;
    limits.max_decode_rows = s.rows, limits.max_len = longest, limits.num_heads = s.heads;
    limits.kv_heads = s.kv_heads, limits.head_dim = s.head_dim, limits.block_size = s.block_size;
  }

  void set_k(int k) {
    ks.assign(shape.rows, k);
    for (int r = 1; r < shape.rows; r += 2) ks[r] = std::max(1, k - r);  // k differs by row
    p.capacity = k;
  }
  size_t lists() const { return static_cast<size_t>(shape.rows) * (shape.share ? 1 : shape.kv_heads); }

  Lists reference() {
    Lists out{std::vector<int32_t>(lists() * p.capacity, -9), std::vector<int32_t>(lists(), -9)};
    HashSelectParams on_host = p;
    on_host.q = q.data(), on_host.row_seq = row_seq.data(), on_host.row_len = row_len.data(), on_host.k = ks.data();
    on_host.codes.codes = codes.data(), on_host.table.slots = slots.data();
    on_host.units = out.units.data(), on_host.counts = out.counts.data();
    ref::hash_select(on_host);
    return out;
  }

  static constexpr int kSeqs = 2;
  Shape shape;
  HashRotation rotation;
  std::vector<int32_t> row_len, row_seq, slots, ks;
  std::vector<uint64_t> codes;
  std::vector<float> q, signs;
  int max_blocks = 0;
  HashSelectParams p;  // plain numbers alone
  OpsLimits limits;
};

class OnDevice {
 public:
  explicit OnDevice(Problem& s)
      : row_len(s.row_len), ks(s.ks), codes(s.codes), row_seq_(s.row_seq), slots_(s.slots), q_(s.q), signs_(s.signs) {
    p = s.p;
    units_ = DeviceArray<int32_t>(std::vector<int32_t>(s.lists() * p.capacity, -9));
    counts_ = DeviceArray<int32_t>(std::vector<int32_t>(s.lists(), -9));
    p.q = q_.data(), p.row_seq = row_seq_.data(), p.row_len = row_len.data(), p.k = ks.data();
    p.codes.codes = codes.data(), p.codes.codec.signs = signs_.data(), p.table.slots = slots_.data();
    p.units = units_.data(), p.counts = counts_.data();
  }
  Lists read() const { return {units_.download(), counts_.download()}; }
  void poison() {
    units_.upload(std::vector<int32_t>(units_.size(), -9));
    counts_.upload(std::vector<int32_t>(counts_.size(), -9));
  }

  HashSelectParams p;
  DeviceArray<int32_t> row_len, ks;
  DeviceArray<uint64_t> codes;

 private:
  DeviceArray<int32_t> row_seq_, slots_;
  DeviceArray<float> q_, signs_;
  DeviceArray<int32_t> units_, counts_;
};

class HashSelectTest : public testing::GpuTest {
 protected:
  Lists run(Problem& s) {
    OnDevice on_device(s);
    cuda::HashSelect select;
    const Status prepared = select.prepare(s.limits, *device_);
    EXPECT_TRUE(prepared.ok()) << prepared.message();
    select.run(on_device.p, handle());
    EXPECT_TRUE(device_ok());
    return on_device.read();
  }
};

std::vector<Shape> shapes() {
  std::vector<Shape> all = {
      {1, 32, 8, 16, 64, 128},
      {3, 6, 2, 16, 80, 128},
      {5, 5, 1, 8, 96, 64},
      {2, 7, 7, 32, 128, 256},
      {4, 14, 2, 16, 256, 128, true},
      {2, 9, 3, 8, 64, 128, false, true},
      {3, 12, 4, 16, 128, 128, true, true},
      {2, 8, 2, 16, 64, 128, false, false, true},
      {9, 8, 4, 16, 64, 64, false, false, false, true},
      {33, 4, 2, 8, 64, 128},
      {1, 4, 2, 256, 64, 128},
      {2, 4, 2, 128, 256, 256},
      {1, 100, 1, 64, 64, 64},
  };
  for (int dim : {64, 80, 96, 128, 256}) {
    for (int bits : {64, 128, 256}) all.push_back({8, 4, 2, 16, dim, bits});
  }
  return all;
}

TEST_F(HashSelectTest, EqualsTheReferenceOnHostileShapes) {
  uint32_t seed = 0;
  for (const Shape& shape : shapes()) {
    Problem s(shape, ++seed, 40 * shape.block_size + 3);
    for (int k : {1, 2, 3, 17, 40, 41, 60}) {
      for (auto [init, local] : {std::pair{1, 2}, {0, 0}, {4, 0}, {3, 50}}) {
        s.set_k(k);
        s.p.init_blocks = init, s.p.local_blocks = local;
        const Lists want = s.reference(), got = run(s);
        ASSERT_EQ(got.counts, want.counts) << "shape " << seed;
        ASSERT_EQ(got.units, want.units) << "shape " << seed << " k " << k << " init " << init << " local " << local;
      }
    }
  }
}

TEST_F(HashSelectTest, LongRows) {
  for (int longest : {4097, 16 * 8192, 16 * 8192 + 1}) {
    Problem s({2, 8, 2, 16, 128, 128}, 4, longest);
    for (int k : {32, 128, 5000}) {
      s.set_k(k);
      ASSERT_EQ(run(s), s.reference()) << longest << " tokens, k " << k;
    }
  }
}

// A list that shared memory does not hold.
TEST_F(HashSelectTest, AMillionTokensInSmallBlocks) {
  for (const bool share : {false, true}) {
    Problem s({1, 2, 2, 8, 64, 64, false, share}, 5, 8 * 130000 + 3);
    s.set_k(20000);
    ASSERT_EQ(run(s), s.reference());
  }
}

// More rows than scratch holds at once.
TEST_F(HashSelectTest, RowsInSeveralPasses) {
  Problem s({20, 2, 2, 16, 64, 64}, 6, 3000);
  s.set_k(9);
  s.limits.max_len = 16 * (int64_t{1} << 20) * 4;  // two lists of 4M blocks a row: 16 MiB
  ASSERT_LT(cuda::hash::choose_scratch(s.limits).rows, 20);
  ASSERT_EQ(run(s), s.reference());
}

// The query's own code in the last, partial block: inside the length it must win, one token beyond it must
// not.
TEST_F(HashSelectTest, TokensBeyondTheLengthNeverCount) {
  for (const int bs : {16, 128}) {
    Problem s({1, 1, 1, bs, 64, 128}, 4, bs * 60);
    s.p.init_blocks = 0, s.p.local_blocks = 0;
    s.set_k(1);
    uint64_t own[2];
    ref::hash_encode(s.rotation.codec(), s.q.data(), own);
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

// A captured launch replays with other lengths and k.
TEST_F(HashSelectTest, GraphFollowsLengths) {
  Problem s({3, 8, 2, 16, 128, 128}, 9, 5000);
  s.set_k(40);
  OnDevice on_device(s);
  cuda::HashSelect select;
  ASSERT_TRUE(select.prepare(s.limits, *device_).ok());
  auto graph = device_->capture(*stream_, [&] {
    select.run(on_device.p, handle());
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
    EXPECT_EQ(on_device.read(), s.reference()) << lengths[0];
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
    EXPECT_EQ(s.blocks % cuda::hash::kChunk, 0);
  }
}

}  // namespace
}  // namespace fovea
