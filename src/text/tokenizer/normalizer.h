// The normalizer of tokenizer.json: what happens to text between added tokens before it is split.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <fovea/status.h>
#include "text/tokenizer/regex.h"

namespace fovea {

enum class UnicodeForm { nfc, nfd, nfkc, nfkd };

// As the package's normalizer does it (Unicode 9: text/tokenizer/unicode_data.h). O(n log n) in the worst
// case.
std::string normalize_unicode(std::string_view valid_utf8, UnicodeForm form);

class Normalizer {
 public:
  struct Replace {
    Regex pattern;
    std::string content;
  };
  struct Prepend {
    std::string text;  // before what is not empty
  };
  struct ByteLevel {};  // writes the text in the byte-level alphabet
  using Step = std::variant<UnicodeForm, Replace, Prepend, ByteLevel>;

  void add(Step step);
  const std::vector<Step>& steps() const { return steps_; }
  bool empty() const { return steps_.empty(); }
  bool is_byte_level() const { return !empty() && std::holds_alternative<ByteLevel>(steps_.back()); }

  Result<std::string> run(std::string_view text, RegexScratch& scratch) const;

 private:
  std::vector<Step> steps_;
};

}  // namespace fovea
