#include "text/jinja/unicode.h"

#include <utf8proc.h>

namespace fovea::jinja {

namespace {

bool continuation(std::string_view text, size_t pos) {
  return pos < text.size() && (static_cast<unsigned char>(text[pos]) & 0xC0) == 0x80;
}

utf8proc_category_t category(char32_t cp) { return utf8proc_category(static_cast<utf8proc_int32_t>(cp)); }

bool is_cased(char32_t cp) {
  const utf8proc_category_t c = category(cp);
  return c == UTF8PROC_CATEGORY_LU || c == UTF8PROC_CATEGORY_LL || c == UTF8PROC_CATEGORY_LT;
}

bool is_ascii(std::string_view text) {
  unsigned char all = 0;  // in parts, so that the compiler can take many bytes at a time
  for (size_t begin = 0; begin < text.size() && all < 0x80; begin += 256) {
    for (char c : text.substr(begin, 256)) all |= static_cast<unsigned char>(c);
  }
  return all < 0x80;
}

}  // namespace

CodePoint decode(std::string_view text, size_t pos) {
  const auto lead = static_cast<unsigned char>(text[pos]);
  if (lead < 0x80) return {lead, 1};
  const auto low = [&](size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(text[pos + i]) & 0x3F); };
  if (lead >= 0xC2 && lead < 0xE0 && continuation(text, pos + 1)) {
    return {(static_cast<char32_t>(lead & 0x1F) << 6) | low(1), 2};
  }
  if (lead >= 0xE0 && lead < 0xF0 && continuation(text, pos + 1) && continuation(text, pos + 2)) {
    const char32_t cp = (static_cast<char32_t>(lead & 0x0F) << 12) | (low(1) << 6) | low(2);
    if (cp >= 0x800) return {cp, 3};
  }
  if (lead >= 0xF0 && lead < 0xF5 && continuation(text, pos + 1) && continuation(text, pos + 2) && continuation(text, pos + 3)) {
    const char32_t cp = (static_cast<char32_t>(lead & 0x07) << 18) | (low(1) << 12) | (low(2) << 6) | low(3);
    if (cp >= 0x10000 && cp <= 0x10FFFF) return {cp, 4};
  }
  return {static_cast<char32_t>(0xDC00 + lead), 1};
}

CodePoint decode_last(std::string_view text) {
  for (size_t bytes = 4; bytes > 1; --bytes) {
    if (bytes > text.size()) continue;
    const CodePoint cp = decode(text, text.size() - bytes);
    if (cp.bytes == bytes) return cp;
  }
  return decode(text, text.size() - 1);
}

void append_utf8(std::string* out, char32_t cp) {
  if (cp < 0x80) {
    out->push_back(static_cast<char>(cp));
    return;
  }
  if (cp < 0x800) {
    out->push_back(static_cast<char>(0xC0 | (cp >> 6)));
  } else if (cp < 0x10000) {
    out->push_back(static_cast<char>(0xE0 | (cp >> 12)));
    out->push_back(static_cast<char>(0x80 | ((cp >> 6) & 0x3F)));
  } else {
    out->push_back(static_cast<char>(0xF0 | (cp >> 18)));
    out->push_back(static_cast<char>(0x80 | ((cp >> 12) & 0x3F)));
    out->push_back(static_cast<char>(0x80 | ((cp >> 6) & 0x3F)));
  }
  out->push_back(static_cast<char>(0x80 | (cp & 0x3F)));
}

size_t count_code_points(std::string_view text) {
  if (is_ascii(text)) return text.size();
  size_t count = 0;
  for (size_t pos = 0; pos < text.size(); pos += decode(text, pos).bytes) ++count;
  return count;
}

size_t byte_offset(std::string_view text, size_t index) {
  size_t pos = 0;
  for (; index > 0 && pos < text.size(); --index) pos += decode(text, pos).bytes;
  return pos;
}

std::vector<std::string_view> letters(std::string_view text) {
  std::vector<std::string_view> all;
  for (size_t pos = 0; pos < text.size(); pos += all.back().size()) all.push_back(text.substr(pos, decode(text, pos).bytes));
  return all;
}

bool is_space(char32_t cp) {
  return (cp >= 0x09 && cp <= 0x0D) || (cp >= 0x1C && cp <= 0x20) || cp == 0x85 || cp == 0xA0 || cp == 0x1680 ||
         (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 || cp == 0x2029 || cp == 0x202F || cp == 0x205F || cp == 0x3000;
}

bool is_printable(char32_t cp) {
  if (cp < 0x7F) return cp >= 0x20;
  switch (category(cp)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

std::string_view strip_space(std::string_view text, bool left, bool right) {
  while (left && !text.empty()) {
    const CodePoint cp = decode(text, 0);
    if (!is_space(cp.value)) break;
    text.remove_prefix(cp.bytes);
  }
  while (right && !text.empty()) {
    const CodePoint cp = decode_last(text);
    if (!is_space(cp.value)) break;
    text.remove_suffix(cp.bytes);
  }
  return text;
}

std::string change_case(std::string_view text, Case how) {
  std::string out;
  out.reserve(text.size());
  bool in_word = false;
  for (size_t pos = 0; pos < text.size();) {
    const CodePoint cp = decode(text, pos);
    const auto code = static_cast<utf8proc_int32_t>(cp.value);
    if (cp.value >= 0xD800 && cp.value < 0xE000) {  // no character: stays as it is
      out += text.substr(pos, cp.bytes);
    } else if (how == Case::upper) {
      append_utf8(&out, static_cast<char32_t>(utf8proc_toupper(code)));
    } else if (how == Case::capitalize ? pos == 0 : how == Case::title && !in_word) {
      append_utf8(&out, static_cast<char32_t>(utf8proc_totitle(code)));
    } else {
      append_utf8(&out, static_cast<char32_t>(utf8proc_tolower(code)));
    }
    in_word = is_cased(cp.value);
    pos += cp.bytes;
  }
  return out;
}

}  // namespace fovea::jinja
