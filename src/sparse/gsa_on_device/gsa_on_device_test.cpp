// The method against a choice made by hand: codes written by the fused cache write, scores counted bit by
// bit, and the reference operation called directly.
#include "sparse/gsa_on_device/gsa_on_device.h"

#include "device/stream.h"
#include "kernels/common/convert.h"
#include "kernels/ref/asymmetric.h"
#include "kernels/ref/hash.h"
#include "kernels/ref/ref_ops.h"
#include "sparse/step_rows_test_util.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <random>

namespace fovea {
namespace {

constexpr int32_t kBlocksMax = 24;  // of a sequence
constexpr int32_t kPool = 64;       // blocks

ModelShape shape_of(int32_t head_dim, int32_t block_size) {
  ModelShape s;
  s.num_layers = 4;
  s.num_heads = 6;
  s.kv_heads = 2;
  s.head_dim = head_dim;
  s.block_size = block_size;
  s.kv_bytes_per_token_head = int64_t{2} * head_dim * 4;
  return s;
}

Status attach(GsaOnDevice& m, const ModelShape& shape, const MethodLimits& limits) {
  static const std::unique_ptr<Device> device = make_cpu_device();
  StepMemory staging(*device);
  return m.attach(shape, limits, *device, staging);
}

// Two sequences whose blocks lie anywhere in a pool, K and codes written through the method's own view.
class World {
 public:
  World(GsaOptions options, ModelShape shape, uint32_t seed = 1) : options_(options), shape_(shape), rng_(seed), method_(options) {
    const Status s = method_.attach(shape, {8, int64_t{kBlocksMax} * shape.block_size}, *device_, staging_);
    EXPECT_TRUE(s.ok()) << s.message();
    EXPECT_TRUE(staging_.commit().ok());
    const PlaneSpec spec = method_.planes().at(0);
    codes_.assign(static_cast<size_t>(kPool * spec.heads * spec.bytes_per_block / 8), 0xdeadbeefdeadbeefull);
    keys_.resize(static_cast<size_t>(kPool) * shape.kv_heads * shape.block_size * shape.head_dim);
    values_ = keys_;
    order_.resize(kPool);
    std::iota(order_.begin(), order_.end(), 0);
    std::shuffle(order_.begin(), order_.end(), rng_);
    EXPECT_TRUE(method_.codes_view(reinterpret_cast<std::byte*>(codes_.data()), &view_));
    for (int32_t s2 = 0; s2 < 2; ++s2) fill(s2);
  }

  // Selects for rows (sequence, length, request budget).
  struct Row {
    int32_t seq, len, budget;
  };
  Selection select(const std::vector<Row>& rows) {
    rows_ = rows;
    seqs_.clear(), lens_.clear(), budgets_.clear(), ids_.clear();
    for (const Row& r : rows) {
      seqs_.push_back(r.seq);
      lens_.push_back(r.len);
      budgets_.push_back(r.budget);
      ids_.push_back(SequenceId{static_cast<uint64_t>(r.seq + 1)});
    }
    q_ = randoms(static_cast<int64_t>(rows.size()) * shape_.num_heads * shape_.head_dim);
    step_ = testing::step_rows(seqs_, lens_, ids_, budgets_);
    EXPECT_TRUE(method_.step_begin(step_).ok());
    std::byte* plane = reinterpret_cast<std::byte*>(codes_.data());
    SelectInputs in;
    in.layer = LayerIdx{1};
    in.step = &step_;
    in.q = q_.data();
    in.block_table = table();
    in.planes = &plane;
    Selection out;
    const Status s = method_.select(in, *ops_, stream_, &out);
    EXPECT_TRUE(s.ok()) << s.message();
    return out;
  }

  uint64_t graph_key() const { return method_.graph_key(); }

