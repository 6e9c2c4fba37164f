#include <fovea/status.h>

#include <gtest/gtest.h>

namespace fovea {
namespace {

Result<int> half(int x) {
  if (x % 2) return Status::invalid_argument("odd: " + std::to_string(x));
  return x / 2;
}

Status quarter(int x, int* out) {
  FOVEA_ASSIGN(const int h, half(x));
  FOVEA_ASSIGN(*out, half(h));
  FOVEA_TRY(half(0));
  return {};
}

TEST(Status, CarriesCodeAndMessage) {
  int out = 0;
  EXPECT_TRUE(quarter(8, &out).ok());
  EXPECT_EQ(out, 2);
  const Status s = quarter(6, &out);
  EXPECT_EQ(s.code(), StatusCode::invalid_argument);
  EXPECT_EQ(s.message(), "odd: 3");
  EXPECT_EQ(s.with_context("f.txt").message(), "f.txt: odd: 3");
  EXPECT_TRUE(Status().with_context("f").ok());
}

TEST(Status, CopiesAreEqualAndIndependent) {
  Status a = Status::corrupt("x");
  Status b = a;
  a = Status();
  EXPECT_EQ(b.message(), "x");
  EXPECT_STREQ(status_code_name(b.code()), "corrupt");
}

TEST(Result, MovesItsValueOut) {
  Result<std::unique_ptr<int>> r = std::make_unique<int>(3);
  std::unique_ptr<int> p = std::move(r).value();
  EXPECT_EQ(*p, 3);
}

}  // namespace
}  // namespace fovea
