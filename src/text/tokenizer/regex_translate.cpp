#include "text/tokenizer/regex_translate.h"

#include <algorithm>
#include <optional>

#include "text/tokenizer/regex_property.h"
#include "text/tokenizer/regex_reader.h"
#include "text/tokenizer/utf8.h"

namespace fovea {
namespace {

constexpr int kDepthMax = 100;               // groups and classes inside each other
constexpr size_t kOutputBytesMax = 1 << 20;  // sets are spelled out: a small pattern can grow large
constexpr size_t kRepeatMax = 65535;         // PCRE2's own

struct Options {
  bool caseless = false;
  bool extended = false;  // (?x): blanks and comments between atoms mean nothing
};

class Translator : PatternReader {
 public:
  explicit Translator(std::string_view pattern) : PatternReader(utf8::decode(pattern)) {}

  Result<std::string> run() {
    FOVEA_TRY(alternation(Options{}));
    if (at_ < in_.size()) return fail("unmatched )");
    return std::move(out_);
  }

 private:
  // Up to ')' or the end, which it leaves.
  Status alternation(Options options) {
    if (++depth_ > kDepthMax) return refuse("nesting deeper than " + std::to_string(kDepthMax));
    while (at_ < in_.size() && peek() != ')') {
      if (out_.size() > kOutputBytesMax) return refuse("a pattern this long");
      if (take('|')) {
        out_ += '|';
        continue;
      }
      if (options.extended && skip_blank()) continue;
      const size_t atom_at = out_.size();
      bool is_atom = true;
      FOVEA_TRY(atom(options, is_atom));
      if (is_atom) FOVEA_TRY(quantifiers(atom_at, options));
    }
    --depth_;
    return {};
  }

  bool skip_blank() {
    if (take('#')) {
      while (at_ < in_.size() && !take('\n')) ++at_;
      return true;
    }
    return take(' ') || take('\t') || take('\n') || take('\r') || take('\f') || take('\v');
  }

  Status atom(Options options, bool& is_atom) {
    const char32_t c = peek();
    switch (c) {
      case '(':
        return group(options, is_atom);
      case '[': {
        ++at_;
        std::string expression;
        FOVEA_TRY(char_class(options, expression));
        out_ += expression;
        return {};
      }
      case '\\':
        ++at_;
        return escape(options);
      case '.':
      case '^':
      case '$':
        ++at_;
        out_ += static_cast<char>(c);
        return {};
      case '*':
      case '+':
      case '?':
        return fail("nothing to repeat");
      default:
        ++at_;
        out_ += literal_char(c);
        return {};
    }
  }

  Status group(Options options, bool& is_atom) {
    ++at_;
    if (peek() == '*') return refuse("the callout (*");
    if (!take('?')) return close_group("(", options);
    if (take('#')) {
      is_atom = false;
      while (at_ < in_.size() && peek() != ')') ++at_;
      return take(')') ? Status() : fail("end of pattern in a comment");
    }
    for (const char* kind : {":", "=", "!", ">", "<=", "<!"}) {
      const std::string_view text(kind);
      if (take(std::u32string(text.begin(), text.end()))) return close_group("(?" + std::string(text), options);
    }
    if (peek() == '<' || peek() == '\'') {
      std::string name;
      FOVEA_TRY(group_name(name));
      return close_group("(?<" + name + ">", options);
    }
    return option_group(options, is_atom);
  }

  Status close_group(const std::string& open, Options options) {
    out_ += open;
    if (open == "(" || open.starts_with("(?<")) groups_ += open != "(?<=" && open != "(?<!";
    FOVEA_TRY(alternation(options));
    if (!take(')')) return fail("a group is not closed");
    out_ += ')';
    return {};
  }

  // <name> or 'name', of ASCII word characters.
  Status group_name(std::string& name) {
    const char32_t close = peek() == '<' ? U'>' : U'\'';
    ++at_;
    while (at_ < in_.size() && peek() != close) {
      const char32_t c = in_[at_++];
      const bool word = is_digit(c) || c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
      if (!word || name.size() > 31) return refuse("this group name");
      name += static_cast<char>(c);
    }
    if (!take(close) || name.empty() || is_digit(static_cast<uint8_t>(name[0]))) return refuse("this group name");
    return {};
  }

