// What the tests of a device's pool that is smaller than its contexts share: engines on the fake device, or, with
// FOVEA_TEST_DEVICE=cuda, on a GPU. Float32, what a column held becomes NaN when it is pinned anew.
#pragma once

#include "offload_test_util.h"

#include <memory>
#include <string>
#include <utility>

namespace fovea::testing {

inline EngineOptions options(const std::string& decode_method, int64_t max_model_len = kDocument + 100) {
  EngineOptions o = exact_options(tiny_checkpoint("qwen3_llama3_8h2kv_d64"));
  MethodOptions m;
  m.name = "gsa_on_device";
  m.gsa.budget_tokens = 96;
  o.methods = {m};
  o.decode_method = decode_method;
  o.sparse_min_context = 64;
  o.max_model_len = max_model_len;
  o.max_num_seqs = 4;
  o.max_num_batched_tokens = 64;
  return o;
}

inline std::unique_ptr<EngineImpl> make_on_device(EngineOptions o, uint64_t seed = 1, std::string* refused = nullptr,
                                                  bool fake = test_device() != "cuda",
                                                  std::shared_ptr<BlockStore> store = nullptr) {
  EngineParts parts;
  parts.store = std::move(store);
  parts.poison_evicted = true;
  if (fake) {
    parts.device = std::make_unique<FakeDevice>(seed);
    parts.make_ops = [](Device& device) { return std::make_unique<FakeOps>(static_cast<FakeDevice&>(device), make_ref_ops()); };
    o.device = "cpu";  // not used
  }
  auto engine = std::make_unique<EngineImpl>(std::move(o), std::move(parts));
  const Status made = engine->init();
  if (refused) *refused = made.message();
  if (!refused) {
    EXPECT_TRUE(made.ok()) << made.message();
  }
  return made.ok() ? std::move(engine) : nullptr;
}

inline std::unique_ptr<EngineImpl> make_above(std::shared_ptr<BlockStore> store, EngineOptions o) {
  return make_on_device(std::move(o), 5, nullptr, test_device() != "cuda", std::move(store));
}

// A pool for so many blocks, beside what is resident of all of them.
inline EngineOptions offloaded(EngineOptions o, int64_t memory) {
  o.kv_offload = OffloadChoice::on;
  o.kv_cache_memory_bytes = memory;
  o.kv_host_memory_bytes = int64_t{64} << 20;
  o.kv_tokens = o.max_model_len;
  return o;
}

inline int64_t least_memory(const EngineOptions& o) {
  static std::map<std::pair<std::string, int64_t>, int64_t> found;
  int64_t& least = found[{o.decode_method, o.max_model_len}];
  if (least > 0) return least;
  int64_t no = 0, yes = int64_t{64} << 20;
  while (yes - no > (kSanitized ? 131072 : 16384)) {
    const int64_t middle = (no + yes) / 2;
    std::string why;
    (make_on_device(offloaded(o, middle), 1, &why) ? yes : no) = middle;
    EXPECT_TRUE(why.empty() || why.find("--kv-cache-memory") != std::string::npos) << why;
  }
  return least = yes;
}

// The device's tables agree with each other both ways, and with what the host has pinned.
inline void expect_consistent(EngineImpl& engine) {
  EXPECT_EQ(engine.blocks().check_consistency().message(), "");
  const KvCache& kv = engine.kv();
  const DeviceExtentCache& extents = *kv.device_extents();
  const auto tables = extents.read_tables();
  ASSERT_TRUE(tables.ok());
  const int32_t blocks = kv.config().num_blocks, columns = kv.config().num_slots;
  const auto lent = columns - static_cast<int32_t>(engine.stats().staging_blocks);
  const bool withheld = lent < columns && tables->stamp[static_cast<size_t>(lent)] == kPinnedStamp;
  for (int32_t lh = 0; lh < kv.config().num_layers * kv.config().kv_heads; ++lh) {
    for (int32_t b = 0; b < blocks; ++b) {
      const int32_t column = tables->slot_of[static_cast<size_t>(lh * blocks + b)];
      ASSERT_TRUE(column == -1 || tables->owner[static_cast<size_t>(lh * columns + column)] == b) << "block " << b;
      const SlotId pinned = extents.column_of(BlockId{b});
      ASSERT_TRUE(pinned.value < 0 || pinned.value == column) << "block " << b;
    }
    for (int32_t c = 0; c < columns; ++c) {
      const int32_t block = tables->owner[static_cast<size_t>(lh * columns + c)];
      ASSERT_TRUE(block == -1 || tables->slot_of[static_cast<size_t>(lh * blocks + block)] == c) << "column " << c;
      const bool pinned = tables->stamp[static_cast<size_t>(lh * columns + c)] == kPinnedStamp;
      if (c >= lent) {
        ASSERT_TRUE(pinned == withheld && (!pinned || block == -1)) << "column " << c;
        continue;
      }
      ASSERT_EQ(pinned, block >= 0 && extents.column_of(BlockId{block}).value == c) << "column " << c;
    }
  }
}

inline constexpr int64_t kStored = kDocument + 1, kStoredBlocks = (kStored + 15) / 16;  // the last is a tail

inline EngineOptions small_pool(const std::string& method) {
  const EngineOptions o = options(method);
  return offloaded(o, least_memory(o) + (300 << 10));
}

// Until nothing of what was released is on its way any more.
inline void finish_loads(EngineImpl& engine) {
  std::vector<Output> outputs;
  while (engine.stats().blocks_in_use > 0) ASSERT_TRUE(engine.step(&outputs).ok());
}

}  // namespace fovea::testing
