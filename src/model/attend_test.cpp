#include "model/attend.h"

#include <gtest/gtest.h>

#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "kernels/ref/ref_ops.h"
#include "kv/extent_cache.h"

namespace fovea {
namespace {

// Chooses one unit: the number of the layer it was asked in. Notes what it was given.
class OneUnit final : public Method {
 public:
  std::string_view name() const override { return "one_unit"; }
  std::string lineage() const override { return "dense"; }
  Status attach(const ModelShape&, const MethodLimits&, Device&, StepMemory&) override { return {}; }
  int64_t estimate_blocks(int64_t, int32_t) const override { return 1; }
  Status select(const SelectInputs& in, Ops&, Stream&, Selection* out) override {
    if (fail) return Status::internal("no choice");
    asked.push_back(in.layer.value);
    last = in;
    first_plane = in.planes[0];
    unit_ = in.layer.value;
    *out = {.kind = Selection::Kind::list, .rows = 1, .capacity = 1, .units = &unit_, .counts = &count_};
    return {};
  }

  bool fail = false;
  std::vector<int32_t> asked;
  SelectInputs last;
  const std::byte* first_plane = nullptr;

 private:
  int32_t unit_ = -1, count_ = 1;
};

struct Watcher final : SelectionObserver {
  void on_selection(const RowGroup&, LayerIdx layer, const Selection& s, const LayerScores* scores) override {
    seen.push_back(std::to_string(layer.value) + (s.kind == Selection::Kind::all ? " all" : " unit " + std::to_string(s.units[0])));
    if (scores) table = scores->kv.table.slots;
    scored = scores != nullptr;
  }
  std::vector<std::string> seen;
  const int32_t* table = nullptr;
  bool scored = false;
};

class AttentionTest : public testing::Test {
 protected:
  AttentionTest() : ops_(make_ref_ops()) {
    KvCacheConfig c;
    c.num_layers = 4;
    c.num_blocks = 2;
    c.kv_heads = 1;
    c.head_dim = 16;
    c.extra_planes = {{"codes", 1, 64, Residency::resident}};
    kv_ = std::move(KvCache::create(c)).value();
    groups_.resize(2);
    groups_[0].rows = groups_[0].num_seqs = 3;  // dense
    groups_[1].first_row = 3;
    groups_[1].rows = groups_[1].num_seqs = 1;
    groups_[1].method = &method_;
    groups_[1].policy = &policy_;
    groups_[1].planes = planes_;
    for (size_t g = 0; g < 2; ++g) groups_[g].table = {tables_[g], 1, 0};
    batch_.groups = groups_;
    batch_.observer = &watcher_;
  }

  // What each group reads in a layer: "all", or the unit, by its own table.
  std::string attend(Attention& attention, int32_t layer, float scale = 1.0f) {
    std::string read;
    size_t group = 0;
    const Status s = attention.attend(
        LayerIdx{layer},
        [&](const RowGroup& g) {
          return LayerQueries{{.q = rows_ + g.first_row}, scale};
        },
        [&](const RowGroup& g, const Reading& r) {
          EXPECT_EQ(&g, &groups_[group]);
          EXPECT_EQ(r.kv.table.slots, tables_[group++]);
          EXPECT_EQ(r.kv.k, kv_->plane(KvCache::kK, LayerIdx{layer}));
          read += r.selection->kind == Selection::Kind::all ? "all " : std::to_string(r.selection->units[0]) + " ";
        });
    return s.ok() ? read : s.message();
  }

