// Loads over a cache without an engine: random windows, delays, lies and cancellations. Every block that a load says it brought
// holds its bytes, and no block is written that is not a load's.
#include "engine/store_loader.h"

#include "engine/lying_store_test_util.h"
#include "engine/store_writer.h"
#include "kernels/ref/ref_ops.h"
#include "store/fault_fs.h"
#include "store/store_test_util.h"

#include <gtest/gtest.h>

#include <map>

namespace fovea::testing {
namespace {

constexpr int32_t kBlocks = 64, kBlockSize = 8;

class Loads : public ::testing::Test {
 protected:
  explicit Loads(int32_t head_dim = 8) : head_dim_(head_dim) {}
  KvCacheConfig config() const {
    KvCacheConfig c;
    c.num_layers = 2;
    c.num_blocks = kBlocks;
    c.block_size = kBlockSize;
    c.kv_heads = 2;
    c.head_dim = head_dim_;
    c.extra_planes = {{"codes", 2, 64, Residency::resident}};
    return c;
  }

  void SetUp() override {
    ops_ = make_ref_ops();
    cache_ = KvCache::create(config()).value();
    io_ = std::make_unique<ColumnIo>(*cache_, summaries_, 64, *device_, *stream_, *ops_);
  }

  void write(int32_t block, uint32_t value) {
    for (int32_t p = 0; p < cache_->num_planes(); ++p) {
      const Plane& plane = cache_->plane(PlaneIdx{p});
      for (int32_t l = 0; l < plane.num_layers(); ++l) {
        auto* words = reinterpret_cast<uint32_t*>(plane.block(LayerIdx{l}, BlockId{block}));
        for (int64_t i = 0; i < plane.block_bytes() / 4; ++i) words[i] = value * 31 + static_cast<uint32_t>(p * 7 + l * 3 + i);
      }
    }
  }
  bool holds(int32_t block, uint32_t value) {
    std::vector<uint32_t> now = read(block);
    write(block, value);
    return now == read(block);
  }
  std::vector<uint32_t> read(int32_t block) const {
    std::vector<uint32_t> all;
    for (int32_t p = 0; p < cache_->num_planes(); ++p) {
      const Plane& plane = cache_->plane(PlaneIdx{p});
      for (int32_t l = 0; l < plane.num_layers(); ++l) {
        const auto* words = reinterpret_cast<const uint32_t*>(plane.block(LayerIdx{l}, BlockId{block}));
        all.insert(all.end(), words, words + plane.block_bytes() / 4);
      }
    }
    return all;
  }

  // Chains of `n` blocks of their own tokens, the last one partial, put from blocks that are overwritten afterwards.
  std::vector<BlockKey> put_chain(BlockStore& store, uint32_t chain, int32_t n) {
    BlockHasher hasher(KeyContext{.block_size = kBlockSize});
    BlockManager blocks({kBlocks, kBlockSize, 0});
    std::vector<PublishedRun> runs;
    blocks.note_published(&runs);
    const std::vector<int32_t> tokens(static_cast<size_t>(n * kBlockSize - 3), static_cast<int32_t>(chain));
    const SequenceId seq{1};
    std::vector<CacheOp> ops;
    blocks.create_sequence(seq, &hasher);
    EXPECT_TRUE(blocks.append_slots(seq, static_cast<int64_t>(tokens.size()), &ops).ok());
    for (int32_t i = 0; i < n; ++i) write(blocks.table(seq).block(i).value, chain * 1000 + static_cast<uint32_t>(i));
    blocks.publish(seq, tokens, static_cast<int64_t>(tokens.size()), true);
    const std::vector<BlockKey> keys = runs.at(0).keys;
    {
      StoreWriter writer(store, *io_, blocks);
      writer.put(runs);
    }
    EXPECT_EQ(blocks.num_pinned(), 0);
    EXPECT_EQ(keys.size(), static_cast<size_t>(n));
    return keys;
  }

  PlannedLoad plan(BlockStore& store, uint64_t id, const std::vector<BlockKey>& keys, int32_t first_block) {
    PlannedLoad load{.id = id, .seq = SequenceId{id}, .chain = {.keys = keys, .located = {}, .tokens = 0}, .blocks = {}};
    load.chain.located.resize(keys.size());
    store.locate(keys, load.chain.located);
    load.chain.tokens = static_cast<int64_t>(keys.size()) * kBlockSize - 3;
    for (size_t i = 0; i < keys.size(); ++i) load.blocks.push_back(BlockId{first_block + static_cast<int32_t>(i)});
    return load;
  }

