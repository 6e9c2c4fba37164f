#include "text/jinja/lexer.h"

#include <algorithm>
#include <cctype>

#include "text/jinja/python.h"
#include "text/jinja/unicode.h"

namespace fovea::jinja {

namespace {

// All line ends become \n, and one at the very end of the template is dropped.
std::string normalize_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out += source[i];
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

bool is_digit_char(char c) { return c >= '0' && c <= '9'; }

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  std::vector<Token> run() {
    while (pos_ < source_.size()) root();
    add(Token::Type::end, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) {
    throw TemplateError(StatusCode::invalid_argument, what, line_at(pos_));
  }

  int line_at(size_t pos) {
    for (; counted_ < pos; ++counted_) line_ += source_[counted_] == '\n' ? 1 : 0;
    return line_;
  }

  Token& add(Token::Type type, std::string_view text) {
    Token& token = tokens_.emplace_back();
    token.type = type;
    token.line = line_at(std::min(pos_, source_.size()));
    token.text = std::string(text);
    return token;
  }

  bool starts(std::string_view what) const { return source_.substr(pos_).starts_with(what); }

  size_t skip_space(size_t pos) const {
    return source_.size() - strip_space(source_.substr(pos), true, false).size();
  }

  // Text up to the next tag, then the tag.
  void root() {
    size_t open = pos_;
    while (true) {
      open = source_.find('{', open);
      if (open == std::string_view::npos || open + 1 == source_.size()) {
        add(Token::Type::data, source_.substr(pos_));
        pos_ = source_.size();
        return;
      }
      const char kind = source_[open + 1];
      if (kind == '%' || kind == '{' || kind == '#') break;
      ++open;
    }
    const std::string_view text = source_.substr(pos_, open - pos_);
    const char kind = source_[open + 1];
    const size_t after = open + 2;
    const char sign =
        after < source_.size() && (source_[after] == '-' || source_[after] == '+') ? source_[after] : 0;
    data(text, sign, kind != '{');
    pos_ = after + (sign != 0 ? 1 : 0);
    if (kind == '#') return comment();
    if (kind == '%' && raw(sign)) return;
    tag(open, kind == '%');
  }

  // The text before a tag, stripped as the tag's sign and lstrip_blocks ask.
  void data(std::string_view text, char sign, bool block) {
    if (sign == '-') {
      text = strip_space(text, false, true);
    } else if (sign != '+' && block) {
      const size_t line_start = text.rfind('\n') == std::string_view::npos ? 0 : text.rfind('\n') + 1;
      if ((line_start > 0 || line_starting_) && strip_space(text.substr(line_start)).empty()) {
        text = text.substr(0, line_start);
      }
    }
    if (!text.empty()) add(Token::Type::data, text);
  }

  // What follows an end of a tag at `end`: +%} and %} (which takes one line end with it) and -%} (all white
  // space). Gives the position after it, or npos when no end of a tag stands there.
  size_t tag_end(size_t pos, std::string_view end) const {
    const std::string_view rest = source_.substr(pos);
    if (rest.starts_with('+') && rest.substr(1).starts_with(end)) return pos + 3;
    if (rest.starts_with('-') && rest.substr(1).starts_with(end)) return skip_space(pos + 3);
    if (!rest.starts_with(end)) return std::string_view::npos;
    return pos + 2 + (rest.size() > 2 && rest[2] == '\n' ? 1 : 0);
  }

  void leave(size_t pos) {
    pos_ = pos;
    line_starting_ = pos > 0 && source_[pos - 1] == '\n';
  }

  void comment() {
    for (size_t pos = pos_; (pos = source_.find("#}", pos)) != std::string_view::npos; ++pos) {
      size_t start = pos;
      if (start > pos_ && (source_[start - 1] == '-' || source_[start - 1] == '+')) --start;
      return leave(tag_end(start, "#}"));
    }
    fail("missing end of comment tag");
  }

  // {% raw %} ... {% endraw %}; false when the tag is another one.
  bool raw(char) {
    size_t pos = skip_space(pos_);
    if (!source_.substr(pos).starts_with("raw")) return false;
    pos = skip_space(pos + 3);
    const std::string_view rest = source_.substr(pos);
    if (rest.starts_with("-%}")) {
      pos = skip_space(pos + 3);
    } else if (rest.starts_with("%}")) {
      pos += 2;
    } else {
      return false;
    }
    leave(pos);
    for (size_t open = pos_; (open = source_.find("{%", open)) != std::string_view::npos; ++open) {
      const char sign = open + 2 < source_.size() && (source_[open + 2] == '-' || source_[open + 2] == '+')
                            ? source_[open + 2]
                            : 0;
      size_t end = skip_space(open + 2 + (sign != 0 ? 1 : 0));
      if (!source_.substr(end).starts_with("endraw")) continue;
      end = tag_end(skip_space(end + 6), "%}");
      if (end == std::string_view::npos) continue;
      data(source_.substr(pos_, open - pos_), sign, true);
      leave(end);
      return true;
    }
    fail("missing end of raw directive");
  }

  void tag(size_t open, bool block) {
    const size_t inside = pos_;
    pos_ = open;
    add(block ? Token::Type::block_begin : Token::Type::print_begin, "");
    pos_ = inside;
    std::string brackets;
    while (true) {
      if (brackets.empty()) {
        const size_t end = block ? tag_end(pos_, "%}") : print_end();
        if (end != std::string_view::npos) {
          add(block ? Token::Type::block_end : Token::Type::print_end, "");
          return leave(end);
        }
      }
      if (pos_ >= source_.size()) fail("unexpected end of template inside a tag");
      const size_t next = skip_space(pos_);
      if (next != pos_) {
        pos_ = next;
      } else {
        token(&brackets);
      }
    }
  }

  size_t print_end() const {
    if (starts("-}}")) return skip_space(pos_ + 3);
    return starts("}}") ? pos_ + 2 : std::string_view::npos;
  }

  void token(std::string* brackets) {
    const char c = source_[pos_];
    if (is_digit_char(c)) return number();
    if (c == '"' || c == '\'') return string(c);
    const CodePoint cp = decode(source_, pos_);
    if (is_word(cp.value)) return name();
    constexpr std::string_view kDouble[] = {"//", "**", "==", "!=", ">=", "<="};
    for (std::string_view op : kDouble) {
      if (!starts(op)) continue;
      add(Token::Type::op, op);
      pos_ += 2;
      return;
    }
    if (std::string_view("+-/*%~[](){}><=.:|,;").find(c) == std::string_view::npos) {
      fail("unexpected character '" + std::string(source_.substr(pos_, cp.bytes)) + "'");
    }
    balance(c, brackets);
    add(Token::Type::op, source_.substr(pos_, 1));
    ++pos_;
  }

  void balance(char c, std::string* brackets) {
    if (c == '(' || c == '[' || c == '{') {
      brackets->push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
    } else if (c == ')' || c == ']' || c == '}') {
      if (brackets->empty()) fail(std::string("unexpected '") + c + "'");
      const char expected = brackets->back();
      brackets->pop_back();
      if (expected != c) fail(std::string("unexpected '") + c + "', expected '" + expected + "'");
    }
  }

  // Digits with single underscores between them; the position after them.
  size_t digits(size_t pos) const {
    while (pos < source_.size() && (is_digit_char(source_[pos]) ||
                                    (source_[pos] == '_' && pos + 1 < source_.size() &&
                                     is_digit_char(source_[pos + 1]) && is_digit_char(source_[pos - 1])))) {
      ++pos;
    }
    return pos;
  }

  size_t float_end() const {
    if (pos_ > 0 && source_[pos_ - 1] == '.') return pos_;
    size_t end = digits(pos_);
    const size_t whole = end;
    const auto digit_at = [&](size_t pos) { return pos < source_.size() && is_digit_char(source_[pos]); };
    if (end < source_.size() && source_[end] == '.' && digit_at(end + 1)) end = digits(end + 1);
    if (end < source_.size() && (source_[end] | 32) == 'e') {
      size_t exponent = end + 1;
      if (exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-')) ++exponent;
      if (digit_at(exponent)) end = digits(exponent);
    }
    return end == whole ? pos_ : end;
  }

  // 0x, 0o, 0b with digits, a decimal without a leading zero, or zeros.
  size_t integer_end() const {
    const std::string_view rest = source_.substr(pos_);
    const char letter = rest.size() > 1 && rest[0] == '0' ? static_cast<char>(rest[1] | 32) : 0;
    const int base = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
    if (base != 0) {
      size_t end = pos_ + 2;
      while (end < source_.size()) {
        const size_t digit = source_[end] == '_' ? end + 1 : end;
        if (digit >= source_.size()) break;
        const std::string_view all = "0123456789abcdef";
        const char lower =
            static_cast<char>(is_digit_char(source_[digit]) ? source_[digit] : source_[digit] | 32);
        if (all.substr(0, static_cast<size_t>(base)).find(lower) == std::string_view::npos) break;
        end = digit + 1;
      }
      if (end > pos_ + 2) return end;
    }
    if (rest[0] != '0') return digits(pos_);
    size_t end = pos_ + 1;
    while (end < source_.size() && (source_[end] == '0' || (source_[end] == '_' && end + 1 < source_.size() &&
                                                            source_[end + 1] == '0'))) {
      end += source_[end] == '_' ? 2 : 1;
    }
    return end;
  }

  void number() {
    if (const size_t end = float_end(); end != pos_) {
      const auto value = parse_float(source_.substr(pos_, end - pos_));
      if (!value) fail("a number that cannot be read");
      add(Token::Type::floating, source_.substr(pos_, end - pos_)).floating = *value;
      pos_ = end;
      return;
    }
    const size_t end = integer_end();
    const auto value = parse_int(source_.substr(pos_, end - pos_), 0);
    if (!value) fail("a number that cannot be read");
    add(Token::Type::integer, source_.substr(pos_, end - pos_)).integer = *value;
    pos_ = end;
  }

  void name() {
    size_t end = pos_;
    while (end < source_.size() && is_word(decode(source_, end).value)) end += decode(source_, end).bytes;
    add(Token::Type::name, source_.substr(pos_, end - pos_));
    pos_ = end;
  }

  void string(char quote) {
    size_t end = pos_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size())
      fail(std::string("unexpected character '") + quote + "': the string has no end");
    const std::string_view inside = source_.substr(pos_ + 1, end - pos_ - 1);
    add(Token::Type::text, unescape(inside));
    pos_ = end + 1;
  }

  // Hexadecimal digits at `pos` as a code point.
  char32_t hex(std::string_view text, size_t pos, size_t count) {
    char32_t value = 0;
    for (size_t i = pos; i < pos + count; ++i) {
      const char c = i < text.size() ? text[i] : 0;
      if (!std::isxdigit(static_cast<unsigned char>(c))) fail("truncated escape in a string");
      value = value * 16 + static_cast<char32_t>(is_digit_char(c) ? c - '0' : (c | 32) - 'a' + 10);
    }
    if (value > 0x10FFFF) fail("illegal Unicode character in a string");
    return value;
  }

  // The escapes of a Python string literal.
  std::string unescape(std::string_view text) {
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '\\' || i + 1 == text.size()) {
        out += text[i];
        continue;
      }
      const char c = text[++i];
      constexpr std::string_view kPlain = "\\'\"abfnrtv", kMeaning = "\\'\"\a\b\f\n\r\t\v";
      if (const size_t known = kPlain.find(c); known != std::string_view::npos) {
        out += kMeaning[known];
      } else if (c >= '0' && c <= '7') {
        char32_t value = 0;
        size_t used = 0;
        for (; used < 3 && i + used < text.size() && text[i + used] >= '0' && text[i + used] <= '7'; ++used) {
          value = value * 8 + static_cast<char32_t>(text[i + used] - '0');
        }
        append_utf8(&out, value);
        i += used - 1;
      } else if (c == 'x' || c == 'u' || c == 'U') {
        const size_t count = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        append_utf8(&out, hex(text, i + 1, count));
        i += count;
      } else if (c == 'N') {
        fail("\\N{...} escapes are not supported");
      } else if (static_cast<unsigned char>(c) >= 0x80) {
        i += quote_escaped(text, i, &out) - 1;
      } else if (c != '\n') {
        out += '\\';
        out += c;
      }
    }
    return out;
  }

