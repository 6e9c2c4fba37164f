#include "kv/block_key.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>

namespace fovea {
namespace {

KeyContext context() {
  KeyContext c;
  c.model_digest = "model-digest";
  c.tokenizer_digest = "tokenizer-digest";
  c.attention_config = "rope=llama3;d=64";
  c.kv_dtype = DType::bf16;
  c.block_size = 8;
  c.tenant_salt = "tenant";
  c.lineage = "dense";
  return c;
}

const std::vector<int32_t> kFirst = {1, 2, 3, 4, 5, 6, 7, -8};
const std::vector<int32_t> kSecond(8, 0);

// Computed independently with Python:
//   f = lambda tag, b: bytes([tag]) + struct.pack('<Q', len(b)) + b
//   m = f(1, pack('<I', 1)) + f(2, b'model-digest') + f(3, b'tokenizer-digest') + f(4, b'rope=llama3;d=64')
//       + f(5, b'bf16') + f(6, pack('<I', 8)) + f(7, b'tenant') + f(8, b'dense')
//   hashlib.sha256(m + f(9, parent) + f(10, b''.join(pack('<i', t) for t in tokens))).hexdigest()
TEST(BlockKey, EqualsAnIndependentComputation) {
  BlockHasher hasher(context());
  const BlockKey first = hasher.key(nullptr, kFirst);
  EXPECT_EQ(first.hex(), "412cb42079435cdcad0b375a73101894bd04e2748cb1335299694c938312a625");
  const BlockKey second = hasher.key(&first, kSecond);
  EXPECT_EQ(second.hex(), "94f4684ec27443301b524c7035d54ae9cb38975bcdd625781f09a3d06299edf0");
  EXPECT_EQ(hasher.key(nullptr, kFirst), first);  // the state is reused, not carried over
}

TEST(BlockKey, EveryFieldOfTheContextChangesIt) {
  const std::vector<std::function<void(KeyContext&)>> changes = {
      [](KeyContext&) {},
      [](KeyContext& c) { c.model_digest = "other"; },
      [](KeyContext& c) { c.tokenizer_digest = "other"; },
      [](KeyContext& c) { c.attention_config = "rope=llama3;d=128"; },
      [](KeyContext& c) { c.kv_dtype = DType::f16; },
      [](KeyContext& c) { c.tenant_salt = ""; },
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

TEST(BlockKeyDeath, APartialBlockHasNoKey) {
  BlockHasher hasher(context());
  EXPECT_DEATH(hasher.key(nullptr, std::vector<int32_t>(7, 1)), "bug");
}

}  // namespace
}  // namespace fovea