  const int32_t head_dim_;
  const std::unique_ptr<Device> device_ = make_cpu_device();
  const std::unique_ptr<Stream> stream_ = device_->make_stream();
  const Summaries summaries_{};
  std::unique_ptr<Ops> ops_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<ColumnIo> io_;
};

TEST_F(Loads, BringWhatWasPutWhateverHappens) {
  int64_t whole = 0, cut = 0, cancelled = 0;
  for (uint32_t seed = 1; seed <= 150; ++seed) {
    LyingStore store(seed);
    ASSERT_TRUE(store.open_layout(io_->layout()).ok());
    std::mt19937 random(seed);
    const std::vector<int32_t> sizes = {1, 7, 20, 12};
    std::vector<std::vector<BlockKey>> chains;
    for (size_t c = 0; c < sizes.size(); ++c) chains.push_back(put_chain(store, static_cast<uint32_t>(c) + 1, sizes[c]));
    for (int32_t b = 0; b < kBlocks; ++b) write(b, 0xDEAD);
    store.bad_reads = seed % 3 * 4;
    store.late_reads = seed % 4 * 30;
    std::vector<EndedLoad> ended;
    std::map<uint64_t, int32_t> first;
    {
      StoreLoader loader(store, *io_, static_cast<int64_t>(1 + seed % 6) * io_->extents().block_bytes());
      for (size_t c = 0, at = 0; c < chains.size(); at += chains[c++].size()) {
        first[c] = static_cast<int32_t>(at);
        loader.begin(plan(store, c, chains[c], first[c]));
        loader.poll(&ended);
      }
      for (int i = 0; i < 1000 && !loader.idle(); ++i) {
        if (seed % 5 == 0 && i == static_cast<int>(seed % 7)) loader.cancel(random() % chains.size());
        if (seed % 7 != 6 || i < 3) loader.poll(&ended);
        if (seed % 7 == 6 && i == 3) break;  // it goes with loads under way
      }
    }
    if (seed % 7 != 6) ASSERT_EQ(ended.size(), chains.size());
    for (const EndedLoad& e : ended) {
      const int32_t n = sizes[e.id];
      const int64_t tokens = n * kBlockSize - 3;
      ASSERT_TRUE(e.tokens == tokens || (e.tokens % kBlockSize == 0 && e.tokens < tokens)) << e.tokens;
      ++(e.tokens == tokens ? whole : cut);
      cancelled += e.tokens == 0;
      for (int32_t i = 0; i < (e.tokens + kBlockSize - 1) / kBlockSize; ++i)
        EXPECT_TRUE(holds(first[e.id] + i, static_cast<uint32_t>(e.id + 1) * 1000 + static_cast<uint32_t>(i))) << seed;
    }
    for (int32_t b = 40; b < kBlocks; ++b) EXPECT_TRUE(holds(b, 0xDEAD)) << "a block that is nobody's";
    EXPECT_EQ(store.pins.load(), 0) << seed;
  }
  EXPECT_GT(whole, 100);
  EXPECT_GT(cut, 20);
  EXPECT_GT(cancelled, 5);
}

// Of whole pages: a disk reads them straight into the windows.
class LoadsFromDisk : public Loads {
 protected:
  LoadsFromDisk() : Loads(128) {}
};

// Each read in turn hangs, and comes back while others are under way. What a load says it brought is right, and no window is read
// into while the disk may write there: the store would not take it.
TEST_F(LoadsFromDisk, AWindowThatADiskHoldsIsNoWindow) {
  static auto& fs = *new FaultFs(posix_file_system());  // what hangs when a channel ends stays behind
  const std::vector<int32_t> sizes = {9, 20, 11};
  int64_t cut = 0, whole = 0;
  bool hangs = true;
  for (int64_t k = 0; hangs; k += 2) {
    SCOPED_TRACE(k);
    hangs = false;
    TempDir dir;
    FileStoreConfig config = config_of(dir.path(), &fs);
    config.options.io = StoreIo::direct;
    config.patience_s = 0.05;
    auto opened = FileStore::open(config);
    ASSERT_TRUE(opened.ok());
    FileStore& store = **opened;
    ASSERT_TRUE(store.open_layout(io_->layout()).ok());
    ASSERT_EQ(io_->layout().parts[0].unit_bytes % 4096, 0u);
    std::vector<std::vector<BlockKey>> chains;
    for (size_t c = 0; c < sizes.size(); ++c) chains.push_back(put_chain(store, static_cast<uint32_t>(c) + 1, sizes[c]));
    for (int32_t b = 0; b < kBlocks; ++b) write(b, 0xDEAD);
    std::vector<EndedLoad> ended;
    std::map<uint64_t, int32_t> first;
    {
      StoreLoader loader(store, *io_, 3 * io_->extents().block_bytes());
      for (size_t c = 0, at = 0; c < chains.size(); at += chains[c++].size()) {
        first[c] = static_cast<int32_t>(at);
        loader.begin(plan(store, c, chains[c], first[c]));
      }
      fs.hang_read(k, false);
      while (!loader.idle() && (k % 3 > 0 || ended.empty())) {
        loader.poll(&ended);
        hangs |= fs.has_hung_read();
        if (k % 3 == 1 && !ended.empty()) fs.heal();
        loader.wait(0.001);
      }
    }
    fs.heal();
    for (const EndedLoad& e : ended) {
      const int32_t n = sizes[e.id];
      ++(e.tokens == n * kBlockSize - 3 ? whole : cut);
      for (int32_t i = 0; i < (e.tokens + kBlockSize - 1) / kBlockSize; ++i)
        EXPECT_TRUE(holds(first[e.id] + i, static_cast<uint32_t>(e.id + 1) * 1000 + static_cast<uint32_t>(i)));
    }
    for (int32_t b = 40; b < kBlocks; ++b) EXPECT_TRUE(holds(b, 0xDEAD)) << "a block that is nobody's";
  }
  EXPECT_GT(cut, 5);
  EXPECT_GT(whole, 10);
}

// Refused, delayed, without room: blocks are given back all the same.
TEST_F(Loads, PutsThatAreRefusedUnpinTheirBlocks) {
  LyingStore store;
  ASSERT_TRUE(store.open_layout(io_->layout()).ok());
  store.refuse_puts = true;
  for (uint32_t chain = 1; chain < 8; ++chain) put_chain(store, chain, 9);
  EXPECT_EQ(store.stats().blocks, 0);
  store.refuse_puts = false;
  put_chain(store, 3, 9);
  EXPECT_EQ(store.stats().blocks, 9);
}

}  // namespace
}  // namespace fovea::testing
