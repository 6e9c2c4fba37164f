#include "text/tokenizer/bpe.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "text/tokenizer/utf8.h"

namespace fovea {
namespace {

Vocab byte_vocab() {
  Vocab vocab;
  for (int b = 0; b < 256; ++b) {
    const char byte = static_cast<char>(b);
    vocab.add(byte_alphabet::encode({&byte, 1}), b);
  }
  return vocab;
}

std::vector<TokenId> encode(const BpeModel& model, std::string_view bytes) {
  BpeModel::Cache cache;
  std::vector<TokenId> ids;
  model.encode(bytes, cache, ids);
  std::vector<TokenId> again;
  model.encode(bytes, cache, again);
  EXPECT_EQ(again, ids) << "from the cache";
  return ids;
}

// The definition: of all neighbours that merge, the smallest rank, the leftmost, until none is left.
std::vector<TokenId> reference(const std::map<std::pair<TokenId, TokenId>, std::pair<uint32_t, TokenId>>& merges,
                               std::vector<TokenId> ids) {
  for (;;) {
    uint32_t best = UINT32_MAX;
    size_t at = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto it = merges.find({ids[i], ids[i + 1]});
      if (it != merges.end() && it->second.first < best) {
        best = it->second.first;
        at = i;
      }
    }
    if (best == UINT32_MAX) return ids;
    ids[at] = merges.at({ids[at], ids[at + 1]}).second;
    ids.erase(ids.begin() + static_cast<ptrdiff_t>(at) + 1);
  }
}

TEST(BpeTest, EqualsTheDefinition) {
  std::mt19937 random(11);
  for (int round = 0; round < 60; ++round) {
    Vocab vocab = byte_vocab();
    std::vector<std::string> contents;
    for (const char c : std::string("abc")) contents.emplace_back(1, c);
    TokenId next = 256;
    std::vector<std::array<std::string, 2>> pairs;
    for (int m = 0; m < 25; ++m) {
      const std::string left = contents[random() % contents.size()], right = contents[random() % contents.size()];
      if (vocab.add(left + right, next)) {
        ++next;
        contents.push_back(left + right);
      }
      pairs.push_back({left, right});  // one text may come of several pairs, one pair may come twice
    }
    BpeModel model(std::move(vocab), {});
    std::map<std::pair<TokenId, TokenId>, std::pair<uint32_t, TokenId>> merges;
    for (uint32_t rank = 0; rank < pairs.size(); ++rank) {
      const TokenId left = *model.vocab().find(pairs[rank][0]), right = *model.vocab().find(pairs[rank][1]);
      const TokenId merged = *model.vocab().find(pairs[rank][0] + pairs[rank][1]);
      model.add_merge(left, right, rank, merged);
      merges[{left, right}] = {rank, merged};
    }
    for (int word = 0; word < 40; ++word) {
      std::string bytes(random() % 40, 'a');
      for (char& c : bytes) c = static_cast<char>('a' + random() % 3);
      EXPECT_EQ(encode(model, bytes), reference(merges, {bytes.begin(), bytes.end()})) << bytes;
    }
  }
}

TEST(BpeTest, ByteFallbackSpellsOutTheStandIn) {
  Vocab vocab;
  vocab.add("a", 0);
  vocab.add("<0xC4>", 1);
  vocab.add("<0xA0>", 2);
  const BpeModel model(std::move(vocab), {.byte_fallback = true});
  EXPECT_EQ(encode(model, "a a"), (std::vector<TokenId>{0, 1, 2, 0}));  // U+0120, the blank, is C4 A0
  EXPECT_EQ(encode(model, "ab"), (std::vector<TokenId>{0}));
}

TEST(BpeTest, AHugeWordIsMergedInReasonableTime) {
  Vocab vocab = byte_vocab();
  TokenId next = 256;
  std::string text = "z";
  for (int level = 0; level < 10; ++level) {
    text += text;
    vocab.add(text, next++);
  }
  BpeModel model(std::move(vocab), {});
  TokenId id = 'z';
  for (uint32_t level = 0; level < 10; ++level) {
    model.add_merge(id, id, level, 256 + static_cast<TokenId>(level));
    id = 256 + static_cast<TokenId>(level);
  }
  EXPECT_EQ(encode(model, std::string((1 << 20) + 3, 'z')).size(), (size_t{1} << 10) + 2);
}

TEST(MergeTableTest, KeepsWhatItIsGiven) {
  MergeTable table;
  EXPECT_EQ(table.find(0, 0), nullptr);
  for (int i = 0; i < 5000; ++i) table.set(i % 70, i / 70, {static_cast<uint32_t>(i), i + 1});
  table.set(3, 2, {9, 9});
  for (int i = 0; i < 5000; ++i) {
    const bool replaced = i % 70 == 3 && i / 70 == 2;
    ASSERT_NE(table.find(i % 70, i / 70), nullptr);
    EXPECT_EQ(table.find(i % 70, i / 70)->merged, replaced ? 9 : i + 1);
  }
  EXPECT_EQ(table.find(70, 0), nullptr);
  EXPECT_EQ(table.find(0, 72), nullptr);
}

}  // namespace
}  // namespace fovea