  std::unique_ptr<Ops> ops_;
  std::unique_ptr<KvCache> kv_;
  CpuStream stream_;
  OneUnit method_;
  LayerPolicy policy_ = LayerPolicy::make(4, {1}, {3}).value();  // own, dense, own, reuse
  std::vector<PlaneIdx> planes_ = {PlaneIdx{2}};
  const float rows_[4] = {};
  const int32_t tables_[2][1] = {{1}, {0}};
  std::vector<RowGroup> groups_;
  ForwardBatch batch_;
  Watcher watcher_;
};

TEST_F(AttentionTest, EveryGroupObeysItsPolicy) {
  Attention attention(batch_, *kv_, *ops_, stream_);
  EXPECT_EQ(attend(attention, 0), "all 0 ");
  EXPECT_EQ(method_.last.q, rows_ + 3);
  EXPECT_EQ(method_.last.step, &groups_[1].step);
  EXPECT_EQ(method_.last.block_table.slots, tables_[1]);
  EXPECT_EQ(method_.first_plane, kv_->plane(PlaneIdx{2}, LayerIdx{0}));
  EXPECT_EQ(attend(attention, 1), "all all ");
  EXPECT_EQ(attend(attention, 2), "all 2 ");
  EXPECT_EQ(attend(attention, 3), "all 2 ") << "what layer 2 chose";
  EXPECT_EQ(method_.asked, (std::vector<int32_t>{0, 2}));
  const std::vector<std::string> seen = {"0 all", "0 unit 0", "1 all", "1 all", "2 all", "2 unit 2", "3 all", "3 unit 2"};
  EXPECT_EQ(watcher_.seen, seen);
}

// Index queries are written for one method after the other: its groups choose before the next method's are there.
TEST_F(AttentionTest, AChoiceMadeAheadIsNotMadeAgain) {
  Attention attention(batch_, *kv_, *ops_, stream_);
  OneUnit other;
  const auto ahead = [&](int32_t layer, const Method* method) {
    return attention.choose(LayerIdx{layer}, method, [&](const RowGroup&) { return LayerQueries{{.index_q = rows_ + 1}, 0}; });
  };
  ASSERT_TRUE(ahead(0, &other).ok());
  EXPECT_TRUE(method_.asked.empty());
  ASSERT_TRUE(ahead(0, &method_).ok());
  EXPECT_EQ(method_.last.index_q, rows_ + 1);
  EXPECT_EQ(attend(attention, 0), "all 0 ");
  ASSERT_TRUE(ahead(1, &method_).ok());
  EXPECT_EQ(attend(attention, 1), "all all ") << "a dense layer, whatever the model offers";
  ASSERT_TRUE(ahead(3, &method_).ok());
  EXPECT_EQ(attend(attention, 3), "all 0 ") << "a layer that reuses asks nothing";
  EXPECT_EQ(method_.asked, (std::vector<int32_t>{0}));
}

TEST_F(AttentionTest, TheObserverScoresOnlyWhatQAndKTell) {
  Attention attention(batch_, *kv_, *ops_, stream_);
  attend(attention, 0, 0.5f);
  EXPECT_TRUE(watcher_.scored);
  EXPECT_EQ(watcher_.table, tables_[1]);
  attend(attention, 1, 0.0f);
  EXPECT_FALSE(watcher_.scored);
}

TEST_F(AttentionTest, NothingIsReadWhereTheChoiceFails) {
  Attention attention(batch_, *kv_, *ops_, stream_);
  method_.fail = true;
  EXPECT_EQ(attend(attention, 0), "no choice");
  EXPECT_EQ(watcher_.seen.size(), 1u) << "the dense group alone";
}

TEST_F(AttentionTest, AStepHasSoManyGroups) {
  groups_.resize(kGroupsMax + 1);
  batch_.groups = groups_;
  EXPECT_DEATH(Attention(batch_, *kv_, *ops_, stream_), "bug");
}

// ---- rows that may do without what is late ----

constexpr int32_t kWaveRows = 3, kUnits = 4;

// Row r reads units 4 r + first to 4 r + first + 3.
class OwnUnits final : public Method {
 public:
  OwnUnits(bool may_skip, int32_t first) : may_skip_(may_skip), units_(kWaveRows * kUnits) {
    std::iota(units_.begin(), units_.end(), first);
  }
  std::string_view name() const override { return "own_units"; }
  std::string lineage() const override { return "dense"; }
  Status attach(const ModelShape&, const MethodLimits&, Device&, StepMemory&) override { return {}; }
  int64_t estimate_blocks(int64_t, int32_t) const override { return kUnits; }
  LateRule late_rule() const override { return {.may_skip = may_skip_}; }
  Status select(const SelectInputs& in, Ops&, Stream&, Selection* out) override {
    *out = {
        .kind = Selection::Kind::list, .rows = in.step->rows, .capacity = kUnits, .units = units_.data(), .counts = counts_.data()};
    return {};
  }

