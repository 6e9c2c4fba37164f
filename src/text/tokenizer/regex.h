// Regexes of tokenizer.json: written for Oniguruma, run by PCRE2 (with its JIT where there is one).
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <fovea/status.h>

namespace fovea {

// Room for one match; one per thread, for any number of regexes.
class RegexScratch {
 public:
  RegexScratch();
  ~RegexScratch();
  RegexScratch(const RegexScratch&) = delete;
  RegexScratch& operator=(const RegexScratch&) = delete;

 private:
  friend class Regex;
  void* match_;  // pcre2_match_data, never null
};

struct Span {
  size_t begin;
  size_t end;
};

class Regex {
 public:
  // Both take valid UTF-8. An error says what is wrong with the pattern and where.
  static Result<Regex> compile(std::string_view pattern);
  static Result<Regex> literal(std::string_view text);  // text stands for itself
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  ~Regex();

  const std::string& source() const;  // the pattern that was compiled

  // Every match of the whole text, left to right, as the oracle's iterator yields them: empty matches too,
  // but not the first one after a match that was not empty. text is valid UTF-8. More work than the limits
  // allow for one match is resource_exhausted, naming the byte where it began.
  Status find_all(std::string_view text, RegexScratch& scratch, std::vector<Span>& matches) const;

 private:
  struct Compiled;
  explicit Regex(std::unique_ptr<Compiled> compiled);
  std::unique_ptr<Compiled> compiled_;  // never null unless moved from
};

}  // namespace fovea