  // The blocks of one row and group, chosen by hand.
  std::vector<int32_t> by_hand(int32_t row, int32_t group) const {
    const int32_t len = rows_[row].len, bs = shape_.block_size, blocks = (len + bs - 1) / bs;
    const int32_t keep = std::min<int32_t>(blocks, method_.estimate_blocks(len, rows_[row].budget));
    std::vector<float> score(blocks, -INFINITY);
    for (int32_t h = 0; h < shape_.kv_heads; ++h) {
      if (!options_.share_heads && h != group) continue;
      const auto asked = queries(row, h);
      for (int32_t t = 0; t < len; ++t) {
        for (const auto& query : asked) score[t / bs] = std::max(score[t / bs], near(query, rows_[row].seq, h, t));
      }
    }
    std::vector<int32_t> best(blocks);
    std::iota(best.begin(), best.end(), 0);
    // Windows before all others, then by score, then by index.
    const auto in_window = [&](int32_t b) { return b < options_.init_window_sz || b >= blocks - options_.local_window_sz; };
    std::stable_sort(best.begin(), best.end(), [&](int32_t a, int32_t b) {
      if (in_window(a) != in_window(b)) return in_window(a);
      return !in_window(a) && score[a] > score[b];
    });
    best.resize(keep);
    std::sort(best.begin(), best.end());
    return best;
  }

  static std::vector<int32_t> listed(const Selection& s, int32_t row, int32_t group) {
    const int64_t cell = int64_t{row} * s.groups + group;
    return {s.units + cell * s.capacity, s.units + cell * s.capacity + s.counts[cell]};
  }

  GsaOnDevice& method() { return method_; }
  const CodesView& view() const { return view_; }
  const std::vector<float>& q() const { return q_; }
  PageTableView table() const { return {tables_.data(), kBlocksMax, 0}; }
  const std::vector<int32_t>& lens() const { return lens_; }
  const std::vector<int32_t>& seqs() const { return seqs_; }
  Ops& ops() { return *ops_; }
  Stream& stream() { return stream_; }

 private:
  std::vector<float> randoms(int64_t count) {
    std::normal_distribution<float> normal;
    std::vector<float> x(static_cast<size_t>(count));
    for (float& v : x) v = normal(rng_);
    return x;
  }

  void fill(int32_t seq) {
    const int32_t tokens = kBlocksMax * shape_.block_size;
    for (int32_t b = 0; b < kBlocksMax; ++b) tables_.push_back(order_[seq * kBlocksMax + b]);
    std::vector<int64_t> slots;
    for (int32_t t = 0; t < tokens; ++t)
      slots.push_back(int64_t{tables_[seq * kBlocksMax + t / shape_.block_size]} * shape_.block_size + t % shape_.block_size);
    const auto k = randoms(int64_t{tokens} * shape_.kv_heads * shape_.head_dim);
    key_codes_.emplace_back();
    key_factors_.emplace_back();
    for (int64_t row = 0; row < int64_t{tokens} * shape_.kv_heads; ++row) {
      key_codes_.back().push_back(encode(k.data() + row * shape_.head_dim));
      key_factors_.back().push_back(ref::length_factor(view_.codec, k.data() + row * shape_.head_dim));
    }
    std::vector<float> q(static_cast<size_t>(tokens) * shape_.num_heads * shape_.head_dim, 0.0f);
    KvWriteParams p;
    p.tokens = tokens;
    p.num_heads = shape_.num_heads;
    p.q = q.data();
    p.k = k.data();
    p.v = k.data();
    p.slot_mapping = slots.data();
    p.kv.k = keys_.data();
    p.kv.v = values_.data();
    p.kv.dtype = DType::f32;
    p.kv.block_size = shape_.block_size;
    p.kv.kv_heads = shape_.kv_heads;
    p.kv.head_dim = shape_.head_dim;
    p.kv.head_stride = int64_t{shape_.block_size} * shape_.head_dim;
    p.kv.block_stride = p.kv.head_stride * shape_.kv_heads;
    p.codes = &view_;
    ops_->kv_write(p, stream_);
  }

  std::vector<std::vector<float>> queries(int32_t row, int32_t kv_head) const {
    const int32_t group = shape_.num_heads / shape_.kv_heads, d = shape_.head_dim;
    const float* q = q_.data() + (int64_t{row} * shape_.num_heads + kv_head * group) * d;
    std::vector<std::vector<float>> xs;
    if (options_.average_group) {
      std::vector<float> sum(q, q + d);
      for (int32_t g = 1; g < group; ++g) {
        for (int32_t i = 0; i < d; ++i) sum[i] += q[g * d + i];
      }
      xs.push_back(sum);
    } else {
      for (int32_t g = 0; g < group; ++g) xs.emplace_back(q + g * d, q + (g + 1) * d);
    }
    return xs;
  }