 private:
  const bool may_skip_;
  std::vector<int32_t> units_;
  const std::vector<int32_t> counts_ = std::vector<int32_t>(kWaveRows, kUnits);
};

// Everything is there at once; notes until when it may be waited for.
struct Instant final : ExtentSource {
  Status read_now(ReadBatch& batch) override {
    for (ExtentRead& read : batch.reads) read.result = IoResult::ok;
    deadlines.push_back(batch.deadline_s);
    return {};
  }
  std::vector<double> deadlines;
};

// Its deadlines are the shares it is asked for.
struct Shares final : ReadAhead {
  void collect() override {}
  double deadline_s(double share) override { return share; }
  void late(const RowGroup&, LayerIdx, std::span<const ExtentCache::Late>) override {}
  void skipped(SequenceId, int32_t) override {}
  void tell(const RowGroup&, LayerIdx) override {}
};

// However many waves its rows take, a step waits once: groups of three rows, of one, and of one that waits for everything.
TEST(AttentionOfMobileRows, WavesShareWhatAStepWaits) {
  KvCacheConfig c;
  c.num_layers = 1, c.num_blocks = 12, c.num_slots = 9, c.kv_heads = 1, c.head_dim = 16, c.joined = true;
  const auto kv = std::move(KvCache::create(c)).value();
  const auto extents = ExtentCache::create(*kv, {.max_seqs = kWaveRows, .max_blocks = 12}).value();
  BlockHomes homes;
  homes.located.resize(12), homes.keys.resize(12);
  Instant store;
  extents->set_source(&store, &homes);
  kv->attach_extents(extents.get());

  OwnUnits skips(true, 0), waits(false, 4);
  const LayerPolicy policy = LayerPolicy::make(1, {}, {}).value();
  const std::vector<int32_t> row_len(kWaveRows, 12 * c.block_size), row_seq = {0, 1, 2}, indptr = {0, 1, 2, 3};
  std::vector<int32_t> blocks(12 * kWaveRows);
  for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<int32_t>(i % 12);
  std::vector<RowGroup> groups(3);
  for (size_t g = 0, first = 0; g < 3; first += groups[g++].rows) {
    groups[g].blocks = RowGroup::Blocks::mobile;
    groups[g].first_row = static_cast<int32_t>(first);
    groups[g].rows = groups[g].num_seqs = groups[g].step.rows = g == 0 ? kWaveRows : 1;
    groups[g].q_indptr = indptr.data(), groups[g].seq_len = row_len.data();
    groups[g].step.row_seq = row_seq.data(), groups[g].step.row_len = row_len.data();
    groups[g].table = {blocks.data(), 12, 0};
    groups[g].method = g == 2 ? &waits : &skips;
    groups[g].policy = &policy;
  }
  Shares shares;
  ForwardBatch batch;
  batch.groups = groups;
  batch.read_ahead = &shares;
  const auto ops = make_ref_ops();
  CpuStream stream;
  Attention attention(batch, *kv, *ops, stream);
  std::vector<int32_t> rows;
  ASSERT_TRUE(attention
                  .attend(
                      LayerIdx{0}, [](const RowGroup&) { return LayerQueries{}; },
                      [&](const RowGroup&, const Reading& r) { rows.push_back(r.rows); })
                  .ok());
  EXPECT_EQ(rows, (std::vector<int32_t>{2, 1, 1, 1}));
  EXPECT_EQ(store.deadlines, (std::vector<double>{0.5, 0.25, 0.25, 1e30}));
}

}  // namespace
}  // namespace fovea
