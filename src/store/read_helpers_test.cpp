#include "store/read_helpers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

namespace fovea {
namespace {

// Each helper stays longer than the one before.
struct Slow final : ReadHelpers::Work {
  void help() override {
    ++inside;
    const int number = ++came;
    std::this_thread::sleep_for(std::chrono::microseconds(300 * number));
    --inside;
  }
  std::atomic<int> inside{0}, came{0};
};

TEST(ReadHelpers, NobodyIsInsideOnceTheyAreDismissed) {
  ReadHelpers helpers(3);
  int most = 0;
  for (int round = 0; round < 60; ++round) {
    Slow work;
    helpers.invite(work, 3);
    while (work.came < round % 4) std::this_thread::yield();
    most = std::max(most, work.came.load());
    helpers.dismiss(work);
    ASSERT_EQ(work.inside, 0) << "round " << round;
    const int came = work.came;
    if (round % 8 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ASSERT_EQ(work.came, came) << "nor comes later";
  }
  EXPECT_EQ(most, 3);
}

TEST(ReadHelpers, NoMoreComeThanThereAreNorThanWereAsked) {
  ReadHelpers helpers(2);
  Slow one, all;
  helpers.invite(one, 1);
  helpers.invite(one, 1);  // who is to come already is not asked again
  while (one.came == 0) std::this_thread::yield();
  helpers.dismiss(one);
  EXPECT_LE(one.came, 2);
  helpers.invite(all, 9);
  while (all.came < 2) std::this_thread::yield();
  helpers.dismiss(all);
  EXPECT_EQ(all.came, 2);
  ReadHelpers none(0);
  Slow alone;
  none.invite(alone, 3);
  none.dismiss(alone);
  EXPECT_EQ(alone.came, 0);
}

}  // namespace
}  // namespace fovea
