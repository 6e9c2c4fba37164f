#include "text/tokenizer/regex_property.h"

#include <cstdio>

#include "text/tokenizer/unicode_data.h"

namespace fovea {
namespace {

constexpr char kSpaceItems[] =
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{"
    "3000}";
constexpr char kHexItems[] = "0-9A-Fa-f";
// Oniguruma's \w, but not its [\w], asks the Latin-1 table first, which counts these as word characters.
constexpr char kLatin1WordItems[] = "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}";

struct CategoryName {
  std::string_view name;  // folded; the category's own, folded, is a name too
  std::string_view category;
};

constexpr CategoryName kCategoryNames[] = {
    {"other", "C"},
    {"control", "Cc"},
    {"cntrl", "Cc"},
    {"format", "Cf"},
    {"unassigned", "Cn"},
    {"privateuse", "Co"},
    {"surrogate", "Cs"},
    {"letter", "L"},
    {"lowercaseletter", "Ll"},
    {"modifierletter", "Lm"},
    {"otherletter", "Lo"},
    {"titlecaseletter", "Lt"},
    {"uppercaseletter", "Lu"},
    {"casedletter", "LC"},
    {"mark", "M"},
    {"combiningmark", "M"},
    {"spacingmark", "Mc"},
    {"enclosingmark", "Me"},
    {"nonspacingmark", "Mn"},
    {"number", "N"},
    {"decimalnumber", "Nd"},
    {"digit", "Nd"},
    {"letternumber", "Nl"},
    {"othernumber", "No"},
    {"punctuation", "P"},
    {"punct", "P"},
    {"connectorpunctuation", "Pc"},
    {"closepunctuation", "Pe"},
    {"dashpunctuation", "Pd"},
    {"finalpunctuation", "Pf"},
    {"initialpunctuation", "Pi"},
    {"otherpunctuation", "Po"},
    {"openpunctuation", "Ps"},
    {"symbol", "S"},
    {"currencysymbol", "Sc"},
    {"modifiersymbol", "Sk"},
    {"mathsymbol", "Sm"},
    {"othersymbol", "So"},
    {"separator", "Z"},
    {"lineseparator", "Zl"},
    {"paragraphseparator", "Zp"},
    {"spaceseparator", "Zs"},
};

// clang-format off
constexpr std::string_view kBinaryProperties[] = {
    "whitespace", "emoji", "emojipresentation", "emojimodifier", "emojimodifierbase", "emojicomponent", "extendedpictographic",
    "idstart", "idcontinue", "xidstart", "xidcontinue", "math", "cased", "caseignorable", "dash", "diacritic", "extender",
    "hexdigit", "asciihexdigit", "ideographic", "unifiedideograph", "radical", "quotationmark", "sentenceterminal",
    "terminalpunctuation", "variationselector", "patternwhitespace", "patternsyntax", "defaultignorablecodepoint", "joincontrol",
    "noncharactercodepoint", "regionalindicator", "softdotted", "graphemebase", "graphemeextend", "deprecated"};
// clang-format on

void append_range(std::string& out, char32_t first, char32_t last) {
  out += literal_char(first);
  if (last == first) return;
  out += '-';
  out += literal_char(last);
}

bool in_category(std::string_view category, std::string_view set) {
  if (set == "LC") return category == "Lu" || category == "Ll" || category == "Lt";
  return category.substr(0, set.size()) == set;
}

CharSet category_set(std::string_view category) {
  std::string base = category == "LC" ? "\\p{L&}" : "\\p{" + std::string(category) + "}";
  CharSet set;
  std::string gone;  // what is no longer of the category
  for (const unicode::NewCategory& row : unicode::new_categories()) {
    const bool was = in_category(row.first == unicode::kRecategorized ? "Mn" : "Cn", category);
    const bool is = in_category(row.category, category);
    if (is && !was) append_range(set.items, row.first, row.last);
    if (was && !is) append_range(gone, row.first, row.last);
  }
  if (gone.empty()) {
    set.items = base + set.items;
  } else {
    set.add_other("(?![" + gone + "])" + base);
  }
  return set;
}

CharSet with_additions(std::string items, std::string_view name) {
  for (const unicode::Range& r : unicode::additions(name)) append_range(items, r.first, r.last);
  return {std::move(items), ""};
}

CharSet alphabetic_set() {
  CharSet set = with_additions("\\p{Alphabetic}", "alphabetic");
  set.add(category_set("L"));  // new letters are alphabetic
  return set;
}

CharSet cased_set(std::string_view property, std::string_view category) {
  CharSet set = with_additions("\\p{" + std::string(property) + "}", property);
  set.add(category_set(category));
  return set;
}

CharSet word_set() {
  CharSet set = alphabetic_set();
  for (const char* category : {"M", "Nd", "Pc"}) set.add(category_set(category));
  return set;
}

// Oniguruma compares names without spaces, hyphens, underscores and case.
std::string folded(std::string_view name) {
  std::string out;
  for (const char c : name) {
    if (c == ' ' || c == '-' || c == '_') continue;
    out += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return out;
}

}  // namespace

std::string literal_char(char32_t c) {
  const bool plain = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
  if (plain) return std::string(1, static_cast<char>(c));
  char text[16];
  std::snprintf(text, sizeof text, "\\x{%x}", static_cast<unsigned>(c));
  return text;
}

void CharSet::add(const CharSet& set) {
  items += set.items;
  if (!set.others.empty()) add_other(set.others);
}

void CharSet::add_other(const std::string& expression) {
  if (!others.empty()) others += '|';
  others += expression;
}

std::string CharSet::expression(bool negated) const {
  if (others.empty()) return (negated ? "[^" : "[") + items + "]";
  std::string any = "(?:" + others;
  if (!items.empty()) any += "|[" + items + "]";
  any += ")";
  return negated ? "(?:(?!" + any + ")(?s:.))" : any;
}

std::optional<CharSet> posix_set(std::string_view name) {
  if (name == "alpha") return alphabetic_set();
  if (name == "digit") return category_set("Nd");
  if (name == "upper" || name == "uppercase") return cased_set("uppercase", "Lu");
  if (name == "lower" || name == "lowercase") return cased_set("lowercase", "Ll");
  if (name == "space") return escape_set('s', false);
  if (name == "xdigit") return escape_set('h', false);
  if (name == "cntrl") return category_set("Cc");
  if (name == "word") return word_set();
  if (name == "ascii") return CharSet{"\\x{0}-\\x{7f}", ""};
  CharSet set;
  if (name == "alnum") {
    set = alphabetic_set();
    set.add(category_set("Nd"));
  } else if (name == "blank") {
    set = category_set("Zs");
    set.items += "\\x{9}";
  } else if (name == "punct") {
    set = category_set("P");
    set.add(category_set("S"));
  } else if (name == "graph" || name == "print") {
    for (const char* category : {"L", "M", "N", "P", "S", "Cf", "Co"}) set.add(category_set(category));
    if (name == "print") set.add(category_set("Zs"));
  } else {
    return std::nullopt;
  }
  return set;
}

std::optional<CharSet> property_set(std::string_view raw_name, bool caseless) {
  const std::string name = folded(raw_name);
  if (name.empty()) return std::nullopt;
  for (const char c : name) {
    if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'))) return std::nullopt;
  }
  for (const CategoryName& row : kCategoryNames) {
    if (row.name != name && folded(row.category) != name) continue;
    const bool cased = row.category == "Lu" || row.category == "Ll" || row.category == "Lt";
    return category_set(caseless && cased ? "LC" : row.category);
  }
  if (auto set = posix_set(name)) return set;
  if (name == "any") return CharSet{"\\x{0}-\\x{10ffff}", ""};
  if (name == "alphabetic") return alphabetic_set();
  if (name == "assigned") return CharSet{"", category_set("Cn").expression(true)};
  for (const std::string_view binary : kBinaryProperties) {
    if (binary == name) return with_additions("\\p{" + name + "}", name);
  }
  return with_additions("\\p{sc:" + name + "}", name);
}

CharSet escape_set(char kind, bool bare) {
  if (kind == 's') return {kSpaceItems, ""};
  if (kind == 'h') return {kHexItems, ""};
  if (kind == 'd') return category_set("Nd");
  CharSet set = word_set();
  if (bare) set.items += kLatin1WordItems;
  return set;
}

}  // namespace fovea
