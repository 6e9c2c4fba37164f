// "..." % args and "...".format(args).
#include <cmath>

#include "text/jinja/attributes.h"
#include "text/jinja/format_spec.h"
#include "text/jinja/python.h"
#include "text/jinja/unicode.h"

namespace fovea::jinja {

namespace {

// One run of a % format over its arguments.
class PercentFormat {
 public:
  PercentFormat(Runtime& rt, const Value& format, const Value& args)
      : rt_(rt), text_(format.text()), markup_(format.as<Str>().markup), args_(args) {}

  std::string run() {
    while (pos_ < text_.size()) {
      rt_.step();
      const size_t percent = std::min(text_.find('%', pos_), text_.size());
      put(text_.substr(pos_, percent - pos_));
      pos_ = percent;
      if (pos_ < text_.size()) conversion();
    }
    const bool mapping =
        args_.is(Kind::dict) || args_.is(Kind::list) || args_.is_undefined() || args_.is(Kind::range);
    const size_t given = args_.is(Kind::tuple) ? args_.items().size() : mapping || by_name_ ? 0 : 1;
    if (used_ < given) Runtime::fail("not all arguments converted during string formatting");
    return std::move(out_);
  }

 private:
  void put(std::string_view part) {
    rt_.check_text(out_.size() + part.size());
    out_ += part;
  }

  char peek() const {
    if (pos_ >= text_.size()) Runtime::fail("incomplete format");
    return text_[pos_];
  }

  Value next_argument() {
    if (!args_.is(Kind::tuple)) {
      if (used_++ > 0) Runtime::fail("not enough arguments for format string");
      return args_;
    }
    if (used_ >= args_.items().size()) Runtime::fail("not enough arguments for format string");
    return args_.items()[used_++];
  }

  Value named_argument() {
    if (!args_.is(Kind::dict)) Runtime::fail("format requires a mapping");
    const size_t begin = ++pos_;
    int open = 1;
    for (; open > 0; ++pos_) open += peek() == '(' ? 1 : text_[pos_] == ')' ? -1 : 0;
    const std::string_view name = text_.substr(begin, pos_ - 1 - begin);
    by_name_ = true;
    const Value* found = args_.as<Dict>().find(name);
    if (found == nullptr) Runtime::fail("format: no key '" + std::string(name) + "'");
    return *found;
  }

  Int number() {
    Int value = 0;
    if (peek() == '*') {
      ++pos_;
      const Value given = next_argument();
      if (!given.is_integral()) Runtime::fail("* wants int");
      return given.as_int();
    }
    for (; peek() >= '0' && peek() <= '9'; ++pos_) {
      value = value * 10 + (text_[pos_] - '0');
      if (value > INT32_MAX) Runtime::fail("the width of a format is too big");
    }
    return value;
  }

  void conversion() {
    ++pos_;
    std::optional<Value> named;
    if (peek() == '(') named = named_argument();
    FormatSpec spec;
    bool left = false;
    for (;; ++pos_) {
      const char c = peek();
      if (c == '-')
        left = true;
      else if (c == '+')
        spec.sign = '+';
      else if (c == ' ')
        spec.sign = spec.sign == '+' ? '+' : ' ';
      else if (c == '#')
        spec.alternate = true;
      else if (c == '0')
        spec.zero = true;
      else
        break;
    }
    spec.width = number();
    if (spec.width < 0) left = true, spec.width = -spec.width;
    if (peek() == '.') {
      ++pos_;
      spec.precision = std::max<Int>(number(), 0);
    }
    while (peek() == 'l' || peek() == 'h' || peek() == 'L') ++pos_;
    spec.type = text_[pos_++];
    if (spec.type == '%') return put("%");
    if (left) spec.align = '<';
    convert(named ? *named : next_argument(), spec, left);
  }

