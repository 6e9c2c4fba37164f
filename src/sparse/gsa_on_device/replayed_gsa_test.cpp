// Recorded lists in place of a choice: where their blocks come to lie, which row each step takes, and what is refused.
#include "sparse/gsa_on_device/replayed_gsa.h"

#include "device/stream.h"
#include "kernels/ref/ref_ops.h"
#include "sparse/step_rows_test_util.h"

#include <gtest/gtest.h>

namespace fovea {
namespace {

TEST(ReplayedGsa, BlocksOfTheDocumentStayAndTheLastFollowTheRow) {
  const auto placed = [](const std::vector<int32_t>& list, int32_t recorded_blocks, int32_t blocks) {
    std::vector<int32_t> out{99};
    place_list(list, 10, recorded_blocks, blocks, &out);
    return out;
  };
  using List = std::vector<int32_t>;
  EXPECT_EQ(placed({0, 4, 9, 11, 12}, 13, 13), (List{0, 4, 9, 11, 12}));
  EXPECT_EQ(placed({0, 4, 9, 11, 12}, 13, 20), (List{0, 4, 9, 18, 19}));
  EXPECT_EQ(placed({0, 4, 9, 10, 11, 12}, 13, 11), (List{0, 4, 9, 10})) << "8 lies before 9 and 9 was there";
  EXPECT_EQ(placed({0, 4, 9, 12}, 13, 6), (List{0, 4, 5})) << "9 lies outside";
  EXPECT_EQ(placed({}, 13, 20), List{});
}

constexpr int32_t kLayers = 5, kHeads = 3, kBlock = 4;

// 2 layers, 2 heads, blocks of 4; each list of row r is {0, 1 + 10 r + list}.
RecordedLists recorded(int64_t context_tokens, int32_t rows) {
  RecordedLists lists{2, 2, kBlock, 2, context_tokens, {}};
  for (int32_t r = 0; r < rows; ++r) {
    RecordedRow row{r, 0, context_tokens + r, true, {}};
    for (int32_t i = 0; i < 4; ++i) row.lists.push_back({0, 1 + 10 * r + i});
    lists.rows.push_back(row);
  }
  return lists;
}

class World {
 public:
  explicit World(std::vector<RecordedLists> lists) : method_({}, std::move(lists)) {
    shape_.num_layers = kLayers;
    shape_.num_heads = 2 * kHeads;
    shape_.kv_heads = kHeads;
    shape_.head_dim = 16;
    shape_.block_size = kBlock;
    shape_.kv_bytes_per_token_head = 128;
  }
  Status attach() {
    FOVEA_TRY(method_.attach(shape_, {4, 400}, *device_, staging_));
    return staging_.commit();
  }
  Status begin(std::vector<int32_t> lens) {
    lens_ = std::move(lens);
    seqs_.assign(lens_.size(), 0);
    budgets_.assign(lens_.size(), 8);
    ids_.assign(lens_.size(), SequenceId{1});
    step_ = testing::step_rows(seqs_, lens_, ids_, budgets_);
    return method_.step_begin(step_);
  }
  // The lists of a layer's heads.
  std::vector<std::vector<int32_t>> select(int32_t layer) {
    const PlaneSpec spec = method_.planes().at(0);
    codes_.assign(static_cast<size_t>(100 * spec.heads * spec.bytes_per_block / 8), 0x5a5a);
    std::byte* plane = reinterpret_cast<std::byte*>(codes_.data());
    q_.assign(static_cast<size_t>(shape_.num_heads * shape_.head_dim), 1.0f);
    table_.assign(100, 3);
    SelectInputs in;
    in.layer = LayerIdx{layer};
    in.step = &step_;
    in.q = q_.data();
    in.block_table = {table_.data(), 100, 0};
    in.planes = &plane;
    Selection s;
    EXPECT_TRUE(method_.select(in, *ops_, stream_, &s).ok());
    EXPECT_EQ(s.kind, Selection::Kind::list);
    EXPECT_EQ(s.rows, 1);
    EXPECT_EQ(s.groups, kHeads);
    std::vector<std::vector<int32_t>> lists;
    for (int32_t h = 0; h < kHeads; ++h) lists.emplace_back(s.units + h * s.capacity, s.units + h * s.capacity + s.counts[h]);
    return lists;
  }

 private:
  ModelShape shape_;
  std::unique_ptr<Device> device_ = make_cpu_device();
  StepMemory staging_{*device_};
  std::unique_ptr<Ops> ops_ = make_ref_ops();
  CpuStream stream_;
  ReplayedGsa method_;
  StepRows step_;
  std::vector<int32_t> seqs_, lens_, budgets_, table_;
  std::vector<SequenceId> ids_;
  std::vector<uint64_t> codes_;
  std::vector<float> q_;
};

TEST(ReplayedGsa, LayersAndHeadsTakeThoseOfTheRecordingInTurn) {
  World w({recorded(200, 3)});
  ASSERT_TRUE(w.attach().ok());
  for (int32_t step = 0; step < 7; ++step) {
    ASSERT_TRUE(w.begin({200 + step}).ok());
    for (int32_t l = 0; l < kLayers; ++l) {
      const auto lists = w.select(l);
      for (int32_t h = 0; h < kHeads; ++h)
        EXPECT_EQ(lists[static_cast<size_t>(h)], (std::vector<int32_t>{0, 1 + 10 * (step % 3) + l % 2 * 2 + h % 2}))
            << step << " " << l;
    }
  }
}

TEST(ReplayedGsa, ARowTakesTheLongestContextItHolds) {
  World w({recorded(300, 1), recorded(120, 3)});
  ASSERT_TRUE(w.attach().ok());
  EXPECT_EQ(w.begin({119}).code(), StatusCode::unsupported);
  ASSERT_TRUE(w.begin({299}).ok());
  EXPECT_EQ(w.select(0)[0][1], 1);
  ASSERT_TRUE(w.begin({300}).ok());
  EXPECT_EQ(w.select(0)[0][1], 1);
  ASSERT_TRUE(w.begin({299}).ok());
  EXPECT_EQ(w.select(0)[0][1], 11) << "the next row of its own recording";
}

TEST(ReplayedGsa, RefusesWhatItCannotReplay) {
  World rows({recorded(120, 1)});
  ASSERT_TRUE(rows.attach().ok());
  EXPECT_EQ(rows.begin({130, 131}).code(), StatusCode::unsupported);
  RecordedLists other = recorded(120, 1);
  other.block_size = 16;
  EXPECT_NE(World({other}).attach().message().find("16"), std::string::npos);
  other = recorded(120, 2);
  other.rows[1].lists[3].clear();
  EXPECT_NE(World({other}).attach().message().find("everything"), std::string::npos);
}

}  // namespace
}  // namespace fovea
