// Which runs flags and plans stand for, and one clear line for what is wrong with them.
#include "eval/eval_plan.h"

#include <gtest/gtest.h>

namespace fovea {
namespace {

using Runs = std::vector<EvalRun>;

TEST(EvalRuns, AProductHasDenseDecodeOnce) {
  EvalProduct p;
  p.prefill_methods = {"dense", "xattention"};
  p.decode_methods = {"dense", "gsa"};
  p.budgets = {128, 256};
  const auto runs = eval_runs(p);
  ASSERT_TRUE(runs.ok()) << runs.status().message();
  EXPECT_EQ(*runs, (Runs{{"dense", "dense", 0, 16},
                         {"dense", "gsa", 128, 16},
                         {"dense", "gsa", 256, 16},
                         {"xattention", "dense", 0, 16},
                         {"xattention", "gsa", 128, 16},
                         {"xattention", "gsa", 256, 16}}));
}

TEST(EvalRuns, BlockSizesComeOneAfterTheOtherAndNothingTwice) {
  EvalProduct p;
  p.decode_methods = {"gsa", "dense", "gsa"};
  p.budgets = {512, 512};
  p.block_sizes = {64, 16};
  EXPECT_EQ(eval_runs(p).value(),
            (Runs{{"dense", "gsa", 512, 64}, {"dense", "dense", 0, 64}, {"dense", "gsa", 512, 16}, {"dense", "dense", 0, 16}}));
}

TEST(EvalRuns, WrongListsAreNamed) {
  EvalProduct p;
  p.budgets = {16, -1};
  EXPECT_EQ(eval_runs(p).status().message(), "--budget-tokens -1: must be >= 0");
  p = {};
  p.block_sizes = {};
  EXPECT_EQ(eval_runs(p).status().message(), "--block-size: the list is empty");
}

TEST(EvalPlan, AnEntryIsARunOrAProduct) {
  const auto runs = parse_eval_plan(
      "- {}\n"
      "- decode: [gsa, \"gsa[representation=mean,hash_bits=64]\"]\n"
      "  budget_tokens: [128, 256]\n"
      "- {prefill: xattention, decode: gsa, budget_tokens: 512, block_size: 128}\n"
      "- decode: gsa[representation=minmax]\n"
      "- decode: dense\n",
      "plan.yaml");
  ASSERT_TRUE(runs.ok()) << runs.status().message();
  EXPECT_EQ(*runs, (Runs{{},
                         {"dense", "gsa", 128, 16},
                         {"dense", "gsa", 256, 16},
                         {"dense", "gsa[representation=mean,hash_bits=64]", 128, 16},
                         {"dense", "gsa[representation=mean,hash_bits=64]", 256, 16},
                         {"xattention", "gsa", 512, 128},
                         {"dense", "gsa[representation=minmax]", 0, 16}}));
}

TEST(EvalPlan, WhatIsWrongIsNamedWithItsPlace) {
  const auto refused = [](const std::string& yaml, std::initializer_list<std::string> parts) {
    const auto plan = parse_eval_plan(yaml, "plan.yaml");
    ASSERT_FALSE(plan.ok()) << yaml;
    const std::string& text = plan.status().message();
    EXPECT_EQ(text.rfind("plan.yaml: ", 0), 0u) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << text << " lacks " << part;
  };
  refused("", {"not a list"});
  refused("[]", {"not a list"});
  refused("decode: dense", {"not a list"});
  refused("- decode: [a", {"not YAML"});
  refused("- dense", {"[0]", "not a map"});
  refused("- {}\n- {method: dense}", {"[1].method", "decode"});
  refused("- {decode: []}", {"[0].decode", "empty"});
  refused("- {decode: }", {"[0].decode"});
  refused("- {decode: [[a, b]]}", {"[0].decode", "a, b"});
  refused("- {budget_tokens: many}", {"[0].budget_tokens", "many"});
  refused("- {decode: gsa, budget_tokens: -4}", {"[0]", "-4"});
  refused("- {block_size: 1.5}", {"[0].block_size", "1.5"});
  const auto gone = load_eval_plan("/nonexistent/plan.yaml");
  ASSERT_FALSE(gone.ok());
  EXPECT_NE(gone.status().message().find("/nonexistent/plan.yaml"), std::string::npos);
}

TEST(RunLabel, SaysWhatTellsRunsApart) {
  EXPECT_EQ(run_label({}), "dense");
  EXPECT_EQ(run_label({"dense", "gsa", 512, 16}), "gsa, 512 tokens");
  EXPECT_EQ(run_label({"xattention", "gsa", 0, 64}), "xattention + gsa, blocks of 64");
  EXPECT_EQ(series_label({"dense", "gsa", 512, 16}), "gsa");
}

TEST(EvalRuns, ABlockSizeThatCannotBeIsRefusedBeforeAnyRun) {
  for (int32_t size : {-1, 0, 4, 24, 512}) {
    EvalProduct p;
    p.block_sizes = {16, size};
    const auto runs = eval_runs(p);
    ASSERT_FALSE(runs.ok()) << size;
    EXPECT_NE(runs.status().message().find("--block-size " + std::to_string(size)), std::string::npos) << runs.status().message();
  }
}

}  // namespace
}  // namespace fovea