  void convert(const Value& value, FormatSpec spec, bool left) {
    const auto pad_number = [&](std::string digits) {
      if (spec.zero && !left) spec.align = '=', spec.fill = "0";
      put(pad(rt_, std::move(digits), spec, '>'));
    };
    switch (spec.type) {
      case 's':
      case 'r':
      case 'a': {
        std::string text = spec.type == 's' ? to_text(rt_, value) : to_repr(rt_, value);
        if (markup_ && !(value.is_string() && value.as<Str>().markup)) text = escape_html(rt_, text);
        if (spec.precision >= 0) text.resize(byte_offset(text, static_cast<size_t>(spec.precision)));
        return put(pad(rt_, std::move(text), spec, '>'));
      }
      case 'c':
        return put(pad(rt_, letter(value), spec, '>'));
      case 'd':
      case 'i':
      case 'u':
      case 'o':
      case 'x':
      case 'X':
        return pad_number(integer(value, spec));
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G':
        if (value.is_undefined()) rt_.fail_undefined(value);
        if (!value.is_number()) Runtime::fail(std::string("must be a real number, not ") + type_name(value));
        return pad_number(format_double(value.as_double(), spec));
      default:
        Runtime::fail(std::string("unsupported format character '") + spec.type + "'");
    }
  }

  std::string letter(const Value& value) {
    std::string text;
    if (value.is_integral() && value.as_int() >= 0 && value.as_int() <= 0x10FFFF) {
      append_utf8(&text, static_cast<char32_t>(value.as_int()));
      return text;
    }
    if (!value.is_string() || value.as<Str>().length != 1)
      Runtime::fail("%c requires an int or one character");
    return std::string(value.text());
  }

  std::string integer(const Value& value, FormatSpec spec) {
    if (value.is_undefined()) rt_.fail_undefined(value);
    const bool decimal = spec.type == 'd' || spec.type == 'i' || spec.type == 'u';
    std::optional<Int> number;
    if (value.is_integral()) number = value.as_int();
    if (value.is(Kind::floating) && decimal) number = double_to_int(value.as_double());
    if (!number) Runtime::fail(std::string("%") + spec.type + " needs a number, not " + type_name(value));
    std::string digits = format_int(*number, spec);
    const size_t sign = digits[0] == '-' || digits[0] == '+' || digits[0] == ' ' ? 1 : 0;
    if (spec.precision > 0) {
      rt_.check_text(static_cast<size_t>(spec.precision));
      const size_t start = sign + (spec.alternate && !decimal ? 2 : 0);
      const size_t have = digits.size() - start;
      if (static_cast<Int>(have) < spec.precision)
        digits.insert(start, static_cast<size_t>(spec.precision) - have, '0');
    }
    return digits;
  }

  Runtime& rt_;
  const std::string_view text_;
  const bool markup_;
  const Value& args_;
  std::string out_;
  size_t pos_ = 0, used_ = 0;
  bool by_name_ = false;
};

// One run of str.format over its arguments.
class BraceFormat {
 public:
  BraceFormat(Runtime& rt, bool markup, const Args& args) : rt_(rt), markup_(markup), args_(args) {}

  std::string run(std::string_view text, int depth) {
    if (depth > 2) Runtime::fail("max string recursion exceeded");
    std::string out;
    for (size_t pos = 0; pos < text.size();) {
      rt_.step();
      rt_.check_text(out.size());
      const char c = text[pos];
      if ((c == '{' || c == '}') && pos + 1 < text.size() && text[pos + 1] == c) {
        out += c;
        pos += 2;
      } else if (c == '}') {
        Runtime::fail("single '}' encountered in format string");
      } else if (c == '{') {
        const size_t end = field_end(text, pos + 1);
        out += field(text.substr(pos + 1, end - pos - 1), depth);
        pos = end + 1;
      } else {
        const size_t next = std::min(text.find_first_of("{}", pos), text.size());
        out += text.substr(pos, next - pos);
        pos = next;
      }
    }
    return out;
  }