  // (?imx-imx) and (?imx-imx:...). m lets '.' match a newline, which PCRE2 calls s.
  Status option_group(Options options, bool& is_atom) {
    std::string on, off;
    bool negated = false;
    for (;; ++at_) {
      const char32_t c = peek();
      if (c == '-') {
        negated = true;
      } else if (c == 'i') {
        options.caseless = !negated;
        (negated ? off : on) += 'i';
      } else if (c == 'm') {
        (negated ? off : on) += 's';
      } else if (c == 'x') {
        options.extended = !negated;
      } else {
        break;
      }
    }
    const std::string open = "(?" + on + (off.empty() ? "" : "-" + off) + ":";
    if (take(':')) return close_group(open, options);
    if (!take(')')) return refuse("this kind of group");
    is_atom = false;  // holds up to the end of the enclosing group, alternatives included
    out_ += open;
    FOVEA_TRY(alternation(options));
    out_ += ')';
    return {};
  }

  // What repeats the atom written since atom_at. Each further quantifier repeats the whole before it.
  Status quantifiers(size_t atom_at, Options options) {
    for (bool first = true;; first = false) {
      if (options.extended) {
        while (skip_blank()) {
        }
      }
      std::string text;
      bool wrap_exact = false;
      const char32_t c = peek();
      if (c == '*' || c == '+' || c == '?') {
        ++at_;
        text = std::string(1, static_cast<char>(c));
        if (peek() == '?' || peek() == '+') text += static_cast<char>(in_[at_++]);
      } else if (c == '{') {
        FOVEA_TRY(interval(text, wrap_exact));
      }
      if (text.empty()) return {};
      if (!first) wrap(atom_at);
      out_ += text;
      if (wrap_exact) {
        wrap(atom_at);
        out_ += '?';
      }
    }
  }

  void wrap(size_t from) {
    out_.insert(from, "(?:");
    out_ += ')';
  }

  // {n} {n,} {n,m} {,m}, perhaps lazy by '?'; text stays empty if '{' is just a character.
  Status interval(std::string& text, bool& wrap_exact) {
    const size_t start = at_++;
    const auto number = [&]() -> std::optional<size_t> {
      if (!is_digit(peek())) return std::nullopt;
      size_t n = 0;
      while (is_digit(peek())) n = std::min<size_t>(n * 10 + (in_[at_++] - '0'), kRepeatMax + 1);
      return n;
    };
    const std::optional<size_t> low = number();
    const bool comma = take(',');
    const std::optional<size_t> high = comma ? number() : low;
    if (!take('}') || (!low && !high)) {
      at_ = start;
      return {};
    }
    if (std::max(low.value_or(0), high.value_or(0)) > kRepeatMax) return fail("too big a repeat count");
    if (low && high && *low > *high) return fail("a repeat count out of order");
    text = '{';
    text += std::to_string(low.value_or(0));
    if (comma) text += "," + (high ? std::to_string(*high) : std::string());
    text += '}';
    if (take('?')) {
      wrap_exact = !comma;  // {n}? is an optional {n}, not a lazy one
      if (comma) text += '?';
    }
    return {};
  }

