// The method over a small cache: what each representation reads, what overlap carries from step to step, what it wants near.
#include "sparse/gsa/gsa.h"

#include "device/stream.h"
#include "kernels/ref/hash.h"
#include "kernels/ref/ref_ops.h"
#include "kernels/ref/summary.h"
#include "sparse/gsa/gsa_test_util.h"
#include "sparse/step_rows_test_util.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

namespace fovea {
namespace {

using namespace testing;

using List = std::vector<int32_t>;

constexpr int32_t kBlocksMax = 24;  // of a sequence
constexpr int32_t kSeqs = 2;

struct Row {
  int32_t seq, len, budget = 0;
};

// Two sequences with permuted pages; every layer has the same keys, each layer's plane is the method's own.
class World {
 public:
  explicit World(GsaOptions options, bool wants = true) : options_(options), method_(options) {
    EXPECT_TRUE(
        method_.attach(shape_, {.max_rows = 32, .max_len = int64_t{kBlocksMax} * shape_.block_size}, *device_, staging_).ok());
    if (wants) method_.keep_wants();
    EXPECT_TRUE(staging_.commit().ok());
    tables_.resize(kSeqs * kBlocksMax);
    std::iota(tables_.begin(), tables_.end(), 0);
    std::shuffle(tables_.begin(), tables_.end(), rng_);
    keys_ = randoms(int64_t{kSeqs} * kBlocksMax * shape_.kv_heads * shape_.block_size * shape_.head_dim);
    for (const PlaneSpec& p : method_.planes())
      plane_.assign(static_cast<size_t>(kSeqs * kBlocksMax * p.heads * p.bytes_per_block / 8), 0);
    write_all();
  }

  // One step of rows; what each layer of `layers` reads. q_ of the step stays for reference.
  std::vector<Selection> step(const std::vector<Row>& rows, const List& layers = {0}) {
    begin(rows);
    std::vector<Selection> out;
    for (int32_t layer : layers) out.push_back(select(layer));
    return out;
  }

  void begin(const std::vector<Row>& rows) {
    if (begun_) finish(true);
    begun_ = true;
    seqs_.clear(), lens_.clear(), budgets_.clear(), ids_.clear();
    for (const Row& r : rows) {
      seqs_.push_back(r.seq);
      lens_.push_back(r.len);
      budgets_.push_back(r.budget);
      ids_.push_back(SequenceId{static_cast<uint64_t>(r.seq + 1)});
    }
    draw_queries();
    step_ = testing::step_rows(seqs_, lens_, ids_, budgets_);
    EXPECT_TRUE(method_.step_begin(step_).ok());
  }

  void finish(bool ok) {
    method_.step_finish(ok);
    begun_ = false;
  }
  void draw_queries() { q_ = randoms(static_cast<int64_t>(lens_.size()) * shape_.num_heads * shape_.head_dim); }

  Selection select(int32_t layer) {
    std::byte* plane = reinterpret_cast<std::byte*>(plane_.data());
    SelectInputs in;
    in.layer = LayerIdx{layer};
    in.step = &step_;
    in.q = q_.data();
    in.block_table = {tables_.data(), kBlocksMax, 0};
    in.kv = kv();
    in.planes = &plane;
    Selection out;
    EXPECT_TRUE(method_.select(in, *ops_, stream_, &out).ok());
    return out;
  }

  void set_budget(int32_t row, int32_t tokens) { budgets_[row] = tokens; }

