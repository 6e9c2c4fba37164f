// The characters of a pattern, one after the other, and what is wrong with them by place.
#pragma once

#include <fovea/status.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace fovea {

inline constexpr char32_t kEnd = 0xFFFFFFFF;

inline bool is_digit(char32_t c) { return c >= '0' && c <= '9'; }

inline int hex_value(char32_t c) {
  if (is_digit(c)) return static_cast<int>(c - '0');
  if (c >= 'a' && c <= 'f') return static_cast<int>(c - 'a' + 10);
  if (c >= 'A' && c <= 'F') return static_cast<int>(c - 'A' + 10);
  return -1;
}

// What a message quotes of a pattern may hold line breaks: it is one line all the same.
inline std::string on_one_line(const std::string& text) {
  std::string line;
  for (const char c : text) {
    constexpr const char* kHex = "0123456789abcdef";
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20)
      line += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    else
      line += c;
  }
  return line;
}

class PatternReader {
 protected:
  explicit PatternReader(std::u32string pattern) : in_(std::move(pattern)) {}

  char32_t peek(size_t ahead = 0) const { return at_ + ahead < in_.size() ? in_[at_ + ahead] : kEnd; }
  bool take(char32_t c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  bool take(std::u32string_view s) {
    if (std::u32string_view(in_).substr(at_, s.size()) != s) return false;
    at_ += s.size();
    return true;
  }
  Status fail(const std::string& what) const {
    return Status::invalid_argument(on_one_line(what) + " at character " + std::to_string(at_));
  }
  Status refuse(const std::string& what) const {
    return Status::unsupported(on_one_line(what) + " at character " + std::to_string(at_) + " is not supported");
  }

  // Behind \x.
  Status hex_escape(char32_t& value) {
    if (take('{')) {
      FOVEA_TRY(hex_digits(1, 8, value));
      return take('}') ? Status() : refuse("more than one code point in \\x{...}");
    }
    FOVEA_TRY(hex_digits(0, 2, value));
    return value < 0x80 ? Status() : refuse("a byte above \\x7f");
  }

  Status hex_digits(int least, int most, char32_t& value) {
    value = 0;
    int n = 0;
    for (; n < most && hex_value(peek()) >= 0; ++n) value = value * 16 + static_cast<char32_t>(hex_value(in_[at_++]));
    if (n < least) return fail("too few hexadecimal digits");
    if (value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) return fail("no such code point");
    return {};
  }

  std::u32string in_;
  size_t at_ = 0;
};

}  // namespace fovea