  // After '\', outside of a class.
  Status escape(Options options) {
    const char32_t c = peek();
    if (c == kEnd) return fail("end of pattern after a backslash");
    const char32_t next = peek(1);
    const bool is_property = (c == 'p' || c == 'P') && next == '{';
    if (is_property || is_set_escape(c)) {
      std::string expression;
      FOVEA_TRY(set_escape(options, true, nullptr, &expression));
      out_ += expression;
      return {};
    }
    if (std::u32string_view(U"AZzGKRX").find(c) != std::u32string_view::npos) {  // as PCRE2 writes them
      ++at_;
      out_ += '\\';
      out_ += static_cast<char>(c);
      return {};
    }
    switch (c) {
      case 'N':
        ++at_;
        out_ += "[^\\n]";
        return {};
      case 'O':
        ++at_;
        out_ += "(?s:.)";
        return {};
      case 'b':
      case 'B':
        ++at_;
        word_boundary(c == 'B');
        return {};
      case 'y':
      case 'Y':
      case 'g':
        return refuse(std::string("the escape \\") + static_cast<char>(c));
      case 'k': {
        ++at_;
        if (peek() != '<' && peek() != '\'') return refuse("this back reference");
        std::string name;
        FOVEA_TRY(group_name(name));
        out_ += "\\k<" + name + ">";
        return {};
      }
      default:
        break;
    }
    if (c >= '1' && c <= '9') {
      size_t digits = 0, n = 0;
      while (is_digit(peek(digits)) && n < 1000) n = n * 10 + (peek(digits++) - '0');
      if (n <= 9 || n <= groups_) {
        at_ += digits;
        out_ += "\\g{" + std::to_string(n) + "}";
        return {};
      }
    }
    char32_t value = 0;
    FOVEA_TRY(char_escape(value));
    out_ += literal_char(value);
    return {};
  }

  static bool is_set_escape(char32_t c) {
    return c == 's' || c == 'S' || c == 'd' || c == 'D' || c == 'w' || c == 'W' || c == 'h' || c == 'H';
  }

  void word_boundary(bool negated) {
    const CharSet word = escape_set('w', true);
    const std::string in = word.expression(false);
    if (negated) {
      out_ += "(?:(?<=" + in + ")(?=" + in + ")|(?<!" + in + ")(?!" + in + "))";
    } else {
      out_ += "(?:(?<=" + in + ")(?!" + in + ")|(?<!" + in + ")(?=" + in + "))";
    }
  }

  // \s \S ... \p{..} \P{..}, after the backslash: added to `set`, or alone as `expression`.
  Status set_escape(Options options, bool bare, CharSet* set, std::string* expression) {
    const char32_t c = in_[at_++];
    bool negated = c < 'a';
    CharSet found;
    if (c == 'p' || c == 'P') {
      ++at_;  // {
      if (take('^')) negated = !negated;
      std::string name;
      while (at_ < in_.size() && peek() != '}') name += peek() < 0x80 ? static_cast<char>(in_[at_++]) : (++at_, '?');
      if (!take('}')) return fail("a property name is not closed");
      std::optional<CharSet> property = property_set(name, options.caseless && set != nullptr);
      if (!property) return fail("unknown property \\p{" + name + "}");
      found = *std::move(property);
    } else {
      found = escape_set(static_cast<char>(c | 0x20), bare);
    }
    if (set == nullptr) {
      *expression = found.expression(negated);
    } else if (negated) {
      set->add_other(found.expression(true));
    } else {
      set->add(found);
    }
    return {};
  }

  // After '\': an escape that stands for one character.
  Status char_escape(char32_t& value) {
    constexpr std::u32string_view kLetters = U"tnrfvae", kControls = U"\t\n\r\f\v\a\x1b";
    const char32_t c = in_[at_++];
    if (const size_t i = kLetters.find(c); i != kLetters.npos) {
      value = kControls[i];
      return {};
    }
    switch (c) {
      case 'x':
        return hex_escape(value);
      case 'u':
        return hex_digits(4, 4, value);
      case 'c':
      case 'C':
      case 'M':
        return refuse("a control or meta escape");
      default:
        break;
    }
    if (c >= '0' && c <= '7') {
      value = c - '0';
      for (int i = 0; i < 2 && peek() >= '0' && peek() <= '7'; ++i) value = value * 8 + (in_[at_++] - '0');
      return value < 0x80 ? Status() : refuse("a byte above \\x7f");
    }
    value = c;
    return {};
  }

