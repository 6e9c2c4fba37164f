// Text as Python sees it: code points of UTF-8, str.isspace(), case mapping of one code point to one (utf8proc; Python maps
// some to two: its 'ß'.upper() is 'SS').
// A byte that is not part of valid UTF-8 counts as one code point (0xDC00 + byte), so every text has a length.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace fovea::jinja {

struct CodePoint {
  char32_t value;
  size_t bytes;  // 1 to 4
};

CodePoint decode(std::string_view text, size_t pos);  // pos < text.size()
CodePoint decode_last(std::string_view text);         // of a text that is not empty
void append_utf8(std::string* out, char32_t cp);
size_t count_code_points(std::string_view text);
// Byte offset of the code point `index`, or text.size() past the end.
size_t byte_offset(std::string_view text, size_t index);
std::vector<std::string_view> letters(
    std::string_view text);  // one piece for each code point: 16 bytes each, which the caller charges

bool is_space(char32_t cp);  // str.isspace(), and \s of re
bool is_printable(char32_t cp);

// Byte range of text without white space at its ends.
std::string_view strip_space(std::string_view text, bool left = true, bool right = true);

enum class Case { upper, lower, title, capitalize };  // title: every word, as str.title() finds words
std::string change_case(std::string_view text, Case how);

}  // namespace fovea::jinja
