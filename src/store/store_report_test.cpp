#include <fovea/store.h>

#include "store/store_test_util.h"

#include <fstream>

namespace fovea {
namespace {

using namespace testing;

// A document of 40 blocks and a tail of 5 tokens; a fork of it at block 30, with 8 blocks of its own; another document.
struct Library {
  TempDir dir;
  const std::vector<StoreKey> trunk = chain(1, 40), fork = chain(2, 8), other = chain(3, 3), tail = chain(4, 1);
  Library() {
    const auto store = open_or_fail(config_of(dir.path()));
    const ObjectLayout layout = test_layout();
    EXPECT_TRUE(put(*store, layout, {trunk.begin(), trunk.begin() + 20}).status.ok());
    EXPECT_TRUE(put(*store, layout, {trunk.begin() + 20, trunk.end()}, 16, trunk[19], 20).status.ok());
    EXPECT_TRUE(put(*store, layout, tail, 5, trunk[39], 40).status.ok());
    EXPECT_TRUE(put(*store, layout, fork, 16, trunk[29], 30).status.ok());
    EXPECT_TRUE(put(*store, layout, other, 2).status.ok());
  }
};

const StoredDocument* by_key(const StoreContents& c, const StoreKey& key) {
  const auto it = std::ranges::find(c.documents, key.hex(), &StoredDocument::key);
  return it == c.documents.end() ? nullptr : &*it;
}

TEST(StoreReport, DocumentsAreRebuiltFromTheirKeys) {
  const Library l;
  const auto c = read_store(l.dir.path());
  ASSERT_TRUE(c.ok()) << c.status().message();
  EXPECT_EQ(c->slabs, 5);
  EXPECT_EQ(c->blocks, 52);
  EXPECT_EQ(c->documents.size(), 3u);
  const StoredDocument* whole = by_key(*c, l.tail[0]);
  ASSERT_NE(whole, nullptr);
  EXPECT_EQ(whole->tokens, 40 * 16 + 5);
  EXPECT_EQ(whole->blocks, 41);
  EXPECT_EQ(whole->slabs, 3);
  EXPECT_TRUE(whole->has_beginning);
  const StoredDocument* fork = by_key(*c, l.fork.back());
  ASSERT_NE(fork, nullptr);
  EXPECT_EQ(fork->tokens, 38 * 16);
  EXPECT_EQ(by_key(*c, l.other.back())->tokens, 34);
  ASSERT_EQ(c->parts.size(), 3u);
  EXPECT_EQ(c->parts[1].name, "kv");
  EXPECT_EQ(c->parts[1].bytes, 52 * 6 * 4096);
  EXPECT_EQ(c->parts[1].slabs, 5);
}

TEST(StoreReport, AChainWithoutItsHeadIsNamed) {
  const Library l;
  {
    const auto store = open_or_fail(config_of(l.dir.path()));
    ASSERT_TRUE(store->erase(std::span(l.trunk).first(20)).ok());
  }  // the slab goes with its last block
  const auto c = read_store(l.dir.path());
  ASSERT_TRUE(c.ok());
  EXPECT_FALSE(by_key(*c, l.fork.back())->has_beginning);
  EXPECT_TRUE(by_key(*c, l.other.back())->has_beginning);
}

TEST(StoreReport, DamageIsTold) {
  const Library l;
  const auto clean = verify_store(l.dir.path(), {});
  ASSERT_TRUE(clean.ok());
  EXPECT_TRUE(clean->damage.empty());
  EXPECT_EQ(clean->slabs, 5);
  EXPECT_EQ(clean->extents, 52 * 9);
  std::ofstream(l.dir.path() + "/slabs/02/0000000000000002.slab", std::ios::app) << "more";
  std::string told;
  const auto damaged = verify_store(l.dir.path(), [&](const StoreDamage& d) { told = d.file + ": " + d.fault; });
  ASSERT_TRUE(damaged.ok());
  EXPECT_EQ(damaged->damage.size(), 1u);
  EXPECT_NE(told.find("slabs/02/0000000000000002.slab"), std::string::npos) << told;
  EXPECT_EQ(read_store(l.dir.path())->bad_slabs, 1);
  const auto collected = collect_store(l.dir.path(), int64_t{1} << 30);
  ASSERT_TRUE(collected.ok());
  EXPECT_EQ(collected->removed_slabs, 0);
  EXPECT_EQ(read_store(l.dir.path())->bad_slabs, 0);
  EXPECT_TRUE(verify_store(l.dir.path(), {})->damage.empty());
}

TEST(StoreReport, RoomIsMade) {
  const Library l;
  const auto before = read_store(l.dir.path());
  const auto c = collect_store(l.dir.path(), before->bytes / 2);
  ASSERT_TRUE(c.ok());
  EXPECT_LE(c->left_bytes, before->bytes / 2);
  EXPECT_EQ(c->left_bytes + c->removed_bytes, before->bytes);
  EXPECT_GT(c->removed_slabs, 0);
  EXPECT_EQ(collect_store(l.dir.path(), 0)->left_bytes, 0);
  EXPECT_EQ(read_store(l.dir.path() + "/no").status().code(), StatusCode::not_found);
}

TEST(StoreReport, SlabsOfAnotherVersionAreCountedAndLeftAlone) {
  const Library l;
  const auto before = read_store(l.dir.path());
  const std::string path = l.dir.path() + "/slabs/02/0000000000000002.slab";
  std::fstream(path, std::ios::in | std::ios::out | std::ios::binary).seekp(8).put(2);
  const auto bytes = static_cast<int64_t>(std::filesystem::file_size(path));
  const auto c = read_store(l.dir.path());
  ASSERT_TRUE(c.ok());
  EXPECT_EQ(c->other_slabs, 1);
  EXPECT_EQ(c->other_bytes, bytes);
  EXPECT_EQ(c->slabs, 4);
  EXPECT_EQ(c->bytes, before->bytes - bytes);
  EXPECT_EQ(c->bad_slabs, 0);
  const auto verdict = verify_store(l.dir.path(), {});
  ASSERT_EQ(verdict->damage.size(), 1u);
  EXPECT_NE(verdict->damage[0].fault.find("version 2"), std::string::npos) << verdict->damage[0].fault;
  EXPECT_EQ(collect_store(l.dir.path(), before->bytes)->removed_slabs, 0);
  EXPECT_EQ(collect_store(l.dir.path(), before->bytes - 1)->removed_slabs, 1) << "it is within the size";
  const auto gone = collect_store(l.dir.path(), 1);
  EXPECT_EQ(gone->removed_slabs, 3);
  EXPECT_EQ(gone->left_bytes, bytes);
  EXPECT_TRUE(std::filesystem::exists(path));
}

TEST(StoreReport, AWriterIsNotDisturbed) {
  const Library l;
  const auto store = open_or_fail(config_of(l.dir.path()));
  EXPECT_TRUE(read_store(l.dir.path()).ok());
  EXPECT_TRUE(verify_store(l.dir.path(), {}).ok());
  EXPECT_EQ(collect_store(l.dir.path(), 1).status().code(), StatusCode::busy);
}

}  // namespace
}  // namespace fovea
