#include "text/jinja/format_spec.h"

#include <cctype>
#include <cmath>
#include <cstdio>

#include "text/jinja/python.h"
#include "text/jinja/unicode.h"

namespace fovea::jinja {

namespace {

bool is_align(char c) { return c == '<' || c == '>' || c == '^' || c == '='; }

Int take_number(std::string_view* text, Int fallback) {
  if (text->empty() || (*text)[0] < '0' || (*text)[0] > '9') return fallback;
  Int value = 0;
  while (!text->empty() && (*text)[0] >= '0' && (*text)[0] <= '9') {
    value = value * 10 + ((*text)[0] - '0');
    if (value > INT32_MAX) Runtime::fail("too many decimal digits in format string");
    text->remove_prefix(1);
  }
  return value;
}

std::string digits_in_base(Int value, int base, bool upper) {
  unsigned __int128 rest =
      value < 0 ? -static_cast<unsigned __int128>(value) : static_cast<unsigned __int128>(value);
  std::string out;
  const char* letters = upper ? "0123456789ABCDEF" : "0123456789abcdef";
  do {
    out.insert(out.begin(), letters[static_cast<size_t>(rest % static_cast<unsigned>(base))]);
    rest /= static_cast<unsigned>(base);
  } while (rest != 0);
  return out;
}

// Separators between the whole digits; where the spec pads with zeros, zeros before them up to `width` in
// all.
void group_digits(std::string* digits, const FormatSpec& spec, size_t every, Int width) {
  size_t whole = 0;
  while (whole < digits->size() && std::isxdigit(static_cast<unsigned char>((*digits)[whole]))) ++whole;
  const std::string tail = digits->substr(whole);
  digits->resize(whole);
  std::string out;
  for (size_t count = 0;; ++count) {
    const bool more = count < whole;
    const bool zeros =
        spec.fill == "0" && spec.align == '=' && static_cast<Int>(out.size() + tail.size()) < width;
    if (!more && !zeros) break;
    if (count > 0 && count % every == 0) out += spec.grouping;
    out += more ? (*digits)[whole - 1 - count] : '0';
  }
  *digits = std::string(out.rbegin(), out.rend()) + tail;
}

std::string with_sign(std::string digits, bool negative, char sign) {
  if (negative) return "-" + digits;
  return sign == '+' ? "+" + digits : sign == ' ' ? " " + digits : digits;
}

std::string print_double(double value, char type, int precision, bool alternate) {
  char conversion[8];
  std::snprintf(conversion, sizeof(conversion), "%%%s.*%c", alternate ? "#" : "", type);
  std::string out(512, '\0');
  const int size = std::snprintf(out.data(), out.size(), conversion, precision, value);
  if (static_cast<size_t>(size) >= out.size()) {
    out.resize(static_cast<size_t>(size) + 1);
    std::snprintf(out.data(), out.size(), conversion, precision, value);
  }
  out.resize(static_cast<size_t>(size));
  return out;
}

}  // namespace

FormatSpec parse_format_spec(std::string_view text) {
  FormatSpec spec;
  if (!text.empty()) {
    const size_t bytes = decode(text, 0).bytes;
    if (text.size() > bytes && is_align(text[bytes])) {
      spec.fill = std::string(text.substr(0, bytes));
      spec.align = text[bytes];
      text.remove_prefix(bytes + 1);
    } else if (is_align(text[0])) {
      spec.align = text[0];
      text.remove_prefix(1);
    }
  }
  const auto take = [&](std::string_view any, char* out) {
    if (text.empty() || any.find(text[0]) == std::string_view::npos) return false;
    *out = text[0];
    text.remove_prefix(1);
    return true;
  };
  char found = 0;
  take("+- ", &spec.sign);
  spec.alternate = take("#", &found);
  spec.zero = take("0", &found);
  spec.width = take_number(&text, 0);
  take(",_", &spec.grouping);
  if (take(".", &found)) {
    spec.precision = take_number(&text, -1);
    if (spec.precision < 0) Runtime::fail("format specifier missing precision");
  }
  take("bcdeEfFgGnosxX%", &spec.type);
  if (!text.empty()) Runtime::fail("invalid format specifier '" + std::string(text) + "'");
  if (spec.zero && spec.align == 0) spec.align = '=', spec.fill = "0";
  return spec;
}

std::string format_int(Int value, const FormatSpec& spec) {
  int base = 10;
  std::string prefix;
  if (spec.type == 'b') base = 2, prefix = "0b";
  if (spec.type == 'o') base = 8, prefix = "0o";
  if (spec.type == 'x') base = 16, prefix = "0x";
  if (spec.type == 'X') base = 16, prefix = "0X";
  std::string digits = digits_in_base(value, base, spec.type == 'X');
  const Int around =
      (value < 0 || spec.sign != '-' ? 1 : 0) + (spec.alternate ? static_cast<Int>(prefix.size()) : 0);
  if (spec.grouping != 0) group_digits(&digits, spec, base == 10 ? 3 : 4, spec.width - around);
  if (spec.alternate) digits = prefix + digits;
  return with_sign(digits, value < 0, spec.sign);
}

std::string format_double(double value, const FormatSpec& spec) {
  const bool negative = std::signbit(value) && !std::isnan(value);
  const double size = std::fabs(value) * (spec.type == '%' ? 100 : 1);
  if (spec.precision > 5000) Runtime::fail("the precision is too big", StatusCode::resource_exhausted);
  const int precision = spec.precision < 0 ? 6 : static_cast<int>(spec.precision);
  std::string digits;
  switch (spec.type) {
    case 'e':
    case 'E':
    case 'f':
    case 'F':
      digits = print_double(size, spec.type, precision, spec.alternate);
      break;
    case '%':
      digits = print_double(size, 'f', precision, spec.alternate) + "%";
      break;
    case 'g':
    case 'n':
    case 'G':
      digits = print_double(size, spec.type == 'G' ? 'G' : 'g', precision, spec.alternate);
      break;
    default:  // as repr(), or with a precision as 'g' that keeps one digit after the point
      if (spec.precision < 0) {
        digits = float_repr(size);
      } else {
        digits = print_double(size, 'g', precision, spec.alternate);
        if (digits.find_first_of(".enif") == std::string::npos) digits += ".0";
      }
  }
  if (spec.grouping != 0) group_digits(&digits, spec, 3, spec.width - (negative || spec.sign != '-' ? 1 : 0));
  return with_sign(digits, negative, spec.sign);
}

std::string pad(Runtime& rt, std::string text, const FormatSpec& spec, char default_align) {
  const size_t length = count_code_points(text);
  if (spec.width <= static_cast<Int>(length)) return text;
  const size_t missing = static_cast<size_t>(spec.width) - length;
  rt.check_text(text.size() + missing * spec.fill.size());
  rt.meter().step_bytes(missing);
  const auto filling = [&](size_t count) {
    std::string out;
    for (size_t i = 0; i < count; ++i) out += spec.fill;
    return out;
  };
  switch (spec.align != 0 ? spec.align : default_align) {
    case '<':
      return text + filling(missing);
    case '^':
      return filling(missing / 2) + text + filling(missing - missing / 2);
    case '=': {
      size_t sign = !text.empty() && (text[0] == '-' || text[0] == '+' || text[0] == ' ') ? 1 : 0;
      const bool prefixed = spec.alternate && text.size() > sign + 1 && text[sign] == '0' &&
                            std::string_view("xXob").find(text[sign + 1]) != std::string_view::npos;
      if (prefixed) sign += 2;
      return text.substr(0, sign) + filling(missing) + text.substr(sign);
    }
    default:
      return filling(missing) + text;
  }
}

std::string format_with(Runtime& rt, const Value& value, std::string_view text) {
  if (text.empty()) return to_text(rt, value);
  const FormatSpec spec = parse_format_spec(text);
  if (value.is_string()) {
    const bool own_align =
        !spec.zero || spec.fill != "0" || spec.align != '=';  // 0 alone: zeros after the text
    if ((spec.type != 0 && spec.type != 's') || (spec.align == '=' && own_align) || spec.sign != '-' ||
        spec.alternate || spec.grouping) {
      Runtime::fail("invalid format specifier '" + std::string(text) + "' for a string");
    }
    std::string_view part = value.text();
    if (spec.precision >= 0) part = part.substr(0, byte_offset(part, static_cast<size_t>(spec.precision)));
    FormatSpec padding = spec;
    if (padding.align == '=') padding.align = '<';
    return pad(rt, std::string(part), padding, '<');
  }
  if (spec.grouping == ',' && std::string_view("bcoxXn").find(spec.type) != std::string_view::npos &&
      spec.type != 0) {
    Runtime::fail(std::string("cannot specify ',' with '") + spec.type + "'");
  }
  const bool float_type =
      spec.type != 0 && std::string_view("eEfFgG%").find(spec.type) != std::string_view::npos;
  if (value.is_integral() && !float_type) {
    if (spec.type == 's' || spec.precision >= 0) {
      Runtime::fail("invalid format specifier '" + std::string(text) + "' for an integer");
    }
    if (spec.type == 'c' && (spec.alternate || spec.sign != '-'))
      Runtime::fail("'c' takes no sign and no '#'");
    if (spec.type != 'c') return pad(rt, format_int(value.as_int(), spec), spec, '>');
    if (value.as_int() < 0 || value.as_int() > 0x10FFFF) Runtime::fail("%c needs a code point");
    std::string letter;
    append_utf8(&letter, static_cast<char32_t>(value.as_int()));
    return pad(rt, letter, spec, '>');
  }
  if (value.is_number()) {
    if (spec.type != 0 && spec.type != 'n' && !float_type) {
      Runtime::fail("invalid format specifier '" + std::string(text) + "' for a float");
    }
    return pad(rt, format_double(value.as_double(), spec), spec, '>');
  }
  Runtime::fail(std::string("a value of type ") + type_name(value) + " takes no format specifier");
}

}  // namespace fovea::jinja
