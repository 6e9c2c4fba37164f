// Text as Python sees it: code points of UTF-8, str.isspace() and friends, full case mapping.
// A byte that is not part of valid UTF-8 counts as one code point (0xDC00 + byte), so every text has a
// length.
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
void append_utf8(std::string* out, char32_t cp);      // surrogates are written as three bytes
size_t count_code_points(std::string_view text);
bool is_ascii(std::string_view text);
// Byte offset of the code point `index`, or text.size() past the end.
size_t byte_offset(std::string_view text, size_t index);
std::vector<char32_t> code_points(std::string_view text);

bool is_space(char32_t cp);       // str.isspace(), and \s of re
bool is_line_break(char32_t cp);  // what str.splitlines() cuts at
bool is_word(char32_t cp);        // \w of re
bool is_alpha(char32_t cp);
bool is_decimal(char32_t cp);
bool is_digit(char32_t cp);
bool is_numeric(char32_t cp);
bool is_lower(char32_t cp);
bool is_upper(char32_t cp);
bool is_title(char32_t cp);
bool is_printable(char32_t cp);

// Byte range of text without white space at its ends.
std::string_view strip_space(std::string_view text, bool left = true, bool right = true);

enum class Case { upper, lower, title, capitalize, swap, fold };
std::string change_case(std::string_view text, Case how);

}  // namespace fovea::jinja
