#include "kernels/common/page_tables.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fovea {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const CsrPages kCsr = {{0, 2, 2, 3, 6}, {7, 3, 0, 4, 5, 1}, {1, 0, 16, 15}};
const BlockTable kTable = {3, {7, 3, -1, -1, -1, -1, 0, -1, -1, 4, 5, 1}, {17, 0, 16, 47}};

TEST(PageTables, CsrToBlockTable) {
  auto table = block_table_from_csr(kCsr, 16);
  ASSERT_TRUE(table.ok());
  EXPECT_EQ(table->max_blocks, 3);
  EXPECT_EQ(table->blocks, kTable.blocks);
  EXPECT_EQ(table->seq_lens, kTable.seq_lens);
}

TEST(PageTables, BlockTableToCsr) {
  auto csr = csr_from_block_table(kTable, 16);
  ASSERT_TRUE(csr.ok());
  EXPECT_EQ(csr->indptr, kCsr.indptr);
  EXPECT_EQ(csr->indices, kCsr.indices);
  EXPECT_EQ(csr->last_page_len, kCsr.last_page_len);
}

// Entries beyond a row's length may be anything: they are not looked at.
TEST(PageTables, EntriesBeyondTheLengthAreIgnored) {
  BlockTable table = kTable;
  table.blocks[2] = 99;
  table.blocks[3] = -5;
  auto csr = csr_from_block_table(table, 16);
  ASSERT_TRUE(csr.ok());
  EXPECT_EQ(csr->indices, kCsr.indices);
}

TEST(PageTables, LengthsAroundABlock) {
  const BlockTable table = {2, {0, 1, 2, 3, 4, 5, 6, 7}, {1, 15, 16, 17}};
  auto csr = csr_from_block_table(table, 16);
  ASSERT_TRUE(csr.ok());
  EXPECT_THAT(csr->indptr, ElementsAre(0, 1, 2, 3, 5));
  EXPECT_THAT(csr->last_page_len, ElementsAre(1, 15, 16, 1));
  EXPECT_THAT(csr->indices, ElementsAre(0, 2, 4, 6, 7));
}

TEST(PageTables, NothingAtAll) {
  auto table = block_table_from_csr({}, 16);
  ASSERT_TRUE(table.ok());
  EXPECT_TRUE(table->seq_lens.empty());
  auto csr = csr_from_block_table({}, 16);
  ASSERT_TRUE(csr.ok());
  EXPECT_THAT(csr->indptr, ElementsAre(0));
}

void expect_bad(const CsrPages& csr, const char* what) {
  auto table = block_table_from_csr(csr, 16);
  ASSERT_FALSE(table.ok()) << what;
  EXPECT_EQ(table.status().code(), StatusCode::invalid_argument);
  EXPECT_THAT(table.status().message(), HasSubstr(what));
}

TEST(PageTables, BadCsrIsNamed) {
  expect_bad({{0}, {}, {1}}, "number of indptr entries is 1");
  expect_bad({{1, 1}, {}, {0}}, "indptr of row 0 is 1");
  expect_bad({{0, 2, 1}, {0, 1}, {1, 1}}, "number of pages of row 1 is -1");
  expect_bad({{0, 1}, {0}, {0}}, "last_page_len of row 0 is 0");
  expect_bad({{0, 1}, {0}, {17}}, "last_page_len of row 0 is 17");
  expect_bad({{0, 0}, {}, {3}}, "last_page_len of row 0 is 3");
  expect_bad({{0, 1}, {0, 1}, {5}}, "last indptr entry is 1");
  expect_bad({{0, 1}, {-1}, {5}}, "a slot is -1");
}

TEST(PageTables, BadBlockTableIsNamed) {
  auto message = [](const BlockTable& t, int32_t block_size) {
    auto csr = csr_from_block_table(t, block_size);
    return csr.ok() ? std::string() : csr.status().message();
  };
  EXPECT_THAT(message(kTable, 0), HasSubstr("block size is 0"));
  EXPECT_THAT(message({1, {0}, {17}}, 16), HasSubstr("length of row 0 is 17"));
  EXPECT_THAT(message({1, {0}, {-1}}, 16), HasSubstr("length of row 0 is -1"));
  EXPECT_THAT(message({2, {0}, {1}}, 16), HasSubstr("number of block table entries is 1"));
  EXPECT_THAT(message({1, {-1}, {1}}, 16), HasSubstr("a slot of row 0 is -1"));
}

}  // namespace
}  // namespace fovea
