#include "model/attend.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "kernels/ref/ref_ops.h"

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

}  // namespace
}  // namespace fovea
