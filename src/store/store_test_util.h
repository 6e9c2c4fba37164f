// What tests of stores share: chains of keys, bytes that tell where they belong, a folder that goes away.
#pragma once

#include "store/file_store.h"
#include "store/memory_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <random>

namespace fovea::testing {

class TempDir {
 public:
  explicit TempDir(const std::string& parent = ::testing::TempDir()) {
    std::string name = parent + "/fovea_store_XXXXXX";
    path_ = mkdtemp(name.data()) ? name : "";
    EXPECT_FALSE(path_.empty());
  }
  ~TempDir() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// A folder in memory where there is one: for thousands of small stores. It may have no direct I/O.
inline std::string memory_folder() { return std::filesystem::exists("/dev/shm") ? "/dev/shm" : ::testing::TempDir(); }

// Extents of whole pages, of less, and of odd sizes; K and V, codes.
inline ObjectLayout test_layout() {
  return {.block_tokens = 16,
          .parts = {{.name = "kv", .units = 6, .unit_bytes = 4096},
                    {.name = "codes.64.7", .units = 1, .unit_bytes = 772, .block_major = true},
                    {.name = "odd", .units = 2, .unit_bytes = 5000}}};
}

inline std::vector<StoreKey> chain(uint64_t seed, size_t n) {
  std::mt19937_64 random(seed);
  std::vector<StoreKey> keys(n);
  for (StoreKey& key : keys) {
    for (uint8_t& b : key.bytes) b = static_cast<uint8_t>(random());
  }
  return keys;
}

// The bytes of an extent follow from its identity.
inline std::vector<std::byte> bytes_of(const StoreKey& key, const PartSpec& part, uint32_t unit) {
  uint64_t state = std::hash<StoreKey>()(key) ^ std::hash<std::string>()(part.name) ^ (uint64_t{unit} << 32);
  std::vector<std::byte> out(part.unit_bytes + 8);
  for (size_t at = 0; at < part.unit_bytes; at += 8) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    std::memcpy(&out[at], &state, 8);
  }
  out.resize(part.unit_bytes);
  return out;
}

class PatternBytes final : public BlockBytes {
 public:
  PatternBytes(ObjectLayout layout, std::vector<StoreKey> keys) : layout_(std::move(layout)), keys_(std::move(keys)) {}
  void copy(uint32_t block, uint16_t part, uint32_t unit, std::byte* to) const override {
    const std::vector<std::byte> bytes = bytes_of(keys_[block], layout_.parts[part], unit);
    std::memcpy(to, bytes.data(), bytes.size());
  }

 private:
  const ObjectLayout layout_;
  const std::vector<StoreKey> keys_;
};

struct PutOutcome {
  Status status;
  std::vector<Located> where;  // pinned
};

// Puts and waits for the end.
inline PutOutcome put(BlockStore& store, const ObjectLayout& layout, const std::vector<StoreKey>& keys, uint32_t last_tokens = 16,
                      StoreKey parent = {}, uint64_t first_block = 0) {
  const PatternBytes bytes(layout, keys);
  PutOutcome out;
  PutRun run{.parent = parent, .first_block = first_block, .keys = keys, .last_tokens = last_tokens, .bytes = &bytes, .done = {}};
  run.done = [&](Status status, std::span<const Located> where) {
    out.status = std::move(status);
    out.where.assign(where.begin(), where.end());
  };
  if (Status status = store.put(std::move(run)); !status.ok()) out.status = std::move(status);
  store.flush();
  return out;
}

inline std::vector<Located> locate(BlockStore& store, const std::vector<StoreKey>& keys) {
  std::vector<Located> out(keys.size());
  store.locate(keys, out);
  return out;
}

inline int64_t found(std::span<const Located> blocks) { return std::ranges::count_if(blocks, &Located::found); }

// Blocks that can be found; pins nothing.
inline int64_t count_found(BlockStore& store, const std::vector<StoreKey>& keys) {
  const std::vector<Located> where = locate(store, keys);
  store.unpin(where);
  return found(where);
}

// Reads of every extent of some located blocks, into memory of their own: the heap's, where sanitizers see who writes late.
struct Reads {
  ObjectLayout layout;
  std::shared_ptr<LentMemory> memory;
  std::vector<ExtentRead> reads;
  ReadBatch batch;

  // misaligned: bytes by which each `to` is off a page.
  Reads(const ObjectLayout& l, std::span<const StoreKey> keys, std::span<const Located> where, size_t misaligned = 0) : layout(l) {
    size_t bytes = 0;
    for (const PartSpec& p : layout.parts) bytes += p.units * keys.size() * (round_up(p.unit_bytes, 4096) + 4096);
    const auto heap = std::make_shared<AlignedBuffer>(bytes);
    memory = std::make_shared<LentMemory>(heap->data(), heap->size(), heap);
    std::byte* to = memory->data() + misaligned;
    for (size_t p = 0; p < layout.parts.size(); ++p) {
      for (uint32_t unit = 0; unit < layout.parts[p].units; ++unit) {
        for (size_t i = 0; i < keys.size(); ++i) {
          reads.push_back({.block = where[i], .key = keys[i], .part = static_cast<uint16_t>(p), .unit = unit, .to = to});
          to += round_up(layout.parts[p].unit_bytes, 4096) + (misaligned > 0 ? 4096 : 0);
        }
      }
    }
    batch.reads = reads;
  }
  void lend() { batch.lent = memory; }
  bool right(const ExtentRead& r) const {
    const std::vector<std::byte> bytes = bytes_of(r.key, layout.parts[r.part], r.unit);
    return std::memcmp(r.to, bytes.data(), bytes.size()) == 0;
  }
  int64_t count(IoResult result) const { return std::ranges::count(reads, result, &ExtentRead::result); }
  int64_t wrong() const {  // ok, but other bytes
    return std::ranges::count_if(reads, [&](const ExtentRead& r) { return r.result == IoResult::ok && !right(r); });
  }
};

inline FileStoreConfig config_of(const std::string& dir, FileSystem* fs = nullptr) {
  FileStoreConfig config;
  config.options.dir = dir;
  config.options.size_bytes = int64_t{1} << 30;
  config.options.sync = StoreSync::none;
  config.fs = fs;
  return config;
}

inline std::unique_ptr<FileStore> open_or_fail(const FileStoreConfig& config) {
  auto store = FileStore::open(config);
  EXPECT_TRUE(store.ok()) << store.status().message();
  if (!store.ok()) return nullptr;
  EXPECT_TRUE((*store)->open_layout(test_layout()).ok());
  return std::move(*store);
}

// Reads all that is found of `keys`; nothing wrong may come. The reads that are ok.
inline int64_t read_found(BlockStore& store, const std::vector<StoreKey>& keys, bool lends = false) {
  const std::vector<Located> where = locate(store, keys);
  Reads reads(test_layout(), keys, where);
  if (lends) reads.lend();
  const auto channel = store.open_channel();
  EXPECT_TRUE(channel->submit(reads.batch).ok());
  EXPECT_TRUE(channel->wait(reads.batch, 1e30).ok());
  EXPECT_EQ(reads.wrong(), 0);
  EXPECT_EQ(reads.count(IoResult::pending), 0);
  store.unpin(where);
  return reads.count(IoResult::ok);
}

}  // namespace fovea::testing
