#include "engine/stop_matcher.h"

#include <gtest/gtest.h>

namespace fovea {
namespace {

TEST(StopMatcher, HoldsBackWhatCouldBecomeAStop) {
  StopMatcher m({"END", "\n\n"});
  EXPECT_EQ(m.push("a E"), "a ");
  EXPECT_EQ(m.push("N"), "");
  EXPECT_EQ(m.push("X\n"), "ENX");
  EXPECT_EQ(m.push("b"), "\nb");
  EXPECT_EQ(m.push("cEND and more"), "c");
  EXPECT_TRUE(m.stopped());
  EXPECT_EQ(m.push("x"), "");
  EXPECT_EQ(m.finish(), "");
}

TEST(StopMatcher, TheEarliestStopWins) {
  StopMatcher m({"later", "b"});
  EXPECT_EQ(m.push("abc later"), "a");
}

TEST(StopMatcher, OverlappingStartsAreKept) {
  StopMatcher m({"aab"});
  EXPECT_EQ(m.push("aa"), "");
  EXPECT_EQ(m.push("a"), "a");  // "aa" may still begin the stop
  EXPECT_EQ(m.push("b!"), "");
  EXPECT_TRUE(m.stopped());
}

TEST(StopMatcher, FinishReleasesWhatWasHeld) {
  StopMatcher m({"END"});
  EXPECT_EQ(m.push("EN"), "");
  EXPECT_EQ(m.finish(), "EN");
}

TEST(StopMatcher, NoStopsHoldNothing) {
  StopMatcher m({});
  EXPECT_EQ(m.push("text"), "text");
}

}  // namespace
}  // namespace fovea
