// Byte-pair encoding of one piece of text (Sennrich et al. 2016), over bytes as GPT-2 does or over characters as SentencePiece
// does; ties and duplicates as in the package `tokenizers`.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <fovea/status.h>
#include "text/tokenizer/tokenizer.h"

namespace fovea {

// Content of a token, in the byte-level alphabet where the model is over bytes, to its id.
class Vocab {
 public:
  // false if the content is there already.
  bool add(std::string content, TokenId id) { return ids_.try_emplace(std::move(content), id).second; }
  std::optional<TokenId> find(std::string_view content) const;
  size_t size() const { return ids_.size(); }

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view s) const { return std::hash<std::string_view>{}(s); }
  };
  std::unordered_map<std::string, TokenId, Hash, std::equal_to<>> ids_;
};

// What pairs of tokens merge into. Open addressing: this lookup is most of what BPE does.
class MergeTable {
 public:
  struct Merge {
    uint32_t rank;
    TokenId merged;
  };
  // Left and right merge into merged at this rank; said twice: the later rank holds.
  void set(TokenId left, TokenId right, Merge merge);
  const Merge* find(TokenId left, TokenId right) const;  // null: they do not merge
  // Calls visit(left, right, merge) for all, in no order.
  template <typename Visit>
  void for_each(Visit&& visit) const {
    for (const Slot& s : slots_) {
      if (s.pair != kFree) visit(static_cast<TokenId>(s.pair >> 32), static_cast<TokenId>(s.pair & UINT32_MAX), s.merge);
    }
  }

 private:
  struct Slot {
    uint64_t pair = kFree;
    Merge merge{};
  };
  static constexpr uint64_t kFree = UINT64_MAX;  // no pair: ids are not negative
  static uint64_t pair_of(TokenId left, TokenId right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }
  size_t slot_of(uint64_t pair) const;  // where the pair is, or would be
  void grow();

  std::vector<Slot> slots_ = std::vector<Slot>(16);  // a power of two, at most half of them taken
  size_t taken_ = 0;
};

class BpeModel {
 public:
  struct Options {
    bool characters = false;     // merges begin at characters, not at bytes
    bool ignore_merges = false;  // a piece that is a token becomes that token, whatever the merges say
    bool byte_fallback = false;  // what has no token becomes <0xNN> tokens, if there are such
    std::optional<TokenId> unk;  // what else it becomes; none: nothing
    bool fuse_unk = false;       // neighbouring unknowns become one
  };
  BpeModel(Vocab vocab, Options options);

  const Vocab& vocab() const { return vocab_; }
  const Options& options() const { return options_; }
  const MergeTable& merges() const { return merges_; }

  // Smaller ranks merge first.
  void add_merge(TokenId left, TokenId right, uint32_t rank, TokenId merged) { merges_.set(left, right, {rank, merged}); }

  // Results of pieces seen before, for one thread and one model.
  struct Cache {
    struct Entry {
      size_t begin;
      size_t count;
    };
    std::unordered_map<std::string_view, Entry> entries;  // keys outlive the cache
    std::vector<TokenId> ids;
  };

  // Appends the ids of bytes, which the cache may keep a view of; valid UTF-8 where the model is over characters. O(n log n).
  void encode(std::string_view bytes, Cache& cache, std::vector<TokenId>& ids) const;

 private:
  std::vector<TokenId> initial_symbols(std::string_view bytes) const;
  std::vector<TokenId> character_symbols(std::string_view character) const;  // empty: it is unknown
  void merge_all(const std::vector<TokenId>& symbols, std::vector<TokenId>& ids) const;

  Vocab vocab_;
  Options options_;
  std::array<std::vector<TokenId>, 256> byte_symbols_;  // empty: the byte is unknown
  MergeTable merges_;
};

}  // namespace fovea