 private:
  static size_t field_end(std::string_view text, size_t pos) {
    int open = 1;
    for (; pos < text.size(); ++pos) {
      if (text[pos] == '{') ++open;
      if (text[pos] == '}' && --open == 0) return pos;
    }
    Runtime::fail("expected '}' before end of string");
  }

  std::string field(std::string_view text, int depth) {
    size_t name_end = 0;
    for (bool in_key = false; name_end < text.size(); ++name_end) {
      const char c = text[name_end];
      if (c == '[') in_key = true;
      if (c == ']') in_key = false;
      if (c == '{') Runtime::fail("unexpected '{' in field name");
      if (!in_key && (c == '!' || c == ':')) break;
    }
    Value value = lookup(text.substr(0, name_end));
    std::string_view rest = text.substr(name_end);
    if (!rest.empty() && rest[0] == '!') {
      if (rest.size() < 2 || (rest.size() > 2 && rest[2] != ':'))
        Runtime::fail("expected ':' after conversion specifier");
      if (rest[1] == 'r' || rest[1] == 'a')
        value = rt_.str(to_repr(rt_, value));
      else if (rest[1] == 's')
        value = rt_.str(to_text(rt_, value));
      else
        Runtime::fail(std::string("unknown conversion specifier '") + rest[1] + "'");
      rest.remove_prefix(2);
    }
    const std::string spec = rest.empty() ? std::string() : run(rest.substr(1), depth + 1);
    const std::string formatted = format_with(rt_, value, spec);
    if (!markup_ || (value.is_string() && value.as<Str>().markup)) return formatted;
    return escape_html(rt_, formatted);
  }

  Value first_argument(std::string_view name) {
    const auto index = parse_int(name, 10);
    if (!name.empty() && !(index && *index >= 0)) {
      for (const auto& [key, value] : args_.named) {
        if (key == name) return value;
      }
      Runtime::fail("format: no argument named '" + std::string(name) + "'");
    }
    if (name.empty() ? manual_ : automatic_) Runtime::fail("cannot mix automatic and manual field numbering");
    (name.empty() ? automatic_ : manual_) = true;
    const Int at = name.empty() ? next_++ : *index;
    if (at >= static_cast<Int>(args_.positional.size())) Runtime::fail("replacement index out of range");
    return args_.positional[static_cast<size_t>(at)];
  }

  Value lookup(std::string_view name) {
    size_t pos = std::min(name.find_first_of(".["), name.size());
    Value value = first_argument(name.substr(0, pos));
    while (pos < name.size()) {
      if (name[pos] == '.') {
        const size_t end = std::min(name.find_first_of(".[", pos + 1), name.size());
        if (end == pos + 1) Runtime::fail("empty attribute in format string");
        value = get_attribute(rt_, value, name.substr(pos + 1, end - pos - 1));
        pos = end;
      } else if (name[pos] == '[') {
        const size_t end = name.find(']', pos);
        if (end == std::string_view::npos || end == pos + 1)
          Runtime::fail("missing ']' or key in format string");
        const std::string_view key = name.substr(pos + 1, end - pos - 1);
        const bool digits = key.find_first_not_of("0123456789") == std::string_view::npos;
        const auto index = digits ? parse_int(key, 10) : std::nullopt;
        value = get_item(rt_, value, index ? Value::integer(*index) : rt_.str(key));
        pos = end + 1;
      } else {
        Runtime::fail("only '.' or '[' may follow ']' in format field specifier");
      }
    }
    return value;
  }

  Runtime& rt_;
  const bool markup_;
  const Args& args_;
  bool automatic_ = false, manual_ = false;
  Int next_ = 0;
};

}  // namespace

std::string percent_format(Runtime& rt, const Value& format, const Value& args) {
  return PercentFormat(rt, format, args).run();
}

std::string brace_format(Runtime& rt, const Value& format, const Args& args) {
  return BraceFormat(rt, format.as<Str>().markup, args).run(format.text(), 1);
}

}  // namespace fovea::jinja