  std::vector<uint64_t> encode(const float* x) const {
    std::vector<uint64_t> words(static_cast<size_t>(view_.codec.bits / 64));
    ref::hash_encode(view_.codec, x, words.data());
    return words;
  }

  float near(const std::vector<float>& x, int32_t seq, int32_t head, int32_t token) const {
    const size_t at = static_cast<size_t>(token) * shape_.kv_heads + head;
    const auto& key = key_codes_[seq][at];
    if (options_.codes == GsaCodes::asymmetric) {
      const ref::QuantizedQuery q = ref::quantize_query(view_.codec, x.data());
      const float factor = options_.length_factor ? bf16_to_f32(f32_to_bf16(key_factors_[seq][at])) : 1.0f;
      return static_cast<float>(ref::signed_sum(q, key.data(), static_cast<int32_t>(key.size()))) * factor * q.weight;
    }
    const std::vector<uint64_t> query = encode(x.data());
    int32_t differ = 0;
    for (size_t w = 0; w < key.size(); ++w) differ += std::popcount(key[w] ^ query[w]);
    return static_cast<float>(options_.hash_bits - 2 * differ);
  }

  const GsaOptions options_;
  const ModelShape shape_;
  std::mt19937 rng_;
  std::unique_ptr<Device> device_ = make_cpu_device();
  StepMemory staging_{*device_};
  GsaOnDevice method_;
  CodesView view_;
  std::unique_ptr<Ops> ops_ = make_ref_ops();
  CpuStream stream_;
  std::vector<uint64_t> codes_;
  std::vector<float> keys_, values_, q_;
  std::vector<std::vector<std::vector<uint64_t>>> key_codes_;  // [seq][token, head] words, encoded apart from the cache
  std::vector<std::vector<float>> key_factors_;                // [seq][token, head]
  std::vector<int32_t> order_, tables_, seqs_, lens_, budgets_;
  std::vector<SequenceId> ids_;
  std::vector<Row> rows_;
  StepRows step_;
};

GsaOptions options_of(int32_t bits, int32_t budget_tokens) {
  GsaOptions o;
  o.codes = GsaCodes::symmetric;
  o.hash_bits = bits;
  o.budget_tokens = budget_tokens;
  return o;
}

TEST(GsaOnDevice, PlanesAndCodesViewAgree) {
  for (int32_t bits : {64, 128, 256}) {
    GsaOnDevice m(options_of(bits, 0));
    const ModelShape s = shape_of(80, 32);
    ASSERT_TRUE(attach(m, s, {4, 1000}).ok());
    const auto planes = m.planes();
    ASSERT_EQ(planes.size(), 1u);
    EXPECT_EQ(planes[0].name, "codes." + std::to_string(bits) + ".7");
    EXPECT_EQ(planes[0].residency, Residency::resident);
    EXPECT_EQ(planes[0].heads, s.kv_heads);
    EXPECT_EQ(planes[0].bytes_per_block, s.block_size * bits / 8);
    CodesView view;
    std::byte plane[8];
    ASSERT_TRUE(m.codes_view(plane, &view));
    EXPECT_EQ(static_cast<void*>(view.codes), static_cast<void*>(plane));
    EXPECT_EQ(view.head_stride * 8, planes[0].bytes_per_block);
    EXPECT_EQ(view.block_stride * 8, planes[0].heads * planes[0].bytes_per_block);
    EXPECT_EQ(view.codec.bits, bits);
    EXPECT_EQ(view.codec.head_dim, 80);
    EXPECT_EQ(view.codec.n, 128);
    EXPECT_EQ(view.codec.rotations, bits == 256 ? 2 : 1);
  }
}

// A plane's name tells what lies in it: codes with the lengths of keys never mix with codes without, and how codes are compared
// changes nothing there.
TEST(GsaOnDevice, AsymmetricCodesNameTheirPlane) {
  const auto plane = [](int32_t bits, GsaCodes codes, bool factor) {
    GsaOptions o = options_of(bits, 0);
    o.codes = codes;
    o.length_factor = factor;
    GsaOnDevice m(o);
    EXPECT_TRUE(attach(m, shape_of(80, 16), {4, 1000}).ok());
    CodesView view;
    EXPECT_TRUE(m.codes_view(nullptr, &view));
    EXPECT_EQ(view.codec.asymmetric, codes == GsaCodes::asymmetric);
    EXPECT_EQ(view.codec.length_factor, factor);
    EXPECT_EQ(view.head_stride * 8, m.planes()[0].bytes_per_block);
    return std::tuple(m.planes()[0].name, m.planes()[0].bytes_per_block, m.summary_bytes(100));
  };
  EXPECT_EQ(plane(64, GsaCodes::symmetric, false), std::tuple("codes.64.7", 16 * 8, 100 * 2 * 8));
  EXPECT_EQ(plane(64, GsaCodes::asymmetric, false), std::tuple("codes.64.7", 16 * 8, 100 * 2 * 8));
  EXPECT_EQ(plane(64, GsaCodes::asymmetric, true), std::tuple("codes.64f.7", 16 * 10, 100 * 2 * 10));
  EXPECT_EQ(plane(0, GsaCodes::asymmetric, true), std::tuple("codes.128f.7", 16 * 18, 100 * 2 * 18)) << "one rotation of 80";
  EXPECT_EQ(plane(0, GsaCodes::symmetric, false), std::tuple("codes.128.7", 16 * 16, 100 * 2 * 16));
}

struct Case {
  const char* name;
  int32_t head_dim, block_size, bits;
  bool average_group, share_heads;
  GsaCodes codes = GsaCodes::symmetric;
  bool length_factor = false;
};

class GsaSelect : public ::testing::TestWithParam<Case> {};

// Rows of two sequences with other lengths (one token, the edges of a block, the whole), budgets and methods
// of sharing.
TEST_P(GsaSelect, EqualsTheChoiceByHandAndTheOperation) {
  const Case c = GetParam();
  GsaOptions o = options_of(c.bits, 6 * c.block_size);
  o.average_group = c.average_group;
  o.share_heads = c.share_heads;
  o.codes = c.codes;
  o.length_factor = c.length_factor;
  World w(o, shape_of(c.head_dim, c.block_size));
  const int32_t bs = c.block_size, all = kBlocksMax * bs;
  const std::vector<World::Row> rows = {{0, all, 0},        {1, all - 1, 0}, {0, 1, 0},           {1, 9 * bs, 5 * bs},
                                        {0, 9 * bs + 1, 0}, {1, 6 * bs, 0},  {0, 12 * bs - 1, 7}, {1, all, 10 * bs}};
  const Selection s = w.select(rows);
  EXPECT_EQ(s.kind, Selection::Kind::list);
  EXPECT_EQ(s.heads, c.share_heads ? HeadGroups::all : HeadGroups::per_kv_head);
  EXPECT_EQ(s.groups, c.share_heads ? 1 : 2);
  EXPECT_EQ(s.tokens_per_unit, bs);
  EXPECT_EQ(s.row_indptr, nullptr);
  ASSERT_EQ(s.rows, static_cast<int32_t>(rows.size()));
  for (int32_t r = 0; r < s.rows; ++r) {
    for (int32_t g = 0; g < s.groups; ++g) EXPECT_EQ(World::listed(s, r, g), w.by_hand(r, g)) << "row " << r << " group " << g;
  }

  HashSelectParams p;
  std::vector<int32_t> k;
  for (const auto& row : rows) k.push_back(static_cast<int32_t>(w.method().estimate_blocks(row.len, row.budget)));
  std::vector<int32_t> units(static_cast<size_t>(s.rows) * s.groups * kBlocksMax), counts(static_cast<size_t>(s.rows) * s.groups);
  p.rows = s.rows;
  p.num_heads = 6;
  p.kv_heads = 2;
  p.block_size = bs;
  p.q = w.q().data();
  p.row_seq = w.seqs().data();
  p.row_len = w.lens().data();
  p.k = k.data();
  p.init_blocks = 1;
  p.local_blocks = 2;
  p.average_group = c.average_group;
  p.share_heads = c.share_heads;
  p.max_len = all;
  p.codes = w.view();
  p.table = w.table();
  p.units = units.data();
  p.counts = counts.data();
  p.capacity = kBlocksMax;
  ref::hash_select(p);
  for (int32_t cell = 0; cell < s.rows * s.groups; ++cell) {
    const std::vector<int32_t> want(units.begin() + cell * kBlocksMax, units.begin() + cell * kBlocksMax + counts[cell]);
    EXPECT_EQ(World::listed(s, cell / s.groups, cell % s.groups), want) << cell;
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, GsaSelect,
    ::testing::Values(Case{"d64_b16_128", 64, 16, 128, false, false}, Case{"d80_b8_256", 80, 8, 256, false, false},
                      Case{"d64_b8_64_average", 64, 8, 64, true, false}, Case{"d96_b16_128_shared", 96, 16, 128, false, true},
                      Case{"d64_b8_128_average_shared", 64, 8, 128, true, true}, Case{"d64_b16_192", 64, 16, 192, false, false},
                      Case{"d64_b16_asymmetric", 64, 16, 0, false, false, GsaCodes::asymmetric},
                      Case{"d80_b8_asymmetric_64", 80, 8, 64, true, true, GsaCodes::asymmetric},
                      Case{"d64_b8_asymmetric_factor", 64, 8, 64, false, true, GsaCodes::asymmetric, true},
                      Case{"d96_b16_asymmetric_factor", 96, 16, 128, false, false, GsaCodes::asymmetric, true}),
    [](const auto& i) { return i.param.name; });

TEST(GsaOnDevice, ALaterStepHasItsOwnCapacity) {
  World w(options_of(128, 64), shape_of(64, 8));
  EXPECT_EQ(w.select({{0, 192, 0}}).capacity, 8);
  const Selection s = w.select({{0, 9, 0}, {1, 100, 96}});
  EXPECT_EQ(s.capacity, 16) << "12 blocks, rounded up so that few graphs serve all budgets";
  EXPECT_EQ(World::listed(s, 0, 0), (std::vector<int32_t>{0, 1})) << "fewer blocks than k: all";
  EXPECT_EQ(World::listed(s, 1, 1), w.by_hand(1, 1));
}

TEST(GsaOnDevice, GraphsAreSharedByStepsOfTheSameCapacity) {
  World w(options_of(128, 64), shape_of(64, 8));
  w.select({{0, 192, 0}});
  const uint64_t key = w.graph_key();
  w.select({{0, 100, 0}, {1, 64, 40}});
  EXPECT_EQ(w.graph_key(), key);
  w.select({{0, 192, 96}});
  EXPECT_NE(w.graph_key(), key);
}

TEST(GsaOnDevice, RowsThatPadABatchChooseNothing) {
  World w(options_of(128, 64), shape_of(64, 8));
  const Selection s = w.select({{0, 192, 0}, {0, 0, 0}});
  EXPECT_EQ(World::listed(s, 0, 0), w.by_hand(0, 0));
  EXPECT_TRUE(World::listed(s, 1, 0).empty());
  EXPECT_TRUE(World::listed(s, 1, 1).empty());
}

TEST(GsaOnDevice, EstimatesAreTheBudgetRule) {
  GsaOnDevice m(options_of(128, 512));
  ASSERT_TRUE(attach(m, shape_of(64, 16), {1, 100000}).ok());
  EXPECT_EQ(m.estimate_blocks(32768, 0), 32);
  EXPECT_EQ(m.estimate_blocks(32768, 1024), 64);
  EXPECT_EQ(m.estimate_blocks(33, 0), 3) << "the partial block is one";
  EXPECT_EQ(m.estimate_blocks(512, 0), 32);
  EXPECT_EQ(m.estimate_blocks(513, 0), 32);
  // Codes of every visible token, all KV heads: 16 bytes each.
  EXPECT_EQ(m.summary_bytes(1000), 1000 * 2 * 16);
}

TEST(GsaOnDevice, BadOptionsNameTheirFieldAndValue) {
  const auto refused = [](auto change) {
    GsaOptions o;
    change(o);
    GsaOnDevice m(o);
    const Status s = attach(m, shape_of(64, 16), {4, 1000});
    EXPECT_EQ(s.code(), StatusCode::invalid_argument);
    return s.message();
  };
  const auto has = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  std::string m = refused([](GsaOptions& o) { o.sparse_ratio = 0.0; });
  EXPECT_TRUE(has(m, "sparse_ratio") && has(m, "0.0")) << m;
  m = refused([](GsaOptions& o) { o.sparse_ratio = 1.5; });
  EXPECT_TRUE(has(m, "sparse_ratio") && has(m, "1.5")) << m;
  m = refused([](GsaOptions& o) { o.sparse_ratio = std::nan(""); });
  EXPECT_TRUE(has(m, "sparse_ratio")) << m;
  m = refused([](GsaOptions& o) { o.budget_tokens = -5; });
  EXPECT_TRUE(has(m, "budget_tokens") && has(m, "-5")) << m;
  m = refused([](GsaOptions& o) { o.init_window_sz = -1; });
  EXPECT_TRUE(has(m, "init_window_sz")) << m;
  m = refused([](GsaOptions& o) { o.local_window_sz = 0; });
  EXPECT_TRUE(has(m, "local_window_sz")) << m;
  m = refused([](GsaOptions& o) { o.min_blocks = -2; });
  EXPECT_TRUE(has(m, "min_blocks")) << m;
  m = refused([](GsaOptions& o) { o.dense_layers = {0, 4}; });
  EXPECT_TRUE(has(m, "dense_layers") && has(m, "4")) << m;
  for (int32_t bits : {32, 96, 100, 512, -64}) {
    m = refused([&](GsaOptions& o) { o.hash_bits = bits; });
    EXPECT_TRUE(has(m, std::to_string(bits).c_str())) << m;
  }
  m = refused([](GsaOptions& o) { o.codes = GsaCodes::symmetric, o.length_factor = true; });
  EXPECT_TRUE(has(m, "length_factor")) << m;
  const auto lengths = [](GsaOptions& o) {
    o.length_factor = true;
    o.budget_split = BudgetSplit::mass;
  };
  m = refused([](GsaOptions& o) { o.budget_split = BudgetSplit::mass; });
  EXPECT_TRUE(has(m, "budget_split: mass needs") && has(m, "length_factor")) << m;
  m = refused([](GsaOptions& o) { o.top_p = 0.9; });
  EXPECT_TRUE(has(m, "top_p needs")) << m;
  m = refused([&](GsaOptions& o) { lengths(o), o.share_heads = true; });
  EXPECT_TRUE(has(m, "budget_split: mass") && has(m, "share_heads")) << m;
  m = refused([&](GsaOptions& o) { lengths(o), o.overlap = true; });
  EXPECT_TRUE(has(m, "overlap")) << m;
  for (double top_p : {-0.1, 1.0, std::nan("")}) {
    m = refused([&](GsaOptions& o) { lengths(o), o.top_p = top_p; });
    EXPECT_TRUE(has(m, "is not in [0, 1)")) << m;
  }
}

// Budgets by mass: one head's blocks stand out, the other's are alike.
TEST(GsaOnDevice, HeadsShareABudgetByTheirMass) {
  GsaOptions o = options_of(64, 6 * 16);
  o.codes = GsaCodes::asymmetric;
  o.length_factor = true;
  o.budget_split = BudgetSplit::mass;
  for (const double top_p : {0.0, 0.5}) {
    o.top_p = top_p;
    World w(o, shape_of(64, 16));
    const std::vector<World::Row> rows = {{0, kBlocksMax * 16, 0}, {1, 16 * 16 - 1, 0}, {0, 16, 0}};
    const Selection s = w.select(rows);
    const int32_t kept[] = {6, 6, 1};
    int32_t fewer = 0, unlike = 0;
    for (int32_t r = 0; r < s.rows; ++r) {
      const auto first = static_cast<int32_t>(World::listed(s, r, 0).size()),
                 second = static_cast<int32_t>(World::listed(s, r, 1).size());
      EXPECT_LE(first + second, 2 * kept[r]);
      EXPECT_EQ(w.method().most_blocks(rows[r].len, 0), r == 2 ? 1 : std::min(24, r == 0 ? kBlocksMax : 16));
      EXPECT_LE(std::max(first, second), w.method().most_blocks(rows[r].len, 0));
      fewer += first + second < 2 * kept[r];
      unlike += first != second;
    }
    EXPECT_EQ(fewer > 0, top_p > 0);
    EXPECT_GT(unlike, 0);
  }
}

}  // namespace
}  // namespace fovea
