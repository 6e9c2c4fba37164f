// The pre-tokenizer of tokenizer.json: cuts text into the pieces that BPE may not merge across.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <fovea/status.h>
#include "text/tokenizer/regex.h"

namespace fovea {

enum class SplitBehavior { isolated, removed, merged_with_previous, merged_with_next, contiguous };

std::optional<SplitBehavior> split_behavior(std::string_view name);  // as the file writes it: "MergedWithNext"

// Cuts [0, length) at matches (ascending, disjoint) and keeps what the behavior says, in order. invert: what
// lies between the matches is the delimiter. Empty spans may be among the result.
std::vector<Span> split_at(size_t length, const std::vector<Span>& matches, SplitBehavior behavior, bool invert);

class PreTokenizer {
 public:
  struct Split {
    Regex pattern;
    SplitBehavior behavior;
    bool invert;
  };
  struct ByteLevel {
    bool add_prefix_space;
    std::optional<Regex> pattern;  // GPT-2's, if use_regex
  };
  enum class Prepend { never, first, always };  // first: only where the text as given begins
  // SentencePiece's: blanks become U+2581, which stands before a text that does not begin with one.
  struct Metaspace {
    Prepend prepend;
    bool split;  // at each U+2581, which goes with what follows
  };
  using Step = std::variant<Split, ByteLevel, Metaspace>;

  // The regexes behind the kinds that have no pattern of their own in the file.
  static constexpr std::string_view kGpt2Pattern = R"('(?:[stmd]|re|ve|ll)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
  // The package asks Rust, of Unicode 17, whether a character is numeric.
  static constexpr std::string_view kDigitsPattern = R"([\p{N}\x{11de0}-\x{11de9}\x{16ff4}-\x{16ff6}])";
  static Result<Regex> gpt2_pattern();
  static Result<Regex> digits_pattern();
  static Result<Regex> punctuation_pattern();

  void add(Step step) { steps_.push_back(std::move(step)); }
  const std::vector<Step>& steps() const { return steps_; }
  bool has_byte_level() const;

  // Pieces of one text between added tokens: not empty, valid UTF-8 but for nothing, views of text or of
  // made.
  struct Pieces {
    std::vector<std::string_view> views;
    std::deque<std::string> made;  // pieces that are not parts of the text; addresses stay
  };
  // The pieces as raw text: the byte-level alphabet is applied only where a later step looks at it, and
  // undone. in_alphabet: text is written in the byte-level alphabet already. at_start: the text as given begins here.
  Status run(std::string_view text, bool in_alphabet, bool at_start, RegexScratch& scratch, Pieces& pieces) const;

 private:
  std::vector<Step> steps_;
};

}  // namespace fovea
