// Where the Unicode versions of the libraries at hand differ from those the PyPI package `tokenizers` is
// built with: its regexes follow Unicode 16, PCRE2 of Debian 12 follows 14; its normalizer follows Unicode 9,
// utf8proc 15. Found by asking both about every code point; the generator of the goldens says how.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace fovea::unicode {

struct Range {
  char32_t first;
  char32_t last;
};

struct NewCategory {
  char32_t first;
  char32_t last;
  char category[3];  // e.g. "Lu"
};

// The one code point that changed its category (Mn to Mc) instead of getting one.
inline constexpr char32_t kRecategorized = 0x1171E;

// Categories given after Unicode 14, ascending by code point.
std::span<const NewCategory> new_categories();

// Code points a script or property (lower case: "han", "alphabetic", "emoji") gained after Unicode 14.
std::span<const Range> additions(std::string_view name);

// Code points that NFC and its kin must treat as plain starters, as the package's normalizer does.
bool unknown_to_normalizer(char32_t c);

}  // namespace fovea::unicode
