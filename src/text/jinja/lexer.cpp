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

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_word(char c) { return c == '_' || std::isalnum(static_cast<unsigned char>(c)); }

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  std::vector<Token> run() {
    while (pos_ < source_.size()) root();
    add(Token::Type::end, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) { throw TemplateError(StatusCode::invalid_argument, what, line_at(pos_)); }

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

  size_t skip_space(size_t pos) const { return source_.size() - strip_space(source_.substr(pos), true, false).size(); }

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
    const char sign = after < source_.size() && (source_[after] == '-' || source_[after] == '+') ? source_[after] : 0;
    data(text, sign, kind != '{');
    pos_ = after + (sign != 0 ? 1 : 0);
    if (kind == '#') return comment();
    if (kind == '%' && raw()) return;
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
  bool raw() {
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
      const char sign = open + 2 < source_.size() && (source_[open + 2] == '-' || source_[open + 2] == '+') ? source_[open + 2] : 0;
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
    if (is_digit(c)) return number();
    if (c == '"' || c == '\'') return string(c);
    if (is_word(c)) return name();
    constexpr std::string_view kDouble[] = {"//", "==", "!=", ">=", "<="};
    for (std::string_view op : kDouble) {
      if (!starts(op)) continue;
      add(Token::Type::op, op);
      pos_ += 2;
      return;
    }
    if (std::string_view("+-/*%~[](){}><=.:|,;").find(c) == std::string_view::npos) {
      fail("unexpected character '" + std::string(source_.substr(pos_, decode(source_, pos_).bytes)) + "'");
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

  // 12 or 1.5, the numbers that templates have.
  void number() {
    size_t end = pos_;
    const auto digits = [&] {
      while (end < source_.size() && is_digit(source_[end])) ++end;
    };
    digits();
    const bool after_dot = pos_ > 0 && source_[pos_ - 1] == '.';  // an item: x.0.1
    if (!after_dot && end + 1 < source_.size() && source_[end] == '.' && is_digit(source_[end + 1])) {
      ++end;
      digits();
    }
    const std::string_view text = source_.substr(pos_, end - pos_);
    const bool floating = text.find('.') != std::string_view::npos;
    const bool other = end < source_.size() && (source_[end] == '_' || (source_[end] | 32) == 'e' || (source_[end] | 32) == 'x');
    if (other || (text.size() > 1 && text[0] == '0' && !floating)) {
      fail("a number written as '" + std::string(source_.substr(pos_, end + 1 - pos_)) + "' is not supported");
    }
    Token& token = add(floating ? Token::Type::floating : Token::Type::integer, text);
    if (floating) token.floating = parse_float(text).value_or(0);
    if (!floating) token.integer = parse_int(text).value_or(0);
    pos_ = end;
  }

  void name() {
    size_t end = pos_;
    while (end < source_.size() && is_word(source_[end])) ++end;
    add(Token::Type::name, source_.substr(pos_, end - pos_));
    pos_ = end;
  }

  void string(char quote) {
    size_t end = pos_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) fail(std::string("unexpected character '") + quote + "': the string has no end");
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
      value = value * 16 + static_cast<char32_t>(is_digit(c) ? c - '0' : (c | 32) - 'a' + 10);
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
      constexpr std::string_view kPlain = "\\'\"bfnrtv", kMeaning = "\\'\"\b\f\n\r\t\v";
      if (const size_t known = kPlain.find(c); known != std::string_view::npos) {
        out += kMeaning[known];
      } else if (c == 'x' || c == 'u' || c == 'U') {
        const size_t count = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        append_utf8(&out, hex(text, i + 1, count));
        i += count;
      } else if (is_digit(c) || c == 'a' || c == 'N' || static_cast<unsigned char>(c) >= 0x80) {
        fail("the escape '\\" + std::string(text.substr(i, decode(text, i).bytes)) + "' in a string is not supported");
      } else if (c != '\n') {
        out += '\\';
        out += c;
      }
    }
    return out;
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
  constexpr const char* kNames[] = {"template data",
                                    "begin of statement block",
                                    "end of statement block",
                                    "begin of print statement",
                                    "end of print statement",
                                    nullptr,
                                    "string",
                                    "integer",
                                    "float",
                                    nullptr,
                                    "end of template"};
  const char* name = kNames[static_cast<size_t>(token.type)];
  return name != nullptr ? name : token.text;
}

}  // namespace fovea::jinja
