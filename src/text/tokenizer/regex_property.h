// Character sets of the Oniguruma dialect written for PCRE2, with the code points added that PCRE2's older
// Unicode does not know (text/tokenizer/unicode_data.h).
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace fovea {

// A set of characters: `items` stand inside [...]; `others` are expressions that match one character each.
struct CharSet {
  std::string items;
  std::string others;  // joined by '|'

  void add(const CharSet& set);
  void add_other(const std::string& expression);
  bool empty() const { return items.empty() && others.empty(); }
  // One expression that matches one character in (negated: not in) the set, which is not empty.
  std::string expression(bool negated) const;
};

// \p{name}: general categories, scripts, binary properties, in any spelling Oniguruma takes. A name that is
// none of those known here is left to PCRE2 to judge. Empty: not a name at all. caseless: (?i) holds, where a
// cased category in a class matches all of them.
std::optional<CharSet> property_set(std::string_view name, bool caseless);

// [[:name:]]
std::optional<CharSet> posix_set(std::string_view name);

// \s \d \w \h (kind in lower case). bare: outside of [...], where \w also takes ² ³ ¹ ¼ ½ ¾.
CharSet escape_set(char kind, bool bare);

// c written so that it stands for itself, inside and outside of [...].
std::string literal_char(char32_t c);

}  // namespace fovea