  // What the row's own query keeps, by the operations themselves, head by head.
  List own_choice(int32_t row, int32_t head) {
    const int32_t k = static_cast<int32_t>(method_.estimate_blocks(lens_[row], budgets_[row]));
    List units(2 * kBlocksMax), counts(2);
    const auto rows = [&](auto& p) {
      p.rows = 1, p.kv_heads = 2, p.block_size = shape_.block_size;
      p.row_len = &lens_[row], p.k = &k, p.units = units.data(), p.counts = counts.data(), p.capacity = kBlocksMax;
    };
    const float* q = q_.data() + int64_t{row} * shape_.num_heads * shape_.head_dim;
    const PageTableView table{tables_.data(), kBlocksMax, 0};
    if (options_.representation == GsaRepresentation::oracle) {
      std::vector<float> mass(2 * kBlocksMax);
      AttentionMassParams m;
      m.rows = 1, m.num_heads = 4, m.q = q, m.row_seq = &seqs_[row], m.row_len = &lens_[row], m.kv = kv();
      m.scale = 0.125f, m.mass = mass.data(), m.max_blocks = kBlocksMax;
      ref::attention_mass(m);
      BlockTopkParams p;
      rows(p);
      p.scores = mass.data(), p.max_blocks = kBlocksMax;
      ref::block_topk(p);
    } else if (options_.representation == GsaRepresentation::hash) {
      HashSelectParams p;
      rows(p);
      p.num_heads = 4, p.q = q, p.row_seq = &seqs_[row], p.table = table, p.max_len = 1000;
      method_.codes_view(reinterpret_cast<std::byte*>(plane_.data()), &p.codes);
      ref::hash_select(p);
    } else {
      SummarySelectParams p;
      rows(p);
      p.summary = options_.representation == GsaRepresentation::mean     ? BlockSummary::mean
                  : options_.representation == GsaRepresentation::minmax ? BlockSummary::minmax
                                                                         : BlockSummary::mean_code;
      p.num_heads = 4, p.head_dim = 64, p.q = q, p.row_seq = &seqs_[row], p.table = table;
      p.plane = reinterpret_cast<const float*>(plane_.data());
      p.mean_codes = plane_.data();
      p.codec = rotation_.codec();
      ref::summary_select(p);
    }
    return {units.begin() + head * kBlocksMax, units.begin() + head * kBlocksMax + counts[head]};
  }

  static List listed(const Selection& s, int32_t row, int32_t group) {
    const int64_t cell = int64_t{row} * s.groups + group;
    return {s.units + cell * s.capacity, s.units + cell * s.capacity + s.counts[cell]};
  }

  Gsa& method() { return method_; }

 private:
  KvView kv() {
    KvView v;
    v.k = keys_.data();
    v.dtype = DType::f32;
    v.block_size = shape_.block_size;
    v.kv_heads = shape_.kv_heads;
    v.head_dim = shape_.head_dim;
    v.head_stride = int64_t{shape_.block_size} * shape_.head_dim;
    v.block_stride = v.head_stride * shape_.kv_heads;
    v.table = {tables_.data(), kBlocksMax, 0};
    return v;
  }

  void write_all() {
    std::vector<int64_t> slots(static_cast<size_t>(kSeqs) * kBlocksMax * shape_.block_size);
    std::iota(slots.begin(), slots.end(), 0);
    std::byte* plane = plane_.empty() ? nullptr : reinterpret_cast<std::byte*>(plane_.data());
    const KvWritten written = {.layer = LayerIdx{0},
                               .tokens = static_cast<int32_t>(slots.size()),
                               .slot_mapping = slots.data(),
                               .kv = kv(),
                               .planes = &plane};
    method_.on_kv_written(written, *ops_, stream_);
  }

  std::vector<float> randoms(int64_t count) {
    std::normal_distribution<float> normal;
    std::vector<float> x(static_cast<size_t>(count));
    for (float& v : x) v = normal(rng_);
    return x;
  }