  // A backslash before a character outside ASCII gives that character's own escape as text, as in jinja2.
  static size_t quote_escaped(std::string_view text, size_t pos, std::string* out) {
    const CodePoint cp = decode(text, pos);
    const int width = cp.value < 0x100 ? 2 : cp.value < 0x10000 ? 4 : 8;
    *out += '\\';
    *out += width == 2 ? 'x' : width == 4 ? 'u' : 'U';
    for (int shift = 4 * (width - 1); shift >= 0; shift -= 4)
      *out += "0123456789abcdef"[(cp.value >> shift) & 15];
    return cp.bytes;
  }

  const std::string_view source_;
  std::vector<Token> tokens_;
  size_t pos_ = 0, counted_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) {
  const std::string normalized = normalize_newlines(source);
  return Lexer(normalized).run();
}

std::string describe(const Token& token) {
  switch (token.type) {
    case Token::Type::data:
      return "template data";
    case Token::Type::block_begin:
      return "begin of statement block";
    case Token::Type::block_end:
      return "end of statement block";
    case Token::Type::print_begin:
      return "begin of print statement";
    case Token::Type::print_end:
      return "end of print statement";
    case Token::Type::text:
      return "string";
    case Token::Type::integer:
      return "integer";
    case Token::Type::floating:
      return "float";
    case Token::Type::end:
      return "end of template";
    default:
      return token.text;
  }
}

}  // namespace fovea::jinja
