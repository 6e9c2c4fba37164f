#include "text/jinja/unicode.h"

#include <utf8proc.h>

#include <algorithm>

#include "text/jinja/case_table.h"

namespace fovea::jinja {

namespace {

utf8proc_category_t category(char32_t cp) { return utf8proc_category(static_cast<utf8proc_int32_t>(cp)); }

bool continuation(std::string_view text, size_t pos) {
  return pos < text.size() && (static_cast<unsigned char>(text[pos]) & 0xC0) == 0x80;
}

struct Range {
  char32_t first, last;
};

template <size_t n>
bool in_ranges(const Range (&ranges)[n], char32_t cp) {
  for (const Range& range : ranges) {
    if (cp >= range.first && cp <= range.last) return true;
  }
  return false;
}

// Numeric_Type=Digit outside category Nd.
constexpr Range kOtherDigits[] = {
    {0xB2, 0xB3},     {0xB9, 0xB9},       {0x1369, 0x1371},   {0x19DA, 0x19DA},   {0x2070, 0x2070},
    {0x2074, 0x2079}, {0x2080, 0x2089},   {0x2460, 0x2468},   {0x2474, 0x247C},   {0x2488, 0x2490},
    {0x24EA, 0x24EA}, {0x24F5, 0x24FD},   {0x24FF, 0x24FF},   {0x2776, 0x277E},   {0x2780, 0x2788},
    {0x278A, 0x2792}, {0x10A40, 0x10A43}, {0x10E60, 0x10E68}, {0x11052, 0x1105A}, {0x1F100, 0x1F10A}};

// Ideographs with a numeric value that are in everyday use (category Lo).
constexpr char32_t kIdeographNumbers[] = {0x3007, 0x4E00, 0x4E03, 0x4E07, 0x4E09, 0x4E24, 0x4E5D,
                                          0x4E8C, 0x4E94, 0x4EBF, 0x5104, 0x5146, 0x516B, 0x516D,
                                          0x5341, 0x5343, 0x56DB, 0x767E, 0x842C, 0x96F6};

enum class Kind { upper, lower, title };

const SpecialCase* find_special(Kind kind, char32_t cp) {
  const SpecialCase* begin = kSpecialUpper;
  const SpecialCase* end = begin + std::size(kSpecialUpper);
  if (kind == Kind::title) begin = kSpecialTitle, end = begin + std::size(kSpecialTitle);
  if (kind == Kind::lower) begin = kSpecialLower, end = begin + std::size(kSpecialLower);
  const SpecialCase* found =
      std::lower_bound(begin, end, cp, [](const SpecialCase& row, char32_t key) { return row.from < key; });
  return found != end && found->from == cp ? found : nullptr;
}

void append_mapped(std::string* out, Kind kind, char32_t cp) {
  if (cp < 0x80) {
    const bool lower = cp >= 'a' && cp <= 'z', upper = cp >= 'A' && cp <= 'Z';
    if (kind == Kind::lower) cp += upper ? 32 : 0;
    if (kind != Kind::lower) cp -= lower ? 32 : 0;
    out->push_back(static_cast<char>(cp));
    return;
  }
  if (const SpecialCase* row = find_special(kind, cp)) {
    for (char32_t to : row->to) {
      if (to != 0) append_utf8(out, to);
    }
    return;
  }
  const auto code = static_cast<utf8proc_int32_t>(cp);
  if (cp >= 0xD800 && cp < 0xE000) {
    append_utf8(out, cp);
  } else if (kind == Kind::upper) {
    append_utf8(out, static_cast<char32_t>(utf8proc_toupper(code)));
  } else if (kind == Kind::lower) {
    append_utf8(out, static_cast<char32_t>(utf8proc_tolower(code)));
  } else {
    append_utf8(out, static_cast<char32_t>(utf8proc_totitle(code)));
  }
}

bool is_cased(char32_t cp) { return is_lower(cp) || is_upper(cp) || is_title(cp); }

bool is_case_ignorable(char32_t cp) {
  switch (category(cp)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
      return true;
    default:
      return cp == '\'' || cp == '.' || cp == ':' || cp == 0xB7 || cp == 0x2018 || cp == 0x2019 ||
             cp == 0x2024 || cp == 0x2027;
  }
}

// A capital sigma that ends a word becomes a final sigma (Unicode, Final_Sigma).
bool is_final_sigma(const std::vector<char32_t>& text, size_t at) {
  size_t before = at;
  while (before > 0 && is_case_ignorable(text[before - 1])) --before;
  if (before == 0 || !is_cased(text[before - 1])) return false;
  size_t after = at + 1;
  while (after < text.size() && is_case_ignorable(text[after])) ++after;
  return after == text.size() || !is_cased(text[after]);
}

void append_lower(std::string* out, const std::vector<char32_t>& text, size_t at) {
  if (text[at] == 0x3A3) {
    append_utf8(out, is_final_sigma(text, at) ? 0x3C2 : 0x3C3);
  } else {
    append_mapped(out, Kind::lower, text[at]);
  }
}

void append_folded(std::string* out, char32_t cp) {
  const SpecialCase* row = std::lower_bound(std::begin(kSpecialFold), std::end(kSpecialFold), cp,
                                            [](const SpecialCase& r, char32_t key) { return r.from < key; });
  if (row == std::end(kSpecialFold) || row->from != cp) return append_mapped(out, Kind::lower, cp);
  for (char32_t to : row->to) {
    if (to != 0) append_utf8(out, to);
  }
}

}  // namespace

CodePoint decode(std::string_view text, size_t pos) {
  const auto lead = static_cast<unsigned char>(text[pos]);
  if (lead < 0x80) return {lead, 1};
  const auto low = [&](size_t i) {
    return static_cast<char32_t>(static_cast<unsigned char>(text[pos + i]) & 0x3F);
  };
  if (lead >= 0xC2 && lead < 0xE0 && continuation(text, pos + 1)) {
    return {(static_cast<char32_t>(lead & 0x1F) << 6) | low(1), 2};
  }
  if (lead >= 0xE0 && lead < 0xF0 && continuation(text, pos + 1) && continuation(text, pos + 2)) {
    const char32_t cp = (static_cast<char32_t>(lead & 0x0F) << 12) | (low(1) << 6) | low(2);
    if (cp >= 0x800) return {cp, 3};
  }
  if (lead >= 0xF0 && lead < 0xF5 && continuation(text, pos + 1) && continuation(text, pos + 2) &&
      continuation(text, pos + 3)) {
    const char32_t cp = (static_cast<char32_t>(lead & 0x07) << 18) | (low(1) << 12) | (low(2) << 6) | low(3);
    if (cp >= 0x10000 && cp <= 0x10FFFF) return {cp, 4};
  }
  return {static_cast<char32_t>(0xDC00 + lead), 1};
}

void append_utf8(std::string* out, char32_t cp) {
  if (cp < 0x80) {
    out->push_back(static_cast<char>(cp));
  } else if (cp < 0x800) {
    out->push_back(static_cast<char>(0xC0 | (cp >> 6)));
    out->push_back(static_cast<char>(0x80 | (cp & 0x3F)));
  } else if (cp < 0x10000) {
    out->push_back(static_cast<char>(0xE0 | (cp >> 12)));
    out->push_back(static_cast<char>(0x80 | ((cp >> 6) & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (cp & 0x3F)));
  } else {
    out->push_back(static_cast<char>(0xF0 | (cp >> 18)));
    out->push_back(static_cast<char>(0x80 | ((cp >> 12) & 0x3F)));
    out->push_back(static_cast<char>(0x80 | ((cp >> 6) & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (cp & 0x3F)));
  }
}

bool is_ascii(std::string_view text) {
  unsigned char all = 0;  // in parts, so that the compiler can take many bytes at a time
  for (size_t begin = 0; begin < text.size() && all < 0x80; begin += 256) {
    for (char c : text.substr(begin, 256)) all |= static_cast<unsigned char>(c);
  }
  return all < 0x80;
}

size_t count_code_points(std::string_view text) {
  size_t count = 0;
  if (is_ascii(text)) return text.size();
  for (size_t pos = 0; pos < text.size(); pos += decode(text, pos).bytes) ++count;
  return count;
}

size_t byte_offset(std::string_view text, size_t index) {
  size_t pos = 0;
  for (; index > 0 && pos < text.size(); --index) pos += decode(text, pos).bytes;
  return pos;
}

std::vector<char32_t> code_points(std::string_view text) {
  std::vector<char32_t> all;
  all.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    const CodePoint cp = decode(text, pos);
    all.push_back(cp.value);
    pos += cp.bytes;
  }
  return all;
}

bool is_space(char32_t cp) {
  return (cp >= 0x09 && cp <= 0x0D) || (cp >= 0x1C && cp <= 0x20) || cp == 0x85 || cp == 0xA0 ||
         cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 || cp == 0x2029 || cp == 0x202F ||
         cp == 0x205F || cp == 0x3000;
}

bool is_line_break(char32_t cp) {
  return (cp >= 0x0A && cp <= 0x0D) || (cp >= 0x1C && cp <= 0x1E) || cp == 0x85 || cp == 0x2028 ||
         cp == 0x2029;
}

bool is_alpha(char32_t cp) {
  if (cp < 0x80) return (cp | 32) >= 'a' && (cp | 32) <= 'z';
  const utf8proc_category_t c = category(cp);
  return c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
}

bool is_decimal(char32_t cp) { return category(cp) == UTF8PROC_CATEGORY_ND; }
bool is_digit(char32_t cp) { return is_decimal(cp) || in_ranges(kOtherDigits, cp); }

bool is_numeric(char32_t cp) {
  const utf8proc_category_t c = category(cp);
  return c == UTF8PROC_CATEGORY_ND || c == UTF8PROC_CATEGORY_NL || c == UTF8PROC_CATEGORY_NO ||
         std::binary_search(std::begin(kIdeographNumbers), std::end(kIdeographNumbers), cp);
}

bool is_word(char32_t cp) { return cp == '_' || is_alpha(cp) || is_numeric(cp); }

bool is_lower(char32_t cp) {
  if (cp < 0x80) return cp >= 'a' && cp <= 'z';
  // Other_Lowercase: modifier letters, small roman numerals, circled small letters.
  constexpr Range kOther[] = {{0xAA, 0xAA},     {0xBA, 0xBA},     {0x2B0, 0x2B8},   {0x2C0, 0x2C1},
                              {0x2E0, 0x2E4},   {0x345, 0x345},   {0x37A, 0x37A},   {0x1D2C, 0x1D6A},
                              {0x1D78, 0x1D78}, {0x1D9B, 0x1DBF}, {0x2071, 0x2071}, {0x207F, 0x207F},
                              {0x2090, 0x209C}, {0x2170, 0x217F}, {0x24D0, 0x24E9}, {0x2C7C, 0x2C7D},
                              {0xA69C, 0xA69D}, {0xA770, 0xA770}, {0xA7F8, 0xA7F9}, {0xAB5C, 0xAB5F}};
  return category(cp) == UTF8PROC_CATEGORY_LL || in_ranges(kOther, cp);
}

bool is_upper(char32_t cp) {
  if (cp < 0x80) return cp >= 'A' && cp <= 'Z';
  constexpr Range kOther[] = {
      {0x2160, 0x216F}, {0x24B6, 0x24CF}, {0x1F130, 0x1F149}, {0x1F150, 0x1F169}, {0x1F170, 0x1F189}};
  return category(cp) == UTF8PROC_CATEGORY_LU || in_ranges(kOther, cp);
}

bool is_title(char32_t cp) { return category(cp) == UTF8PROC_CATEGORY_LT; }

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
  size_t begin = 0;
  while (left && begin < text.size()) {
    const CodePoint cp = decode(text, begin);
    if (!is_space(cp.value)) break;
    begin += cp.bytes;
  }
  size_t end = text.size();
  while (right && end > begin) {
    size_t start = end - 1;
    while (start > begin && (static_cast<unsigned char>(text[start]) & 0xC0) == 0x80) --start;
    const CodePoint cp = decode(text, start);
    if (start + cp.bytes != end || !is_space(cp.value)) break;
    end = start;
  }
  return text.substr(begin, end - begin);
}

std::string change_case(std::string_view text, Case how) {
  std::string out;
  out.reserve(text.size());
  const std::vector<char32_t> cps = code_points(text);
  bool in_word = false;
  for (size_t i = 0; i < cps.size(); ++i) {
    const char32_t cp = cps[i];
    if (how == Case::upper || (how == Case::swap && is_lower(cp))) {
      append_mapped(&out, Kind::upper, cp);
    } else if (how == Case::lower || (how == Case::swap && is_upper(cp))) {
      append_lower(&out, cps, i);
    } else if (how == Case::fold) {
      append_folded(&out, cp);
    } else if (how == Case::swap) {
      append_utf8(&out, cp);
    } else if (how == Case::capitalize ? i == 0 : !in_word) {
      append_mapped(&out, Kind::title, cp);
    } else {
      append_lower(&out, cps, i);
    }
    in_word = is_cased(cp);
  }
  return out;
}

}  // namespace fovea::jinja
