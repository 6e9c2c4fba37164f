#include "text/tokenizer/bpe.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <queue>
#include <utility>

#include "text/tokenizer/utf8.h"

namespace fovea {
namespace {

constexpr size_t kCachedPieceBytesMax = 256;  // longer pieces hardly come twice
constexpr size_t kCacheEntriesMax = 1 << 16;

std::vector<TokenId> fallback_symbols(const Vocab& vocab, std::string_view text) {
  std::vector<TokenId> ids;
  for (const char b : text) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", static_cast<unsigned>(static_cast<uint8_t>(b)));
    const std::optional<TokenId> id = vocab.find(name);
    if (!id) return {};
    ids.push_back(*id);
  }
  return ids;
}

}  // namespace

std::optional<TokenId> Vocab::find(std::string_view content) const {
  const auto it = ids_.find(content);
  if (it == ids_.end()) return std::nullopt;
  return it->second;
}

BpeModel::BpeModel(Vocab vocab, Options options) : vocab_(std::move(vocab)), options_(options) {
  if (options_.characters) return;
  for (int b = 0; b < 256; ++b) {
    const char byte = static_cast<char>(b);
    const std::string text = byte_alphabet::encode({&byte, 1});
    if (const auto id = vocab_.find(text)) {
      byte_symbols_[b] = {*id};
    } else if (options_.byte_fallback) {
      byte_symbols_[b] = fallback_symbols(vocab_, text);
    }
  }
}

size_t MergeTable::slot_of(uint64_t pair) const {
  const size_t mask = slots_.size() - 1;
  uint64_t mixed = pair * 0x9E3779B97F4A7C15u;
  mixed ^= mixed >> 32;
  size_t slot = mixed & mask;
  while (slots_[slot].pair != kFree && slots_[slot].pair != pair) slot = (slot + 1) & mask;
  return slot;
}

void MergeTable::grow() {
  std::vector<Slot> old(slots_.size() * 2);
  old.swap(slots_);
  for (const Slot& slot : old) {
    if (slot.pair != kFree) slots_[slot_of(slot.pair)] = slot;
  }
}

void MergeTable::set(TokenId left, TokenId right, Merge merge) {
  if (2 * (taken_ + 1) > slots_.size()) grow();
  Slot& slot = slots_[slot_of(pair_of(left, right))];
  taken_ += slot.pair == kFree;
  slot = {pair_of(left, right), merge};
}

const MergeTable::Merge* MergeTable::find(TokenId left, TokenId right) const {
  const Slot& slot = slots_[slot_of(pair_of(left, right))];
  return slot.pair == kFree ? nullptr : &slot.merge;
}

std::vector<TokenId> BpeModel::character_symbols(std::string_view character) const {
  if (const auto id = vocab_.find(character)) return {*id};
  return options_.byte_fallback ? fallback_symbols(vocab_, character) : std::vector<TokenId>();
}

std::vector<TokenId> BpeModel::initial_symbols(std::string_view bytes) const {
  std::vector<TokenId> symbols;
  symbols.reserve(bytes.size());
  bool unknown_before = false;
  const auto add = [&](const std::vector<TokenId>& known) {
    symbols.insert(symbols.end(), known.begin(), known.end());
    const bool unknown = known.empty() && options_.unk.has_value();
    if (unknown && !(unknown_before && options_.fuse_unk)) symbols.push_back(*options_.unk);
    unknown_before = unknown;
  };
  while (!bytes.empty()) {
    const size_t length = options_.characters ? utf8::step(bytes).length : 1;
    options_.characters ? add(character_symbols(bytes.substr(0, length))) : add(byte_symbols_[static_cast<uint8_t>(bytes[0])]);
    bytes.remove_prefix(length);
  }
  return symbols;
}

void BpeModel::encode(std::string_view bytes, Cache& cache, std::vector<TokenId>& ids) const {
  const bool cached = bytes.size() <= kCachedPieceBytesMax;
  if (cached) {
    if (const auto it = cache.entries.find(bytes); it != cache.entries.end()) {
      const auto from = cache.ids.begin() + static_cast<ptrdiff_t>(it->second.begin);
      ids.insert(ids.end(), from, from + static_cast<ptrdiff_t>(it->second.count));
      return;
    }
  }
  const size_t before = ids.size();
  const auto whole = !options_.ignore_merges ? std::nullopt
                     : options_.characters   ? vocab_.find(bytes)
                                             : vocab_.find(byte_alphabet::encode(bytes));
  if (whole) {
    ids.push_back(*whole);
  } else {
    merge_all(initial_symbols(bytes), ids);
  }
  if (cached && cache.entries.size() < kCacheEntriesMax) {
    cache.entries.emplace(bytes, Cache::Entry{cache.ids.size(), ids.size() - before});
    cache.ids.insert(cache.ids.end(), ids.begin() + static_cast<ptrdiff_t>(before), ids.end());
  }
}

// Merges the pair of the smallest rank, the leftmost of equals, until none is left. The symbols are a linked
// list under a heap of candidates; a candidate whose pair has changed since is passed over when it comes up.
void BpeModel::merge_all(const std::vector<TokenId>& symbols, std::vector<TokenId>& ids) const {
  constexpr uint32_t kNone = UINT32_MAX;
  struct Node {
    TokenId id;
    uint32_t previous;
    uint32_t next;
    bool gone;
  };
  const auto count = static_cast<uint32_t>(symbols.size());
  std::vector<Node> nodes(count);
  for (uint32_t i = 0; i < count; ++i) nodes[i] = {symbols[i], i == 0 ? kNone : i - 1, i + 1 < count ? i + 1 : kNone, false};

  std::vector<uint64_t> heap;  // rank << 32 | position of the left symbol
  const auto candidate = [&](uint32_t left) -> std::optional<uint64_t> {
    if (left == kNone || nodes[left].next == kNone) return std::nullopt;
    const MergeTable::Merge* merge = merges_.find(nodes[left].id, nodes[nodes[left].next].id);
    if (merge == nullptr) return std::nullopt;
    return uint64_t{merge->rank} << 32 | left;
  };
  const auto push = [&](uint32_t left) {
    const auto key = candidate(left);
    if (!key) return;
    heap.push_back(*key);
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  for (uint32_t i = 0; i + 1 < count; ++i) {
    if (const auto key = candidate(i)) heap.push_back(*key);
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());

  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const uint64_t key = heap.back();
    heap.pop_back();
    const auto left = static_cast<uint32_t>(key);
    if (nodes[left].gone || candidate(left) != key) continue;
    const uint32_t right = nodes[left].next;
    nodes[left].id = merges_.find(nodes[left].id, nodes[right].id)->merged;
    nodes[left].next = nodes[right].next;
    nodes[right].gone = true;
    if (nodes[left].next != kNone) nodes[nodes[left].next].previous = left;
    push(nodes[left].previous);
    push(left);
  }
  for (const Node& node : nodes) {
    if (!node.gone) ids.push_back(node.id);
  }
}

}  // namespace fovea
