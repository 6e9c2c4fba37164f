#include "kernels/ref/hash.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace fovea {
namespace {

struct Vector {
  int head_dim;
  std::vector<uint64_t> words;  // of k[i] = ((37 i + 11) mod 101) - 50, seed 7
};

const Vector kVectors[] = {
    {64, {0xe39d97bc40a8436f, 0x45730d811c3d30cf, 0x54197cbc4d3377d5, 0x62c180e3fd251b8a}},
    {128, {0x625b91c925d1c289, 0xb9582b9e5f9e946b, 0x820f60095ed38dcf, 0x6c6abd12e02d82a8}},
    {80, {0xe67e01ed2592c449, 0x79482b9c1ede92cb, 0xca09c11a7ac39cd7, 0x4c26b556f22da290}},
};

std::vector<float> ramp(int d) {
  std::vector<float> x(d);
  for (int i = 0; i < d; ++i) x[i] = static_cast<float>((37 * i + 11) % 101 - 50);
  return x;
}

TEST(HashEncode, PublishedVectorsAndTheirTruncations) {
  for (const Vector& v : kVectors) {
    for (int bits : {64, 128, 192, 256}) {
      auto rotation = HashRotation::make(v.head_dim, bits);
      ASSERT_TRUE(rotation.ok()) << rotation.status().message();
      std::vector<uint64_t> words(bits / 64 + 1, 0xabcdef);
      ref::hash_encode(rotation->codec(), ramp(v.head_dim).data(), words.data());
      for (int w = 0; w < bits / 64; ++w) EXPECT_EQ(words[w], v.words[w]) << v.head_dim << " " << bits << " " << w;
      EXPECT_EQ(words.back(), 0xabcdefu) << "wrote beyond its words";
    }
  }
}

TEST(HashEncode, CodecDescribesTheRotation) {
  auto rotation = HashRotation::make(80, 256);
  ASSERT_TRUE(rotation.ok());
  const HashRotation moved = std::move(rotation).value();
  const HashCodec codec = moved.codec();
  EXPECT_EQ(codec.n, 128);
  EXPECT_EQ(codec.rotations, 2);
  for (int i = 0; i < codec.rotations * 3 * codec.n; ++i) EXPECT_EQ(std::abs(codec.signs[i]), 1.0f);
  auto wide = HashRotation::make(256, 64);  // more bits in a rotation than are kept
  ASSERT_TRUE(wide.ok());
  EXPECT_EQ(wide->codec().rotations, 1);
}

TEST(HashEncode, SeedChangesTheCodeAndScaleDoesNot) {
  std::vector<float> x = ramp(64);
  uint64_t seven = 0, eight = 0, scaled = 0, negated = 0;
  auto a = HashRotation::make(64, 64);
  auto b = HashRotation::make(64, 64, 8);
  ref::hash_encode(a->codec(), x.data(), &seven);
  ref::hash_encode(b->codec(), x.data(), &eight);
  for (float& v : x) v *= 0.25f;
  ref::hash_encode(a->codec(), x.data(), &scaled);
  for (float& v : x) v = -v;
  ref::hash_encode(a->codec(), x.data(), &negated);
  EXPECT_NE(seven, eight);
  EXPECT_EQ(seven, scaled);
  EXPECT_EQ(seven, ~negated);
}

TEST(HashRotation, RefusesWhatItCannotHash) {
  for (int bits : {0, -64, 1, 96, 320, 512}) {
    auto r = HashRotation::make(64, bits);
    ASSERT_FALSE(r.ok()) << bits;
    EXPECT_NE(r.status().message().find("hash_bits is " + std::to_string(bits)), std::string::npos);
  }
  for (int d : {0, -1, 257}) {
    auto r = HashRotation::make(d, 64);
    ASSERT_FALSE(r.ok()) << d;
    EXPECT_NE(r.status().message().find("head_dim is " + std::to_string(d)), std::string::npos);
  }
}

TEST(PackBits, LeastSignificantFirstAndZeroFilled) {
  std::vector<uint8_t> bits(70, 0);
  bits[0] = bits[63] = bits[64] = 1;
  bits[69] = 255;  // any non-zero is one bit
  uint64_t words[3] = {~0ull, ~0ull, 42};
  ref::pack_bits(bits.data(), 70, words);
  EXPECT_EQ(words[0], 0x8000000000000001ull);
  EXPECT_EQ(words[1], 0x21ull);
  EXPECT_EQ(words[2], 42u);
}

TEST(HammingScores, IsBitsMinusTwiceTheDistance) {
  const uint64_t queries[] = {0, 0, ~0ull, 1};         // [2, 2]
  const uint64_t keys[] = {0, 0, ~0ull, ~0ull, 1, 3};  // [3, 2]
  int32_t scores[6];
  ref::hamming_scores(queries, 2, keys, 3, 2, scores);
  EXPECT_EQ(std::vector<int32_t>(scores, scores + 6),
            (std::vector<int32_t>{128, -128, 128 - 6, 128 - 2 * 65, 128 - 2 * 63, 128 - 2 * 64}));
}

// The rule again, by rank instead of by sorting: block b is kept when fewer than the free places beat it.
std::vector<int32_t> topk_oracle(const std::vector<int32_t>& scores, int k, int init, int local) {
  const int n = static_cast<int>(scores.size());
  std::set<int32_t> kept;
  for (int i = 0; i < std::min(local, n) && static_cast<int>(kept.size()) < k; ++i) kept.insert(n - 1 - i);
  for (int i = 0; i < std::min(init, n) && static_cast<int>(kept.size()) < k; ++i) kept.insert(i);
  const std::set<int32_t> forced = kept;
  const int places = k - static_cast<int>(forced.size());
  for (int b = 0; b < n; ++b) {
    if (forced.count(b)) continue;
    int ahead = 0;
    for (int o = 0; o < n; ++o) {
      if (!forced.count(o) && (scores[o] > scores[b] || (scores[o] == scores[b] && o < b))) ++ahead;
    }
    if (ahead < places) kept.insert(b);
  }
  return {kept.begin(), kept.end()};
}

TEST(SelectTopk, EqualsTheRankRuleOnHostileShapes) {
  std::mt19937 rng(11);
  for (int n : {1, 2, 3, 5, 17, 40}) {
    for (int spread : {1, 3, 100}) {  // 1: all scores equal
      std::vector<int32_t> scores(n);
      for (auto& s : scores) s = static_cast<int32_t>(rng() % spread) - spread / 2;
      for (int k = 1; k <= n + 2; ++k) {
        for (int init : {0, 1, 4}) {
          for (int local : {0, 1, 2, 50}) {
            std::vector<int32_t> units(k + 1, -7);
            const int count = ref::select_topk(scores.data(), n, k, init, local, units.data());
            ASSERT_EQ(count, std::min(k, n));
            EXPECT_EQ(std::vector<int32_t>(units.begin(), units.begin() + count), topk_oracle(scores, k, init, local))
                << n << " k " << k << " init " << init << " local " << local;
            EXPECT_EQ(units[std::max(count, k)], -7);
          }
        }
      }
    }
  }
}

TEST(SelectTopk, ByHand) {
  const int32_t scores[] = {0, 5, 9, 5, 5, 7, 0, 1};
  int32_t units[8];
  ASSERT_EQ(ref::select_topk(scores, 8, 5, 1, 1, units), 5);
  EXPECT_EQ(std::vector<int32_t>(units, units + 5), (std::vector<int32_t>{0, 1, 2, 5, 7}));  // 1 of 1, 3, 4
  ASSERT_EQ(ref::select_topk(scores, 8, 2, 1, 4, units), 2);
  EXPECT_EQ(std::vector<int32_t>(units, units + 2), (std::vector<int32_t>{6, 7}));  // the latest first
}

TEST(BlockScores, BestOfTokensAndHeadsWithinTheLength) {
  const int bs = 8, words = 2;
  // Three physical blocks; logical 0 -> 2, 1 -> 0. Every code is far from the queries except as set below.
  std::vector<uint64_t> codes(3 * words * bs, ~0ull);
  const uint64_t queries[] = {0, 0, 0xff, 0};
  auto at = [&](int block, int word, int token) -> uint64_t& { return codes[(block * words + word) * bs + token]; };
  at(2, 0, 7) = 0xff, at(2, 1, 7) = 0x7;  // 3 from the second query, 11 from the first
  at(0, 0, 1) = 0x1f, at(0, 1, 1) = 0;    // 3 from the second, 5 from the first: the last valid token
  at(0, 0, 2) = 0, at(0, 1, 2) = 0;       // beyond the length
  const int32_t slots[] = {2, 0};
  ref::BlockCodes view{codes.data(), words * bs, slots, bs, bs + 2, words};
  int32_t scores[2];
  ref::block_scores(view, queries, 2, scores);
  EXPECT_EQ(scores[0], 128 - 2 * 3);
  EXPECT_EQ(scores[1], 128 - 2 * 3);
  ref::block_scores(view, queries, 1, scores);
  EXPECT_EQ(scores[0], 128 - 2 * 11);
  EXPECT_EQ(scores[1], 128 - 2 * 5);
}

// A block whose keys equal a query must be chosen first, whatever the options; with one seeing head it is
// that head's.
TEST(HashSelect, FindsThePlantedBlockOfEachHead) {
  const int d = 64, bs = 8, kv_heads = 2, heads = 6, blocks = 20, words = 2;
  auto rotation = HashRotation::make(d, words * 64);
  std::mt19937 rng(3);
  std::normal_distribution<float> normal;
  std::vector<float> q(heads * d);
  for (float& v : q) v = normal(rng);
  std::vector<uint64_t> codes(static_cast<size_t>(blocks) * kv_heads * words * bs);
  for (auto& c : codes) c = rng() | static_cast<uint64_t>(rng()) << 32;
  std::vector<int32_t> table(blocks);
  std::iota(table.begin(), table.end(), 0);
  std::shuffle(table.begin(), table.end(), rng);
  auto plant = [&](int logical, int kv_head, int token, const float* x) {
    uint64_t w[2];
    ref::hash_encode(rotation->codec(), x, w);
    for (int i = 0; i < words; ++i) codes[((table[logical] * kv_heads + kv_head) * words + i) * bs + token] = w[i];
  };
  plant(5, 0, 3, q.data() + 2 * d);   // head 2 belongs to KV head 0
  plant(11, 1, 7, q.data() + 4 * d);  // head 4 to KV head 1
  plant(19, 0, 6, q.data());          // beyond the length: never seen

  const int32_t row_seq[] = {0}, row_len[] = {19 * bs + 6}, k[] = {3};
  std::vector<int32_t> units(2 * 3, -1), counts(2);
  HashSelectParams p;
  p.rows = 1, p.num_heads = heads, p.kv_heads = kv_heads, p.block_size = bs;
  p.q = q.data(), p.row_seq = row_seq, p.row_len = row_len, p.k = k;
  p.init_blocks = 1, p.local_blocks = 1, p.max_len = blocks * bs;
  p.codes = {codes.data(), kv_heads * words * bs, words * bs, rotation->codec()};
  p.table.slots = table.data();
  p.units = units.data(), p.counts = counts.data(), p.capacity = 3;
  ref::hash_select(p);
  EXPECT_EQ(counts, (std::vector<int32_t>{3, 3}));
  EXPECT_EQ(units, (std::vector<int32_t>{0, 5, 19, 0, 11, 19}));

  p.init_blocks = 0, p.local_blocks = 0, p.share_heads = true;
  const int32_t two[] = {2};
  p.k = two;
  ref::hash_select(p);
  EXPECT_EQ(counts[0], 2);
  EXPECT_EQ(units[0], 5);
  EXPECT_EQ(units[1], 11);

  // Averaging: plant the code of the group's mean.
  p.share_heads = false, p.average_group = true;
  std::vector<float> sum(d, 0.0f);
  for (int g = 0; g < 3; ++g) {
    for (int i = 0; i < d; ++i) sum[i] += q[(3 + g) * d + i];
  }
  plant(14, 1, 0, sum.data());
  const int32_t one[] = {1};
  p.k = one;
  ref::hash_select(p);
  EXPECT_EQ(counts[1], 1);
  EXPECT_EQ(units[3], 14);
}

}  // namespace
}  // namespace fovea
