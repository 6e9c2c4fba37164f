#include "engine/route.h"

#include <gtest/gtest.h>

namespace fovea {
namespace {

// A method of which only the rules matter.
class Rules final : public Method {
 public:
  std::string_view name() const override { return "rules"; }
  std::string lineage() const override { return "rules"; }
  int32_t prefill_alignment() const override { return tile; }
  int64_t prefill_min_context() const override { return min_context; }
  bool trained() const override { return is_trained; }
  Status attach(const ModelShape&, const MethodLimits&, Device&, StepMemory&) override { return {}; }
  Status select(const SelectInputs&, Ops&, Stream&, Selection*) override { return {}; }
  int64_t estimate_blocks(int64_t, int32_t budget_tokens) const override { return budget_tokens > 0 ? budget_tokens / 16 : blocks; }

  int32_t tile = 1;
  int64_t min_context = 0;
  bool is_trained = false;
  int64_t blocks = 4;
};

constexpr Route kDense{}, kPrefill{1}, kDecode{2};

class RouteTest : public ::testing::Test {
 protected:
  RouteTest() {
    tiled_.tile = 128;
    tiled_.min_context = 256;
    trained_.is_trained = true;
    trained_.min_context = 32;
  }
  RequestMethods with(const Method* prefill, const Method* decode) const {
    return {.prefill = prefill,
            .decode = decode,
            .prefill_route = kPrefill,
            .decode_route = kDecode,
            .min_context = 100,
            .block_size = 16};
  }
  Route prefill_of(const RequestMethods& m, int64_t position) const { return route(m, Phase::prefill, position); }
  Route decode_of(const RequestMethods& m, int64_t keys) const {
    EXPECT_EQ(route(m, Phase::extend, keys - 1), route(m, Phase::decode, keys - 1));
    return route(m, Phase::decode, keys - 1);
  }

  Rules tiled_, trained_, sparse_;
};

TEST_F(RouteTest, DenseIsDense) {
  const RequestMethods m = with(nullptr, nullptr);
  for (int64_t p : {0, 99, 100, 100000}) {
    EXPECT_EQ(prefill_of(m, p), kDense);
    EXPECT_EQ(decode_of(m, p + 1), kDense);
    EXPECT_TRUE(repeatable(m, p));
    EXPECT_FALSE(extends(m, p));
    EXPECT_EQ(blocks_read(m, p), p / 16 + 1);
  }
}

TEST_F(RouteTest, ShortContextsAreReadWhole) {
  const RequestMethods m = with(nullptr, &sparse_);
  EXPECT_EQ(decode_of(m, 99), kDense);
  EXPECT_EQ(decode_of(m, 100), kDecode);
  EXPECT_EQ(prefill_of(m, 5000), kDense) << "a method of answers has no say over prompts";
  EXPECT_TRUE(repeatable(m, 98));
  EXPECT_FALSE(repeatable(m, 99));
  EXPECT_EQ(blocks_read(m, 98), 7);
  EXPECT_EQ(blocks_read(m, 99), 4);
}

TEST_F(RouteTest, ABudgetThatCoversTheContextIsDense) {
  RequestMethods m = with(nullptr, &sparse_);
  m.budget_tokens = 160;  // ten blocks
  EXPECT_EQ(decode_of(m, 160), kDense);
  EXPECT_TRUE(repeatable(m, 159)) << "dense to the bit: it may be computed again";
  EXPECT_FALSE(extends(m, 160));
  EXPECT_EQ(decode_of(m, 161), kDecode);
  EXPECT_FALSE(repeatable(m, 160));
  EXPECT_TRUE(extends(m, 161));
  EXPECT_EQ(blocks_read(m, 160), 10);
}

TEST_F(RouteTest, ATrainedChoiceIsAlikeInEveryPhase) {
  RequestMethods m = with(&trained_, &trained_);
  m.prefill_route = m.decode_route = kDecode;
  for (int64_t keys : {1, 32, 33, 100, 5000}) {
    EXPECT_EQ(prefill_of(m, keys - 1), keys > 32 ? kDecode : kDense);
    EXPECT_EQ(decode_of(m, keys), prefill_of(m, keys - 1)) << "whatever min_context says";
    EXPECT_TRUE(repeatable(m, keys - 1));
    EXPECT_FALSE(extends(m, keys));
  }
}

TEST_F(RouteTest, ATrainedChoiceOnOneSideAlone) {
  const RequestMethods answers = with(nullptr, &trained_);
  EXPECT_TRUE(repeatable(answers, 31));
  EXPECT_FALSE(repeatable(answers, 32));
  EXPECT_FALSE(extends(answers, 32));
  EXPECT_TRUE(extends(answers, 33)) << "below min_context, which has no say over what was trained";
  const RequestMethods prompts = with(&trained_, nullptr);
  EXPECT_FALSE(repeatable(prompts, 32));
  EXPECT_FALSE(extends(prompts, 99));
  EXPECT_TRUE(extends(prompts, 100));
}

TEST_F(RouteTest, FirstTilesOfASparsePrefillAreDense) {
  const RequestMethods m = with(&tiled_, nullptr);
  EXPECT_EQ(m.prefill_alignment(), 128);
  EXPECT_EQ(prefill_of(m, 255), kDense);
  EXPECT_EQ(prefill_of(m, 256), kPrefill);
  EXPECT_TRUE(repeatable(m, 255));
  EXPECT_FALSE(repeatable(m, 256)) << "prefill would read less than the dense row did";
  EXPECT_FALSE(extends(m, 256));
  EXPECT_TRUE(extends(m, 257));
}

// Tiles are computed whole: one that is untrained is never repeated by single rows, though it be the same method.
TEST_F(RouteTest, OneUntrainedMethodForBothIsNotRepeatable) {
  RequestMethods m = with(&tiled_, &tiled_);
  m.prefill_route = m.decode_route = kDecode;
  EXPECT_EQ(decode_of(m, 300), kDecode);
  EXPECT_EQ(prefill_of(m, 299), kDecode);
  EXPECT_FALSE(repeatable(m, 299));
}

}  // namespace
}  // namespace fovea
