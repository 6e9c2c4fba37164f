// Tokens that are found in the text as a whole, before BPE sees it: <|im_start|> and its like.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/tokenizer/regex.h"
#include "text/tokenizer/tokenizer.h"

namespace fovea {

struct AddedToken {
  TokenId id;
  std::string pattern;  // what to look for; not empty
  bool single_word;     // only where no word character touches it
  bool lstrip;          // takes the white space before it along
  bool rstrip;          // and after it
  bool special;
};

class AddedTokenMatcher {
 public:
  // A stretch of the text: an added token, or (id < 0) text between them.
  struct Segment {
    TokenId id;
    size_t begin;
    size_t end;
  };

  // Patterns are distinct; false (and nothing added) if this one is there already.
  bool add(AddedToken token);

  const std::vector<AddedToken>& tokens() const { return tokens_; }

  // Covers the text: leftmost tokens first, the longest of them at each place. skip_special: special tokens
  // are plain text, but what they cover is not searched again, as in the package. text is valid UTF-8.
  std::vector<Segment> find(std::string_view text, bool skip_special) const;

 private:
  static constexpr int32_t kNone = -1;
  // Length of the longest pattern at the front of text, 0: none.
  size_t longest(std::string_view text, int32_t& token) const;

  // No word character right before begin or right after end.
  bool stands_alone(std::string_view text, size_t begin, size_t end) const;

  std::vector<AddedToken> tokens_;
  std::optional<Regex> word_char_;  // one word character; there is one if any token is single_word
  // A trie over bytes: edges by node << 8 | byte; the token that ends at a node.
  std::unordered_map<uint64_t, uint32_t> edges_;
  std::vector<int32_t> ends_{kNone};
  bool starts_[256] = {};  // bytes some pattern begins with
};

}  // namespace fovea