  // After '[': to the matching ']', as one expression for one character.
  Status char_class(Options options, std::string& expression) {
    if (++depth_ > kDepthMax) return refuse("nesting deeper than " + std::to_string(kDepthMax));
    const bool negated = take('^');
    CharSet set;
    std::string left;  // the sets before the last &&, each as a lookahead
    if (peek() == ']' && in_.find(U']', at_ + 1) != std::u32string::npos) {
      ++at_;
      FOVEA_TRY(range_or_char(']', set));
    }
    for (;;) {
      if (at_ >= in_.size()) return fail("a class is not closed");
      if (out_.size() + set.items.size() + set.others.size() + left.size() > kOutputBytesMax) {
        return refuse("a class this long");
      }
      if (take(']')) break;
      if (take(U"&&")) {
        if (set.empty()) return refuse("an empty operand of &&");
        left += "(?=" + set.expression(false) + ")";
        set = {};
        continue;
      }
      FOVEA_TRY(class_item(options, set));
    }
    if (set.empty()) return fail("empty class");
    --depth_;
    if (!left.empty()) {
      const std::string both = left + set.expression(false);
      set = {};
      set.add_other(both);
    }
    expression = set.expression(negated);
    return {};
  }

  Status class_item(Options options, CharSet& set) {
    if (take(U"[:")) {
      bool found = false;
      FOVEA_TRY(posix_bracket(set, found));
      if (found) return {};
      at_ -= 2;
    }
    if (take('[')) {
      std::string nested;
      FOVEA_TRY(char_class(options, nested));
      set.add_other(nested);
      return {};
    }
    const bool is_property = (peek(1) == 'p' || peek(1) == 'P') && peek(2) == '{';
    if (peek() == '\\' && (is_property || is_set_escape(peek(1)))) {
      ++at_;
      return set_escape(options, false, &set, nullptr);
    }
    char32_t first = 0;
    FOVEA_TRY(class_char(first));
    return range_or_char(first, set);
  }

  Status class_char(char32_t& value) {
    if (at_ >= in_.size()) return fail("a class is not closed");
    if (!take('\\')) {
      value = in_[at_++];
      return {};
    }
    if (at_ >= in_.size()) return fail("end of pattern after a backslash");
    if (take('b')) {
      value = '\b';
      return {};
    }
    if (peek() == 'R' || peek() == 'X') return refuse("this escape in a class");
    return char_escape(value);
  }

  // `first` was read; "-x" may follow and make a range of it.
  Status range_or_char(char32_t first, CharSet& set) {
    const bool range = peek() == '-' && peek(1) != ']' && peek(1) != kEnd && !(peek(1) == '&' && peek(2) == '&');
    set.items += literal_char(first);
    if (!range) return {};
    ++at_;
    if (peek() == '[') return refuse("a class at the end of a range");
    if (peek() == '\\' && (is_set_escape(peek(1)) || peek(1) == 'p')) return fail("a set at the end of a range");
    char32_t last = 0;
    FOVEA_TRY(class_char(last));
    if (last < first) return fail("a range out of order");
    set.items += '-';
    set.items += literal_char(last);
    return {};
  }

  // After "[:".
  Status posix_bracket(CharSet& set, bool& found) {
    const size_t close = in_.find(U":]", at_);
    if (close == std::u32string::npos || close - at_ > 20) return {};
    const bool negated = peek() == '^';
    std::string name;
    for (size_t i = at_ + negated; i < close; ++i) {
      if (in_[i] < 'a' || in_[i] > 'z') return {};
      name += static_cast<char>(in_[i]);
    }
    const std::optional<CharSet> posix = posix_set(name);
    if (!posix) return fail("unknown class [:" + name + ":]");
    at_ = close + 2;
    found = true;
    if (negated) {
      set.add_other(posix->expression(true));
    } else {
      set.add(*posix);
    }
    return {};
  }

  std::string out_;
  int depth_ = 0;
  size_t groups_ = 0;
};

}  // namespace

Result<std::string> translate_regex(std::string_view pattern) { return Translator(pattern).run(); }

}  // namespace fovea
