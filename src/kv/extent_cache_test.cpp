#include "kv/extent_cache.h"

#include "kernels/ref/ref_ops.h"
#include "kv/kv_cache.h"
#include "store/memory_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <random>

namespace fovea {
namespace {

constexpr int32_t kLayers = 2, kHeads = 2, kBlocks = 20, kColumns = 11, kLent = 4, kBlockSize = 8, kDim = 16;

// What an extent of a block holds, all bytes alike.
std::byte mark(int32_t block, uint32_t unit, bool v) {
  return std::byte(1 + (block * 8 + static_cast<int32_t>(unit) * 2 + v) % 250);
}
StoreKey key_of(int32_t block) {
  StoreKey key;
  key.bytes[0] = static_cast<uint8_t>(block + 1);
  return key;
}

struct Marks final : BlockBytes {
  explicit Marks(int64_t piece) : piece(static_cast<size_t>(piece)) {}
  void copy(uint32_t block, uint16_t, uint32_t unit, std::byte* to) const override {
    std::memset(to, int(mark(int32_t(block), unit, false)), piece);
    std::memset(to + piece, int(mark(int32_t(block), unit, true)), piece);
  }
  size_t piece;
};

// Fails reads, as often as it was told to.
struct Faulty final : ExtentSource {
  explicit Faulty(BlockStore& store) : inner(store) {}
  Status read_now(ReadBatch& batch) override {
    FOVEA_TRY(inner.read_now(batch));
    for (ExtentRead& read : batch.reads) {
      if (faults > 0 && --faults >= 0) read.result = IoResult::io_error, std::memset(read.to, 0x55, 64);
    }
    return {};
  }
  ChannelSource inner;
  int faults = 0;
};

// Leaves every second extent of a batch with a deadline for later.
struct Tardy final : ExtentSource {
  explicit Tardy(BlockStore& store) : inner(store) {}
  Status read_now(ReadBatch& batch) override {
    FOVEA_TRY(inner.read_now(batch));
    for (size_t i = 1; i < batch.reads.size() && batch.deadline_s < 1e30; i += 2) {
      batch.reads[i].result = IoResult::pending;
      std::memset(batch.reads[i].to, 0x55, 64);
    }
    return {};
  }
  ChannelSource inner;
};

class ExtentCacheTest : public testing::Test {
 protected:
  ExtentCacheTest() : store_(int64_t{64} << 20), ops_(make_ref_ops()) {
    KvCacheConfig c;
    c.num_layers = kLayers, c.num_blocks = kBlocks, c.num_slots = kColumns;
    c.block_size = kBlockSize, c.kv_heads = kHeads, c.head_dim = kDim, c.joined = true;
    kv_ = std::move(KvCache::create(c)).value();
    piece_ = kv_->plane(KvCache::kJoined).head_bytes() / 2;
    cache_ =
        ExtentCache::create(*kv_, {.staging_columns = kLent, .max_seqs = 2, .max_blocks = kBlocks, .poison_evicted = true}).value();
    EXPECT_TRUE(store_.open_layout({kBlockSize, {{"kv", kLayers * kHeads, static_cast<uint32_t>(2 * piece_), false}}}).ok());
    homes_.located.resize(kBlocks), homes_.keys.resize(kBlocks);
    Marks marks(piece_);
    PutRun run{.last_tokens = kBlockSize, .bytes = &marks};
    for (int32_t b = 0; b < kBlocks; ++b) run.keys.push_back(key_of(b));
    homes_.keys = run.keys;
    run.done = [&](Status s, std::span<const Located> located) {
      EXPECT_TRUE(s.ok());
      std::copy(located.begin(), located.end(), homes_.located.begin());
    };
    EXPECT_TRUE(store_.put(std::move(run)).ok());
    source_ = std::make_unique<Faulty>(store_);
    cache_->set_source(source_.get(), &homes_);
  }

