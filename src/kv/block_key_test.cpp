#include "kv/block_key.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <set>

namespace fovea {
namespace {

KeyContext context() {
  KeyContext c;
  c.model_digest = "model-digest";
  c.tokenizer_digest = "tokenizer-digest";
  c.rope = {.kind = "llama3", .dim = 64, .interleaved = false, .theta = 500000.0, .factor = 32, .original_max_position = 8192};
  c.head_dim = 64;
  c.kv_heads = 2;
  c.window = 4096;
  c.kv_dtype = DType::bf16;
  c.block_size = 8;
  c.tenant_salt = "tenant";
  c.lineage = "dense";
  return c;
}

const std::vector<int32_t> kFirst = {1, 2, 3, 4, 5, 6, 7, -8};
const std::vector<int32_t> kSecond(8, 0);

KeyContext latent_context() {
  KeyContext c = context();
  c.latent = LatentKey{.rank = 512, .index_heads = 64, .index_dim = 128, .index_topk = 2048, .index_interleaved = true};
  return c;
}

// Computed independently with Python:
//   f = lambda tag, b: bytes([tag]) + struct.pack('<Q', len(b)) + b
//   i = lambda *n: struct.pack('<%di' % len(n), *n)
//   m = f(1, i(2)) + f(2, b'model-digest') + f(3, b'tokenizer-digest') + f(4, b'llama3') + f(5, i(64, 0, 1))
//       + f(6, struct.pack('<9d', 5e5, 32, 1, 4, 8192, 32, 1, 1, 0)) + f(7, i(64, 2, 4096)) + f(8, b'') + f(9, b'bf16')
//       + f(10, i(8)) + f(11, b'tenant') + f(12, b'dense')
//   hashlib.sha256(m + f(13, parent) + f(14, i(*tokens))).hexdigest();  latent: f(8, i(512, 64, 128, 2048, 1))
TEST(BlockKey, EqualsAnIndependentComputation) {
  BlockHasher hasher(context());
  const BlockKey first = hasher.key(nullptr, kFirst);
  EXPECT_EQ(first.hex(), "ec012e98ac6e2216b0ded393c595e9e4a5a39ffe0dca252a6b7b4ac56bec8261");
  const BlockKey second = hasher.key(&first, kSecond);
  EXPECT_EQ(second.hex(), "3f32bd2e5bca37fb776a64ab3b6865aad452ac2d0890a9149b2e58b0130cb9ef");
  EXPECT_EQ(hasher.key(&first, std::vector<int32_t>(3, 0)).hex(),
            "ce7ab416cdb9093f8a38f996d3ad19c8e2a31b31b940beed66b275b334a6e3a5");
  EXPECT_EQ(BlockHasher(latent_context()).key(nullptr, kFirst).hex(),
            "f76ad48fdb9e1825de2d4a1fb6a9efaceff8e1428468b72cec0fe2da49dad013");
  EXPECT_EQ(hasher.key(nullptr, kFirst), first);  // the state is reused, not carried over
}

TEST(BlockKey, EveryFieldOfTheContextChangesIt) {
  const std::vector<std::function<void(KeyContext&)>> changes = {
      [](KeyContext&) {},
      [](KeyContext& c) { c.model_digest = "other"; },
      [](KeyContext& c) { c.tokenizer_digest = "other"; },
      [](KeyContext& c) { c.rope.kind = "linear"; },
      [](KeyContext& c) { c.rope.dim = 32; },
      [](KeyContext& c) { c.rope.interleaved = true; },
      [](KeyContext& c) { c.rope.truncate = false; },
      [](KeyContext& c) { c.rope.theta = std::nextafter(c.rope.theta, 1e9); },  // beyond what is printed
      [](KeyContext& c) { c.rope.factor = 31; },
      [](KeyContext& c) { c.rope.low_freq_factor = 2; },
      [](KeyContext& c) { c.rope.high_freq_factor = 8; },
      [](KeyContext& c) { c.rope.original_max_position = 4096; },
      [](KeyContext& c) { c.rope.beta_fast = 16; },
      [](KeyContext& c) { c.rope.beta_slow = 2; },
      [](KeyContext& c) { c.rope.attention_factor = 2; },
      [](KeyContext& c) { c.rope.mscale_all_dim = 1; },
      [](KeyContext& c) { c.head_dim = 128; },
      [](KeyContext& c) { c.kv_heads = 4; },
      [](KeyContext& c) { c.window = 0; },
      [](KeyContext& c) { c.latent = LatentKey{}; },
      [](KeyContext& c) { c = latent_context(); },
      [](KeyContext& c) { c = latent_context(), c.latent->rank = 256; },
      [](KeyContext& c) { c = latent_context(), c.latent->index_heads = 32; },
      [](KeyContext& c) { c = latent_context(), c.latent->index_dim = 64; },
      [](KeyContext& c) { c = latent_context(), c.latent->index_topk = 1024; },
      [](KeyContext& c) { c = latent_context(), c.latent->index_interleaved = false; },
      [](KeyContext& c) { c.kv_dtype = DType::f16; },
      [](KeyContext& c) { c.kv_dtype = DType::fp8_e4m3; },
      [](KeyContext& c) { c.kv_dtype = DType::fp8_e5m2; },
      [](KeyContext& c) { c.kv_dtype = DType::fp8_e4m3, c.kv_scales = "some"; },
      [](KeyContext& c) { c.kv_dtype = DType::fp8_e4m3, c.kv_scales = "others"; },
      [](KeyContext& c) { c.tenant_salt = ""; },
      [](KeyContext& c) { c.cache_salt = "tenant"; },
      [](KeyContext& c) { c.tenant_salt = "", c.cache_salt = "tenant"; },
      [](KeyContext& c) { c.lineage = "xattention;stride=16"; },
      // The same bytes, cut elsewhere.
      [](KeyContext& c) { c.model_digest = "model-digesttoken", c.tokenizer_digest = "izer-digest"; },
      [](KeyContext& c) { c.tenant_salt = "tenantdense", c.lineage = ""; },
  };
  std::set<BlockKey> keys;
  for (const auto& change : changes) {
    KeyContext c = context();
    change(c);
    keys.insert(BlockHasher(c).key(nullptr, kFirst));
  }
  KeyContext twice = context();
  twice.block_size = 16;
  keys.insert(BlockHasher(twice).key(nullptr, std::vector<int32_t>(16, 1)));
  EXPECT_EQ(keys.size(), changes.size() + 1);
}

TEST(BlockKey, ParentAndEveryTokenChangeIt) {
  BlockHasher hasher(context());
  std::set<BlockKey> keys;
  const BlockKey zero{};
  const BlockKey parent = hasher.key(nullptr, kSecond);
  keys.insert(hasher.key(nullptr, kFirst));
  keys.insert(hasher.key(&zero, kFirst));  // no parent is not a parent of zeros
  keys.insert(hasher.key(&parent, kFirst));
  for (size_t i = 0; i < kFirst.size(); ++i) {
    auto tokens = kFirst;
    tokens[i] += 1 << 24;
    keys.insert(hasher.key(nullptr, tokens));
  }
  EXPECT_EQ(keys.size(), 3 + kFirst.size());
}

// The last block of a held prompt: every length has a key of its own, whatever follows.
TEST(BlockKey, APartialBlockHasAKeyForEveryLength) {
  BlockHasher hasher(context());
  std::set<BlockKey> keys;
  for (size_t n = 1; n <= kSecond.size(); ++n) keys.insert(hasher.key(nullptr, std::span(kSecond).first(n)));
  EXPECT_EQ(keys.size(), kSecond.size());
}

TEST(BlockKeyDeath, ABlockHoldsOneTokenToItsSize) {
  BlockHasher hasher(context());
  EXPECT_DEATH(hasher.key(nullptr, {}), "bug");
  EXPECT_DEATH(hasher.key(nullptr, std::vector<int32_t>(9, 1)), "bug");
}

}  // namespace
}  // namespace fovea
