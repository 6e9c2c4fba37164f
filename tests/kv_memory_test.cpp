// What the cache of contexts larger than the pool takes: no more than --kv-cache-memory.
#include "engine_test_util.h"

#include "store/store_test_util.h"

#include <string>

namespace fovea::testing {
namespace {

EngineOptions options(const std::string& dir, int64_t memory, int64_t max_model_len) {
  EngineOptions o = exact_options(tiny_gqa());
  o.device = "cpu";
  o.methods.push_back({.name = "gsa_on_device"});
  o.methods.back().gsa.budget_tokens = 256;
  o.decode_method = "gsa_on_device";
  o.max_model_len = max_model_len;
  o.kv_offload = OffloadChoice::on;
  o.kv_cache_memory_bytes = memory;
  o.kv_store.dir = dir;
  o.tenant_salt = "random K and V";
  return o;
}

std::unique_ptr<EngineImpl> make(const EngineOptions& o) {
  auto engine = std::make_unique<EngineImpl>(o);
  const Status made = engine->init();
  EXPECT_TRUE(made.ok()) << made.message();
  return made.ok() ? std::move(engine) : nullptr;
}

TEST(KvMemory, NothingIsReservedBeyondWhatWasAllowed) {
  for (const int64_t memory : {int64_t{3} << 20, int64_t{9} << 20, int64_t{40} << 20}) {
    const TempDir dir;
    auto engine = make(options(dir.path(), memory, 131072));
    ASSERT_TRUE(engine);
    SCOPED_TRACE(engine->backend());
    const KvMemory m = engine->kv_memory();
    const int64_t all = engine->kv().reserved_bytes() + m.tables + m.read_ahead;
    EXPECT_GT(m.tables, 0);
    EXPECT_GT(m.read_ahead, 0);
    EXPECT_LE(all, memory + 3 * 6 * 8192) << "planes of a layer end at pages";
    EXPECT_GT(all, memory / 10 * 9);
  }
}

}  // namespace
}  // namespace fovea::testing