  // One row a list, of one sequence whose logical block b is block b.
  Status read(int32_t layer, const std::vector<std::vector<std::vector<int32_t>>>& rows) {
    for (size_t first = 0; first < rows.size();) {
      std::vector<int32_t> units, counts, row_seq(rows.size(), 0), row_len(rows.size(), kBlocks * kBlockSize);
      for (const auto& row : rows) {
        for (const auto& list : row) {
          counts.push_back(static_cast<int32_t>(list.size()));
          for (size_t i = 0; i < 4; ++i) units.push_back(i < list.size() ? list[i] : -1);
        }
      }
      Selection s{.kind = Selection::Kind::list, .heads = HeadGroups::per_kv_head, .tokens_per_unit = kBlockSize};
      s.rows = static_cast<int32_t>(rows.size()), s.groups = kHeads, s.capacity = 4;
      s.units = units.data(), s.counts = counts.data();
      std::vector<int32_t> blocks(kBlocks);
      for (int32_t b = 0; b < kBlocks; ++b) blocks[b] = b;
      ExtentCache::Wave wave{.selection = &s,
                             .first = static_cast<int32_t>(first),
                             .end = s.rows,
                             .row_seq = row_seq.data(),
                             .row_len = row_len.data(),
                             .blocks = {blocks.data(), kBlocks, 0}};
      PageTableView table;
      FOVEA_TRY(cache_->fit(&wave));
      FOVEA_TRY(cache_->resolve(LayerIdx{layer}, wave, *ops_, stream_, &table));
      EXPECT_GT(wave.end, static_cast<int32_t>(first));
      for (; first < static_cast<size_t>(wave.end); ++first) {
        for (int32_t h = 0; h < kHeads; ++h) {
          for (int32_t unit : rows[first][h]) expect_content(layer, h, table.slots[h * table.head_stride + unit], unit);
        }
      }
    }
    return {};
  }
  void expect_content(int32_t layer, int32_t head, int32_t column, int32_t block) {
    ASSERT_GE(column, 0);
    const auto unit = static_cast<uint32_t>(layer * kHeads + head);
    const std::byte* k = kv_->plane(KvCache::kJoined).block(LayerIdx{layer}, BlockId{column}) + head * 2 * piece_;
    const std::byte* v = k + piece_;
    for (int64_t i = 0; i < piece_; ++i) {
      ASSERT_EQ(k[i], mark(block, unit, false)) << "block " << block;
      ASSERT_EQ(v[i], mark(block, unit, true)) << "block " << block;
    }
  }
  static Strips strips_of(int32_t layer, int32_t first, int32_t count, std::span<const int32_t> context) {
    return {LayerIdx{layer}, first, count, context.data(), context.data(), static_cast<int32_t>(context.size())};
  }
  // The strips of some heads hold a context.
  void stage(int32_t layer, int32_t first, int32_t count, const std::vector<int32_t>& context) {
    KvView view;
    ASSERT_TRUE(cache_->stage(strips_of(layer, first, count, context), &view).ok());
    expect_strips(view, layer, first, count, context);
  }
  void expect_strips(const KvView& view, int32_t layer, int32_t first, int32_t count, const std::vector<int32_t>& context) {
    EXPECT_EQ(view.kv_heads, count);
    for (int32_t h = 0; h < count; ++h) {
      for (size_t i = 0; i < context.size(); ++i) {
        const int32_t slot = view.table.slots[h * view.table.head_stride + static_cast<int64_t>(i)];
        const int64_t at = (h * view.head_stride + slot * view.block_stride) * static_cast<int64_t>(dtype_bytes(view.dtype));
        const auto unit = static_cast<uint32_t>(layer * kHeads + first + h);
        for (int64_t b = 0; b < piece_; ++b) {
          ASSERT_EQ(static_cast<std::byte*>(view.k)[at + b], mark(context[i], unit, false)) << "block " << context[i];
          ASSERT_EQ(static_cast<std::byte*>(view.v)[at + b], mark(context[i], unit, true)) << "block " << context[i];
        }
      }
    }
  }
  // A block is computed into a column, as a step would.
  void compute(int32_t block, int32_t column) {
    cache_->take(BlockId{block}, SlotId{column});
    for (int32_t l = 0; l < kLayers; ++l) {
      for (int32_t h = 0; h < kHeads; ++h) {
        const auto unit = static_cast<uint32_t>(l * kHeads + h);
        std::byte* at = kv_->plane(KvCache::kJoined).block(LayerIdx{l}, BlockId{column}) + h * 2 * piece_;
        for (bool v : {false, true}) std::memset(at + v * piece_, int(mark(block, unit, v)), size_t(piece_));
      }
    }
  }