  const GsaOptions options_;
  const ModelShape shape_ = shape_of();
  std::mt19937 rng_{7};
  std::unique_ptr<Device> device_ = make_cpu_device();
  StepMemory staging_{*device_};
  Gsa method_;
  HashRotation rotation_ = HashRotation::make(64, 128).value();
  std::unique_ptr<Ops> ops_ = make_ref_ops();
  CpuStream stream_;
  std::vector<uint64_t> plane_;
  std::vector<float> keys_, q_;
  List tables_, seqs_, lens_, budgets_;
  std::vector<SequenceId> ids_;
  StepRows step_;
  bool begun_ = false;
};

constexpr GsaRepresentation kWithQuery[] = {GsaRepresentation::hash, GsaRepresentation::mean, GsaRepresentation::minmax,
                                            GsaRepresentation::mean_hash, GsaRepresentation::oracle};

TEST(Gsa, EveryRepresentationReadsWhatItsOperationKeeps) {
  for (const auto representation : kWithQuery) {
    SCOPED_TRACE(static_cast<int>(representation));
    World w(options_of(representation));
    std::vector<Row> rows = {{0, 192}, {1, 7, 0}, {0, 100, 64}, {1, 0}};
    for (int i = 0; i < 10; ++i) rows.push_back({1, 150 + i});  // more than the oracle holds at once
    const Selection s = w.step(rows)[0];
    EXPECT_EQ(s.kind, Selection::Kind::list);
    EXPECT_EQ(s.heads, HeadGroups::per_kv_head);
    EXPECT_EQ(s.tokens_per_unit, 8);
    ASSERT_EQ(s.rows, static_cast<int32_t>(rows.size()));
    for (int32_t r = 0; r < s.rows; ++r) {
      if (rows[r].len == 0) continue;  // padding, which chooses nothing
      for (int32_t h = 0; h < 2; ++h) EXPECT_EQ(World::listed(s, r, h), w.own_choice(r, h)) << r << " " << h;
    }
    EXPECT_EQ(World::listed(s, 2, 0).size(), 8u) << "the request's own budget";
  }
}

TEST(Gsa, RepresentationsDiffer) {
  std::set<List> lists;
  for (const auto representation : kWithQuery) {
    World w(options_of(representation, 64));
    lists.insert(World::listed(w.step({{0, 192}})[0], 0, 0));
  }
  EXPECT_GE(lists.size(), 4u);
}

TEST(Gsa, RecencyIsOneListForAllAndCountsEveryRow) {
  World w(options_of(GsaRepresentation::recency, 40));
  // 24 blocks, k 5: the windows 0, 22, 23 and by position 20, 21; then 21, 20 have the most again.
  auto s = w.step({{0, 192}, {0, 192}}, {0, 2});
  EXPECT_EQ(s[0].heads, HeadGroups::all);
  EXPECT_EQ(World::listed(s[0], 0, 0), (List{0, 20, 21, 22, 23}));
  EXPECT_EQ(World::listed(s[1], 1, 0), (List{0, 20, 21, 22, 23}));
  // Another request has its own history: at 10 blocks it reads 6 and 7, and keeps to them as the context grows.
  w.step({{1, 80}});
  w.step({{1, 80}});
  EXPECT_EQ(World::listed(w.step({{1, 192}})[0], 0, 0), (List{0, 8, 9, 22, 23})) << "the window's blocks count as chosen";
}

TEST(Gsa, WithOverlapTheScoresOfAStepChooseForTheNext) {
  for (const auto representation : {GsaRepresentation::hash, GsaRepresentation::mean, GsaRepresentation::oracle}) {
    GsaOptions o = options_of(representation, 48);
    o.overlap = true;
    World w(o);
    Selection s = w.step({{0, 190}})[0];
    const List first = w.own_choice(0, 1);
    EXPECT_EQ(World::listed(s, 0, 1), first) << "the first step reads by its own query";
    s = w.step({{0, 191}})[0];
    EXPECT_EQ(World::listed(s, 0, 1), first);
    const List second = w.own_choice(0, 1);
    EXPECT_NE(first, second);
    s = w.step({{0, 192}})[0];
    EXPECT_EQ(World::listed(s, 0, 1), second);
  }
}

TEST(Gsa, AnOpenedBlockTakesThePlaceOfTheOneThatLeftTheWindow) {
  GsaOptions o = options_of(GsaRepresentation::hash, 48);
  o.overlap = true;
  World w(o);
  w.step({{0, 152}});  // 19 blocks, whole
  List want = w.own_choice(0, 0);
  ASSERT_EQ(want.size(), 6u);
  const Selection s = w.step({{0, 153}})[0];  // opens block 19: 17 leaves the window
  want.erase(std::find(want.begin(), want.end(), 17));
  want.push_back(19);
  EXPECT_EQ(World::listed(s, 0, 0), want);
}

TEST(Gsa, EachRowOfAnExtensionIsAStep) {
  GsaOptions o = options_of(GsaRepresentation::hash, 48);
  o.overlap = true;
  World w(o);
  Selection s = w.step({{0, 186}, {0, 187}, {0, 188}, {1, 150}})[0];
  EXPECT_EQ(World::listed(s, 0, 0), w.own_choice(0, 0));
  EXPECT_EQ(World::listed(s, 1, 0), w.own_choice(0, 0));
  EXPECT_EQ(World::listed(s, 2, 0), w.own_choice(1, 0));
  EXPECT_EQ(World::listed(s, 3, 0), w.own_choice(3, 0)) << "another request begins with its own";
  const List last = w.own_choice(2, 0);
  EXPECT_EQ(World::listed(w.step({{0, 189}})[0], 0, 0), last);
}

TEST(Gsa, LayersAndHeadsCarryTheirOwnLists) {
  GsaOptions o = options_of(GsaRepresentation::mean, 48);
  o.overlap = true;
  World w(o);
  const auto choices = [&] { return std::vector<List>{w.own_choice(0, 0), w.own_choice(0, 1)}; };
  w.begin({{0, 180}});
  w.select(0);
  const auto of_layer_0 = choices();
  w.draw_queries();
  w.select(2);
  const auto of_layer_2 = choices();
  ASSERT_NE(of_layer_0, of_layer_2);
  ASSERT_NE(of_layer_0[0], of_layer_0[1]);
  w.begin({{0, 181}});
  for (const auto& [layer, want] : {std::pair{0, of_layer_0}, {2, of_layer_2}}) {
    const Selection s = w.select(layer);
    for (int32_t h = 0; h < 2; ++h) EXPECT_EQ(World::listed(s, 0, h), want[static_cast<size_t>(h)]) << layer << " " << h;
  }
}

// Requests that come while others are under way, and budgets that grow: lists move to larger memory and stay whose they are.
TEST(Gsa, ListsOutgrowTheirMemory) {
  GsaOptions o = options_of(GsaRepresentation::hash, 32);
  o.overlap = true;
  World w(o);
  w.step({{0, 180}});
  const List first = w.own_choice(0, 1);
  const Selection s = w.step({{0, 181}, {1, 170, 120}})[0];  // another request, which keeps 15 blocks
  EXPECT_EQ(World::listed(s, 0, 1), first);
  ASSERT_EQ(w.own_choice(1, 1).size(), 15u);
  w.finish(false);  // nothing of it counts, though the memory has moved
  EXPECT_EQ(World::listed(w.step({{0, 181}, {1, 170, 120}})[0], 0, 1), first);
  const List kept = w.own_choice(0, 1), others = w.own_choice(1, 1);
  const Selection next = w.step({{0, 182}, {1, 171, 120}})[0];
  EXPECT_EQ(World::listed(next, 0, 1), kept);
  EXPECT_EQ(World::listed(next, 1, 1), others);
}

// A step that ends busy in some layer is launched again: no layer of it may read what the lost attempt chose.
TEST(Gsa, AStepThatDoesNotCountLeavesNothing) {
  GsaOptions o = options_of(GsaRepresentation::hash, 48);
  o.overlap = true;
  World w(o);
  w.step({{0, 180}}, {0, 1});
  w.finish(true);
  const List before = w.own_choice(0, 0);
  for (int attempt = 0; attempt < 2; ++attempt) {
    w.step({{0, 181}, {0, 182}, {1, 150}}, {0});
    EXPECT_NE(w.own_choice(1, 0), before);
    w.finish(false);
  }
  w.begin({{0, 181}, {1, 151}});
  for (const int32_t layer : {0, 1}) {
    const Selection s = w.select(layer);
    EXPECT_EQ(World::listed(s, 0, 0), before) << layer;
    EXPECT_EQ(World::listed(s, 1, 0), w.own_choice(1, 0)) << "its first step that counts";
  }
  w.finish(true);
  const List kept = w.own_choice(0, 0);
  EXPECT_EQ(World::listed(w.step({{0, 182}}, {1})[0], 0, 0), kept);
}

TEST(Gsa, RecencyForgetsAStepThatDoesNotCount) {
  World w(options_of(GsaRepresentation::recency, 40)), plain(options_of(GsaRepresentation::recency, 40));
  for (int attempt = 0; attempt < 3; ++attempt) {
    w.step({{1, 80}, {1, 81}, {0, 0}});
    w.finish(false);
  }
  for (const int32_t len : {192, 80, 192}) {
    EXPECT_EQ(World::listed(w.step({{1, len}})[0], 0, 0), World::listed(plain.step({{1, len}})[0], 0, 0));
    w.finish(true);
  }
}

TEST(Gsa, ARequestThatBeginsAgainOrIsRolledBackHasNoState) {
  GsaOptions o = options_of(GsaRepresentation::hash, 48);
  o.overlap = true;
  World w(o);
  w.step({{0, 180}});
  w.method().request_finish(SequenceId{1});
  w.method().request_finish(SequenceId{1});  // idempotent
  w.method().request_begin(SequenceId{1});
  Selection s = w.step({{0, 181}})[0];
  EXPECT_EQ(World::listed(s, 0, 0), w.own_choice(0, 0));
  s = w.step({{0, 100}})[0];
  EXPECT_EQ(World::listed(s, 0, 0), w.own_choice(0, 0)) << "chosen of more blocks than there are";
}

std::vector<Want> wants_of(World& w, int32_t layer) {
  std::vector<Want> wants;
  w.method().take_wants(LayerIdx{layer}, &wants);
  return wants;
}

TEST(Gsa, WithOverlapItWantsWhatTheNextStepReads) {
  GsaOptions o = options_of(GsaRepresentation::mean, 48);
  o.overlap = true;
  World w(o);
  w.begin({{1, 170}, {0, 180}, {0, 181}});
  for (int32_t layer : {0, 2}) {
    w.select(layer);
    std::set<std::tuple<uint64_t, int32_t, int32_t, int32_t>> want, got;
    for (int32_t h = 0; h < 2; ++h) {
      for (int32_t b : w.own_choice(0, h)) want.insert({2, layer, h, b});
      for (int32_t b : w.own_choice(2, h)) want.insert({1, layer, h, b});
    }
    EXPECT_TRUE(wants_of(w, 1).empty()) << "of another layer";
    w.select(layer);
    for (const Want& x : wants_of(w, layer)) {
      got.insert({x.sequence.value, x.layer.value, x.head.value, x.logical_block});
      EXPECT_EQ(x.priority, x.sequence.value == 2 ? 0 : 1) << "the second in the queue is HIGH";
      EXPECT_EQ(x.steps_ahead, 1);
      EXPECT_FALSE(x.guess);
    }
    EXPECT_EQ(got, want);
    EXPECT_TRUE(wants_of(w, layer).empty()) << "told once";
  }
}

// Those that a budget of a quarter more would add.
TEST(Gsa, ItGuessesThatTheNextBestAreReadSoon) {
  World w(options_of(GsaRepresentation::hash, 64));
  w.step({{1, 100}, {0, 180}}, {1});
  List next;
  for (const Want& x : wants_of(w, 1)) {
    EXPECT_EQ(x.layer.value, 1);
    EXPECT_EQ(x.priority, 3) << "LOW";
    EXPECT_EQ(x.steps_ahead, 2);
    EXPECT_TRUE(x.guess);
    if (x.sequence.value == 1 && x.head.value == 1) next.push_back(x.logical_block);
  }
  List kept = w.own_choice(1, 1);
  w.set_budget(1, 80);
  List more = w.own_choice(1, 1), behind;
  std::set_difference(more.begin(), more.end(), kept.begin(), kept.end(), std::back_inserter(behind));
  EXPECT_EQ(next, behind);
  EXPECT_EQ(next.size(), 2u);
}

TEST(Gsa, PrefetchOffWantsNothingAndWithoutAheadNothingIsGuessed) {
  for (const bool off : {true, false}) {
    GsaOptions o = options_of(GsaRepresentation::hash, 48);
    o.prefetch = !off;
    o.prefetch_ahead = off ? 2 : 0;
    World none(o);
    none.step({{0, 180}});
    EXPECT_TRUE(wants_of(none, 0).empty());
  }
}

TEST(Gsa, WantsThatNobodyTakesAreNotKept) {
  World w(options_of(GsaRepresentation::hash, 48), false);
  const Selection s = w.step({{0, 180}})[0];
  EXPECT_EQ(World::listed(s, 0, 0), w.own_choice(0, 0)) << "the choice is the same";
  EXPECT_TRUE(wants_of(w, 0).empty());
}

TEST(Gsa, PrioritiesFollowTheQueue) {
  const std::pair<int32_t, int32_t> expected[] = {{0, 0}, {1, 1}, {4, 1}, {5, 2}, {16, 2}, {17, 3}, {1000, 3}};
  for (const auto& [position, priority] : expected) EXPECT_EQ(prefetch_priority(position), priority) << position;
}

}  // namespace
}  // namespace fovea