  MemoryStore store_;
  BlockHomes homes_;
  std::unique_ptr<KvCache> kv_;
  std::unique_ptr<ExtentCache> cache_;
  std::unique_ptr<Faulty> source_;
  std::unique_ptr<Ops> ops_;
  CpuStream stream_;
  int64_t piece_ = 0;
};

TEST_F(ExtentCacheTest, RandomWavesAndPinsAlwaysReadWhatTheBlocksHold) {
  std::mt19937 rng(1);
  std::map<int32_t, int32_t> pinned;  // column -> block
  const auto draw = [&](int32_t n) { return static_cast<int32_t>(rng() % static_cast<uint32_t>(n)); };
  bool staging = false;
  for (int step = 0; step < 400; ++step) {
    if (draw(4) == 0) cache_->set_staging(staging = !staging);
    if (staging) {
      std::vector<int32_t> context(static_cast<size_t>(1 + draw(8)));
      for (int32_t& b : context) b = draw(kBlocks);
      stage(draw(kLayers), 0, kHeads, context);
    }
    const int32_t column = draw(kColumns - kLent), block = draw(kBlocks);
    const bool taken = std::any_of(pinned.begin(), pinned.end(), [&](const auto& p) { return p.second == block; });
    if (pinned.count(column)) {
      if (draw(2))
        cache_->unpin(SlotId{column});
      else
        cache_->forget(BlockId{pinned[column]});
      pinned.erase(column);
    } else if (pinned.size() < 3 && !taken) {
      compute(block, column);
      pinned[column] = block;
    }
    std::vector<std::vector<std::vector<int32_t>>> rows(1 + draw(3));
    for (auto& row : rows) {
      for (int32_t h = 0; h < kHeads; ++h) {
        std::vector<int32_t> list;
        for (int32_t b = 0; b < kBlocks && list.size() < 4; ++b)
          if (draw(5) == 0) list.push_back(b);
        row.push_back(list);
      }
    }
    ASSERT_TRUE(read(draw(kLayers), rows).ok());
    ASSERT_EQ(cache_->tables().check_consistency().message(), "");
    ASSERT_EQ(cache_->tables().num_mobile(), kColumns - static_cast<int32_t>(pinned.size()) - (staging ? kLent : 0));
    for (const auto& [c, b] : pinned) {
      for (int32_t l = 0; l < kLayers; ++l)
        for (int32_t h = 0; h < kHeads; ++h) expect_content(l, h, c, b);
    }
    if (HasFatalFailure()) FAIL() << "step " << step;
  }
  EXPECT_GT(cache_->take_counts().misses, 100);
}

TEST_F(ExtentCacheTest, WhatWasReadStaysUntilItIsEvicted) {
  ASSERT_TRUE(read(0, {{{0, 1, 2}, {0, 1}}}).ok());
  EXPECT_EQ(cache_->take_counts().misses, 5);
  ASSERT_TRUE(read(0, {{{0, 1, 2}, {0, 1}}, {{1, 3}, {}}}).ok());
  EXPECT_EQ(cache_->take_counts().misses, 1);
  ASSERT_TRUE(read(1, {{{0, 1, 2}, {0, 1}}}).ok()) << "another layer has its own";
  EXPECT_EQ(cache_->take_counts().misses, 5);
}

// What was read again outlives what was read once, and what is no longer pinned, whichever is newer.
TEST_F(ExtentCacheTest, WhatWasReadOnceIsEvictedFirst) {
  const auto stays = [&](int32_t block) { return cache_->tables().slot_of(LayerIdx{0}, 0, BlockId{block}) >= 0; };
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(read(0, {{{0, 1, 2, 3}, {}}}).ok());
  compute(19, 10);
  cache_->unpin(SlotId{10});
  ASSERT_TRUE(read(0, {{{4, 5, 6, 7}, {}}}).ok());
  ASSERT_TRUE(read(0, {{{8, 9}, {}}}).ok());  // the pool is full
  ASSERT_TRUE(read(0, {{{10}, {}}}).ok());
  EXPECT_FALSE(stays(19)) << "the first that came, and was not read";
  ASSERT_TRUE(read(0, {{{11, 12, 13, 14}, {}}}).ok());
  for (int32_t b : {4, 5, 6, 7}) EXPECT_FALSE(stays(b)) << b;
  for (int32_t b : {0, 1, 2, 3, 8, 9, 10}) EXPECT_TRUE(stays(b)) << b;
}

// What is read ahead outlives what comes in during two steps (of two layers, a wave each), and nothing that comes later.
TEST_F(ExtentCacheTest, WhatIsReadAheadStaysForTwoSteps) {
  const auto stays = [&](int32_t block) { return cache_->tables().slot_of(LayerIdx{0}, 0, BlockId{block}) >= 0; };
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(read(0, {{{0, 1, 2, 3}, {}}}).ok());
  const std::vector<std::byte> bytes(static_cast<size_t>(2 * piece_), std::byte{1});
  ASSERT_TRUE(cache_->adopt(LayerIdx{0}, 0, BlockId{15}, bytes.data(), SequenceId{1}, false));
  for (int32_t b = 4; b < 10; ++b) ASSERT_TRUE(read(0, {{{b}, {}}}).ok());  // the pool is full
  ASSERT_TRUE(read(0, {{{10, 11, 12}, {}}}).ok());
  for (int32_t b : {4, 5, 6}) EXPECT_FALSE(stays(b)) << b;
  EXPECT_TRUE(stays(15));
  for (int32_t b : {13, 14}) ASSERT_TRUE(read(0, {{{b}, {}}}).ok());
  EXPECT_FALSE(stays(15));
  for (int32_t b : {0, 1, 2, 3, 8, 9}) EXPECT_TRUE(stays(b)) << b;
}

TEST_F(ExtentCacheTest, LongGroupsGoInWavesThatFit) {
  for (int32_t c = 0; c < 6; ++c) compute(c, c);  // five columns are left
  std::vector<std::vector<std::vector<int32_t>>> rows;
  for (int32_t r = 0; r < 6; ++r) rows.push_back({{r, r + 4, r + 8, r + 12}, {0, 1, 2, 3}});
  EXPECT_TRUE(read(1, rows).ok());
}

TEST_F(ExtentCacheTest, AReadThatFailsIsTriedAgainThenLeavesNothingBehind) {
  source_->faults = 1;
  EXPECT_TRUE(read(0, {{{0, 1}, {2}}}).ok());
  source_->faults = 1000;
  const Status s = read(0, {{{4, 5}, {6}}});
  EXPECT_EQ(s.code(), StatusCode::busy);
  EXPECT_NE(s.message().find("KV store: block"), std::string::npos) << s.message();
  EXPECT_EQ(cache_->tables().check_consistency().message(), "");
  for (int32_t b : {4, 5}) EXPECT_EQ(cache_->tables().slot_of(LayerIdx{0}, 0, BlockId{b}), -1);
  source_->faults = 0;
  EXPECT_TRUE(read(0, {{{4, 5}, {6}}}).ok());
}

TEST_F(ExtentCacheTest, StripsHoldTheWholeContextWhereverItLies) {
  compute(7, 2);
  ASSERT_TRUE(read(1, {{{0, 3}, {5}}}).ok());
  (void)cache_->take_counts();
  EXPECT_EQ(cache_->heads_at_a_time(2), 2) << "four would fit twice, there are two";
  EXPECT_EQ(cache_->heads_at_a_time(4), 2);
  EXPECT_EQ(cache_->heads_at_a_time(5), 1) << "two fit, but not twice";
  EXPECT_EQ(cache_->heads_at_a_time(16), 1);
  EXPECT_EQ(cache_->heads_at_a_time(17), 0);
  cache_->set_staging(true);
  stage(1, 0, 2, {7, 3, 0, 11, 5, 9});
  const int64_t read_again = 2 * 6 - 2 - 3;
  const int64_t staged = cache_->take_counts().staged;
  EXPECT_TRUE(staged >= read_again && staged <= read_again + 3) << staged << ": what lay in lent columns is gone";
  stage(0, 1, 1, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15});
}

// Strips on their way ahead of who asks, with room for one context, some more, or two, hold what those hold that are read when they
// are asked for: whatever is asked for instead, and whatever takes columns meanwhile. What a step that fails leaves behind does no
// harm.
TEST_F(ExtentCacheTest, StripsComeAheadOfWhoAsksForThem) {
  for (const int32_t lent : {2, 3, kLent}) {
    cache_ =
        ExtentCache::create(*kv_, {.staging_columns = lent, .max_seqs = 2, .max_blocks = kBlocks, .poison_evicted = true}).value();
    StripReader reader(store_);
    cache_->set_source(source_.get(), &homes_, nullptr, &reader);
    for (int32_t c = 0; c < kColumns - kLent; ++c) compute(c, c);
    for (int32_t c = 2; c < kColumns - kLent; ++c) cache_->unpin(SlotId{c});
    cache_->set_staging(true);
    std::vector<int32_t> context(8);
    for (int32_t i = 0; i < 8; ++i) context[static_cast<size_t>(i)] = (i * 7) % kBlocks;
    int64_t staged = 0, taken = 0;
    std::vector<std::byte> bytes(static_cast<size_t>(2 * piece_));
    std::mt19937 random(5);
    const auto draw = [&](uint32_t below) { return static_cast<int32_t>(random() % below); };
    int32_t layer = 0, head = 0;
    for (int32_t i = 0; i < 60; ++i) {
      KvView view;
      const KeyGate* gate = nullptr;
      ASSERT_TRUE(cache_->stage(strips_of(layer, head, 1, context), &view, draw(3) == 0 ? nullptr : &gate).ok());
      const int32_t next_layer = draw(kLayers), next_head = draw(kHeads);
      cache_->stage_ahead(strips_of(next_layer, next_head, 1, context));
      if (gate) gate->wait(0, 8);
      expect_strips(view, layer, head, 1, context);
      if (gate) ASSERT_TRUE(cache_->end_stage().ok());
      staged += cache_->take_counts().staged;
      if (const int32_t block = draw(kBlocks); draw(2) == 0) {
        const auto unit = static_cast<uint32_t>(next_layer * kHeads + next_head);
        Marks(piece_).copy(static_cast<uint32_t>(block), 0, unit, bytes.data());
        taken += cache_->adopt(LayerIdx{next_layer}, next_head, BlockId{block}, bytes.data(), SequenceId{1}, false);
      }
      if (draw(8) == 0) cache_->drop_strips();
      if (draw(4) > 0) layer = next_layer, head = next_head;
    }
    EXPECT_GT(staged, 60 * 3);
    EXPECT_GT(taken, 5);
    cache_->drop_strips();
    cache_->set_staging(false);
    EXPECT_EQ(cache_->tables().check_consistency().message(), "");
  }
}

// Strips that lie in a store in memory take no room: all heads at a time, whatever the context. What was stored anew is read there.
TEST_F(ExtentCacheTest, AStoreInMemoryIsReadInPlace) {
  cache_->set_source(source_.get(), &homes_, &store_);
  compute(7, 2);
  ASSERT_TRUE(read(1, {{{0, 3}, {5}}}).ok());
  source_->faults = 1000;  // nothing is read
  EXPECT_EQ(cache_->heads_at_a_time(int64_t{1} << 20), kHeads);
  cache_->set_staging(true);
  (void)cache_->take_counts();
  std::vector<int32_t> context(kBlocks);
  for (int32_t b = 0; b < kBlocks; ++b) context[b] = (b * 7) % kBlocks;
  for (int32_t layer : {1, 0, 1}) stage(layer, 0, kHeads, context);
  std::swap(homes_.located[3], homes_.located[4]);
  std::swap(homes_.keys[3], homes_.keys[4]);
  KvView view;
  const std::array<int32_t, 2> swapped = {3, 4};
  ASSERT_TRUE(cache_->stage(strips_of(0, 0, 1, swapped), &view).ok());
  const auto first_byte = [&](int i) {
    return static_cast<std::byte*>(view.k)[view.table.slots[i] * view.block_stride * static_cast<int64_t>(dtype_bytes(view.dtype))];
  };
  EXPECT_EQ(first_byte(0), mark(4, 0, false));
  EXPECT_EQ(first_byte(1), mark(3, 0, false));
  EXPECT_EQ(cache_->take_counts().staged, 0);
  homes_.located[3] = {};
  EXPECT_EQ(cache_->stage(strips_of(0, 0, 1, swapped), &view).code(), StatusCode::busy);
  EXPECT_EQ(cache_->take_lost(), (std::vector{BlockId{3}}));
}

// Columns that are lent hold nothing of before, and go back empty.
TEST_F(ExtentCacheTest, LentColumnsCacheOnlyWhileNothingIsStaged) {
  for (int32_t c = 0; c < kColumns - kLent; ++c) compute(c, c);
  EXPECT_EQ(cache_->tables().num_mobile(), kLent);
  ASSERT_TRUE(read(1, {{{12, 13, 14}, {15}}}).ok());
  ASSERT_TRUE(read(1, {{{12, 13, 14}, {15}}}).ok());
  EXPECT_EQ(cache_->take_counts().misses, 4);
  cache_->set_staging(true);
  cache_->set_staging(true);  // it is
  EXPECT_EQ(cache_->tables().num_mobile(), 0);
  for (int32_t b : {12, 13, 14}) EXPECT_EQ(cache_->tables().slot_of(LayerIdx{1}, 0, BlockId{b}), -1);
  EXPECT_FALSE(cache_->adopt(LayerIdx{1}, 0, BlockId{12}, nullptr, SequenceId{1}, false));
  stage(0, 0, 1, {19, 0, 18, 6, 17});
  EXPECT_EQ(cache_->tables().check_consistency().message(), "");
  cache_->set_staging(false);
  ASSERT_TRUE(read(1, {{{12, 13, 14}, {15}}}).ok());
  EXPECT_EQ(cache_->take_counts().misses, 4);
  for (int32_t c = 0; c < kColumns - kLent; ++c) expect_content(1, 1, c, c);
}

TEST_F(ExtentCacheTest, ABlockComesBackWholeIntoAPinnedColumn) {
  cache_->take(BlockId{13}, SlotId{4});
  ASSERT_TRUE(cache_->load(BlockId{13}, BlockId{13}, SlotId{4}).ok());
  for (int32_t l = 0; l < kLayers; ++l)
    for (int32_t h = 0; h < kHeads; ++h) expect_content(l, h, 4, 13);
}

TEST_F(ExtentCacheTest, ABlockThatDoesNotComeBackIsLost) {
  Faulty faulty(store_);
  cache_->set_source(&faulty, &homes_);
  faulty.faults = 1000;
  for (const auto& [from, to, column] : {std::array{13, 13, 4}, {12, 15, 5}}) {
    cache_->take(BlockId{to}, SlotId{column});
    EXPECT_EQ(cache_->load(BlockId{from}, BlockId{to}, SlotId{column}).code(), StatusCode::busy);
  }
  EXPECT_EQ(cache_->take_lost(), (std::vector{BlockId{13}, BlockId{15}}));
  EXPECT_FALSE(cache_->has_lost());
}

TEST(ResidencyTables, WavesGoOnWhereTheirNumbersEnd) {
  ResidencyTables t(1, 1, 4, 3);
  for (int32_t b = 0; b < 3; ++b) {
    t.pin(b, BlockId{b});
    (void)t.next_wave();
    t.unpin(b);
  }
  t.set_wave((uint32_t{1} << 31) - 2);
  t.pin(2, BlockId{3});  // block 2 goes
  t.unpin(2);            // stamped with the last wave
  const uint32_t wave = t.next_wave();
  EXPECT_LT(wave, uint32_t{1} << 31);
  const ResidencyView v = t.layer(LayerIdx{0});
  EXPECT_LT(v.stamp[0], v.stamp[2]);
  EXPECT_LT(v.stamp[2], wave);
  EXPECT_EQ(t.check_consistency().message(), "");
}

// Row 0 has blocks 0 to 6, row 1 one more; the first and the last of each are windows.
TEST_F(ExtentCacheTest, LateBlocksLeaveTheListsButWindowsAreWaitedFor) {
  Tardy tardy(store_);
  cache_->set_source(&tardy, &homes_);
  const std::vector<int32_t> units = {0, 2, 6, 0, 3, 6, 0, 2, 7, 1, 3, 7}, row_seq = {0, 0},
                             row_len = {7 * kBlockSize, 7 * kBlockSize + 1};
  const std::vector<int32_t> all_counts(4, 3);
  Selection s{.kind = Selection::Kind::list, .heads = HeadGroups::per_kv_head, .tokens_per_unit = kBlockSize};
  s.rows = 2, s.groups = kHeads, s.capacity = 3, s.units = units.data(), s.counts = all_counts.data();
  std::vector<int32_t> blocks(kBlocks);
  for (int32_t b = 0; b < kBlocks; ++b) blocks[b] = b;
  ExtentCache::Wave wave{.selection = &s,
                         .first = 0,
                         .end = 2,
                         .row_seq = row_seq.data(),
                         .row_len = row_len.data(),
                         .blocks = {blocks.data(), kBlocks, 0},
                         .deadline_s = 1,
                         .init_units = 1,
                         .local_units = 1};
  PageTableView table;
  ASSERT_TRUE(cache_->resolve(LayerIdx{0}, wave, *ops_, stream_, &table).ok());
  // Head 0 misses 0 2 6 7, head 1 misses 0 1 3 6 7: every second of the nine is late, 2 7 | 1 6 here, and 6 and 7 are windows.
  std::vector<int32_t> left(12, -9), counts(4), skipped(2);
  cache_->drop_late(LayerIdx{0}, wave, left.data(), counts.data(), skipped.data());
  EXPECT_EQ(left, (std::vector<int32_t>{0, 6, -9, 0, 3, 6, 0, 7, -9, 3, 7, -9}));
  EXPECT_EQ(counts, (std::vector<int32_t>{2, 3, 2, 2}));
  EXPECT_EQ(skipped, (std::vector<int32_t>{1, 2}));
  for (int32_t r = 0; r < 2; ++r) {
    for (int32_t h = 0; h < kHeads; ++h) {
      for (int32_t i = 0; i < counts[r * 2 + h]; ++i) {
        const int32_t unit = left[(r * 2 + h) * 3 + i];
        expect_content(0, h, table.slots[h * table.head_stride + unit], unit);
      }
    }
  }
  EXPECT_TRUE(cache_->tables().check_consistency().ok());
}

}  // namespace
}  // namespace fovea
