// Numbers: text of and from them, arithmetic with Python's rules (floor division, signs, exact comparison).
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "text/jinja/python.h"
#include "text/jinja/unicode.h"

namespace fovea::jinja {

namespace {

[[noreturn]] void overflow() {
  Runtime::fail("an integer of the template needs more than 128 bits", StatusCode::resource_exhausted);
}

Int checked_mul(Int a, Int b) {
  Int result;
  if (__builtin_mul_overflow(a, b, &result)) overflow();
  return result;
}

[[noreturn]] void bad_operands(const char* op, const Value& a, const Value& b) {
  Runtime::fail(std::string("unsupported operand types for ") + op + ": '" + type_name(a) + "' and '" +
                type_name(b) + "'");
}

constexpr Int kIntMin = static_cast<Int>(static_cast<unsigned __int128>(1) << 127);

Int floor_divide(Int a, Int b) {
  if (b == 0) Runtime::fail("division by zero");
  if (a == kIntMin && b == -1) overflow();
  const Int quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

Int modulo(Int a, Int b) {
  if (b == 0) Runtime::fail("division by zero");
  if (b == -1) return 0;
  const Int rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

double modulo(double a, double b) {
  if (b == 0) Runtime::fail("float modulo by zero");
  double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
  return rest == 0 ? std::copysign(0.0, b) : rest;
}

double floor_divide(double a, double b) {
  if (b == 0) Runtime::fail("float floor division by zero");
  const double rest = std::fmod(a, b);
  double quotient = (a - rest) / b;
  if (rest != 0 && (rest < 0) != (b < 0)) quotient -= 1;
  if (quotient == 0) return std::copysign(0.0, a / b);
  const double floored = std::floor(quotient);
  return quotient - floored > 0.5 ? floored + 1 : floored;
}

Value add_or_subtract(Op op, const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) {
    Int result;
    const bool bad = op == Op::add ? __builtin_add_overflow(a.as_int(), b.as_int(), &result)
                                   : __builtin_sub_overflow(a.as_int(), b.as_int(), &result);
    if (bad) overflow();
    return Value::integer(result);
  }
  return Value::floating(op == Op::add ? a.as_double() + b.as_double() : a.as_double() - b.as_double());
}

Value number_op(Runtime& rt, Op op, const Value& a, const Value& b) {
  const bool ints = a.is_integral() && b.is_integral();
  switch (op) {
    case Op::add:
    case Op::sub:
      return add_or_subtract(op, a, b);
    case Op::mul:
      return ints ? Value::integer(checked_mul(a.as_int(), b.as_int()))
                  : Value::floating(a.as_double() * b.as_double());
    case Op::div:
      if (b.as_double() == 0) Runtime::fail("division by zero");
      return Value::floating(a.as_double() / b.as_double());
    case Op::floor_div:
      return ints ? Value::integer(floor_divide(a.as_int(), b.as_int()))
                  : Value::floating(floor_divide(a.as_double(), b.as_double()));
    case Op::mod:
      return ints ? Value::integer(modulo(a.as_int(), b.as_int()))
                  : Value::floating(modulo(a.as_double(), b.as_double()));
    case Op::pow:
      return power(rt, a, b);
  }
  bad_operands("?", a, b);
}

// text * count, list * count, tuple * count
Value repeat(Runtime& rt, const Value& what, Int count) {
  if (count < 0) count = 0;
  if (what.is_string()) {
    const std::string_view text = what.text();
    if (!text.empty() && count > static_cast<Int>(rt.max_text_bytes() / text.size())) rt.check_text(SIZE_MAX);
    std::string all;
    if (text.empty()) return what;
    all.reserve(text.size() * static_cast<size_t>(count));
    for (Int i = 0; i < count; ++i) all += text;
    return rt.str(std::move(all), what.as<Str>().markup);
  }
  const std::vector<Value>& items = what.items();
  std::vector<Value> all;
  if (!items.empty()) {
    if (count > static_cast<Int>(INT64_MAX / 2) / static_cast<Int>(items.size())) count = INT64_MAX / 2;
    rt.step(static_cast<int64_t>(count * static_cast<Int>(items.size()) > INT64_MAX / 2
                                     ? INT64_MAX / 2
                                     : count * static_cast<Int>(items.size())));
    all.reserve(items.size() * static_cast<size_t>(count));
    for (Int i = 0; i < count; ++i) all.insert(all.end(), items.begin(), items.end());
  }
  return what.is(Kind::list) ? rt.list(std::move(all)) : rt.tuple(std::move(all));
}

Value concatenate(Runtime& rt, const Value& a, const Value& b) {
  if (a.is_string()) {
    const bool markup = a.as<Str>().markup || b.as<Str>().markup;
    if (markup) {
      std::string all(escape(rt, a).text());
      all += escape(rt, b).text();
      return rt.str(std::move(all), true);
    }
    rt.check_text(a.text().size() + b.text().size());
    std::string all;
    all.reserve(a.text().size() + b.text().size());
    all.append(a.text()).append(b.text());
    return rt.str(std::move(all));
  }
  rt.step(static_cast<int64_t>(a.items().size() + b.items().size()));
  std::vector<Value> all;
  all.reserve(a.items().size() + b.items().size());
  all.insert(all.end(), a.items().begin(), a.items().end());
  all.insert(all.end(), b.items().begin(), b.items().end());
  return a.is(Kind::list) ? rt.list(std::move(all)) : rt.tuple(std::move(all));
}

const char* op_text(Op op) {
  switch (op) {
    case Op::add:
      return "+";
    case Op::sub:
      return "-";
    case Op::mul:
      return "*";
    case Op::div:
      return "/";
    case Op::floor_div:
      return "//";
    case Op::mod:
      return "%";
    case Op::pow:
      return "**";
  }
  return "?";
}

int digit_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char lower = static_cast<char>(c | 32);
  return lower >= 'a' && lower <= 'z' ? lower - 'a' + 10 : 99;
}

// Takes the sign and a base prefix (0x, 0o, 0b) off; base 0 is found from the prefix.
bool take_prefix(std::string_view* text, int* base, bool* negative) {
  if (!text->empty() && ((*text)[0] == '-' || (*text)[0] == '+')) {
    *negative = (*text)[0] == '-';
    text->remove_prefix(1);
  }
  int named = 0;
  if (text->size() > 1 && (*text)[0] == '0') {
    const char letter = static_cast<char>((*text)[1] | 32);
    named = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
  }
  if (named != 0 && (*base == 0 || *base == named)) {
    *base = named;
    text->remove_prefix(2);
    if (!text->empty() && (*text)[0] == '_') text->remove_prefix(1);
    return true;
  }
  if (*base == 0) {
    if (text->size() > 1 && (*text)[0] == '0' && text->find_first_not_of("0_") != std::string_view::npos)
      return false;
    *base = 10;
  }
  return true;
}

// Drops single underscores between digits; false when one stands elsewhere.
bool drop_underscores(std::string_view text, std::string* out) {
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      out->push_back(text[i]);
    } else if (i == 0 || i + 1 == text.size() || digit_value(text[i - 1]) == 99 ||
               digit_value(text[i + 1]) == 99) {
      return false;
    }
  }
  return true;
}

}  // namespace

std::string int_text(Int value) {
  if (value == 0) return "0";
  unsigned __int128 rest =
      value < 0 ? -static_cast<unsigned __int128>(value) : static_cast<unsigned __int128>(value);
  std::string digits;
  for (; rest != 0; rest /= 10) digits.push_back(static_cast<char>('0' + static_cast<int>(rest % 10)));
  if (value < 0) digits.push_back('-');
  return {digits.rbegin(), digits.rend()};
}

std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific).ptr;
  std::string_view all(buffer, static_cast<size_t>(end - buffer));
  std::string sign;
  if (all[0] == '-') sign = "-", all.remove_prefix(1);
  const size_t e = all.find('e');
  const int exponent = std::atoi(std::string(all.substr(e + 1)).c_str());
  std::string digits(1, all[0]);
  if (e > 2) digits += all.substr(2, e - 2);
  const int count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {  // as repr() of Python chooses
    std::string text = sign + digits.substr(0, 1);
    if (count > 1) text += "." + digits.substr(1);
    char tail[16];
    std::snprintf(tail, sizeof(tail), "e%c%02d", exponent < 0 ? '-' : '+', std::abs(exponent));
    return text + tail;
  }
  if (exponent < 0) return sign + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  if (exponent + 1 >= count)
    return sign + digits + std::string(static_cast<size_t>(exponent + 1 - count), '0') + ".0";
  return sign + digits.substr(0, static_cast<size_t>(exponent + 1)) + "." +
         digits.substr(static_cast<size_t>(exponent + 1));
}

std::optional<Int> parse_int(std::string_view text, int base) {
  text = strip_space(text);
  bool negative = false;
  if (!take_prefix(&text, &base, &negative)) return std::nullopt;
  std::string digits;
  if (text.empty() || !drop_underscores(text, &digits)) return std::nullopt;
  Int value = 0;
  for (char c : digits) {
    const int digit = digit_value(c);
    if (digit >= base) return std::nullopt;
    if (__builtin_mul_overflow(value, static_cast<Int>(base), &value) ||
        __builtin_sub_overflow(value, static_cast<Int>(digit),
                               &value)) {  // downwards: the least Int has no positive
      overflow();
    }
  }
  if (negative) return value;
  if (value == kIntMin) overflow();
  return -value;
}

std::optional<double> parse_float(std::string_view text) {
  text = strip_space(text);
  std::string plain;
  if (text.empty() || !drop_underscores(text, &plain)) return std::nullopt;
  std::string_view rest = plain;
  if (rest[0] == '+') rest.remove_prefix(1);
  if (rest.empty() || rest[0] == '+' || (rest != plain && rest[0] == '-')) return std::nullopt;
  if (rest.find('(') != std::string_view::npos) return std::nullopt;  // nan(...) of C
  double value = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
  if (end != rest.data() + rest.size()) return std::nullopt;
  if (error == std::errc::result_out_of_range) return std::strtod(std::string(rest).c_str(), nullptr);
  if (error != std::errc()) return std::nullopt;
  return value;
}

std::optional<Int> double_to_int(double value) {
  if (!(std::fabs(value) < 1.7e38)) return std::nullopt;
  return static_cast<Int>(value);
}

Value binary(Runtime& rt, Op op, const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) return number_op(rt, op, a, b);
  if (op == Op::mod && a.is_string()) return rt.str(percent_format(rt, a, b), a.as<Str>().markup);
  if (a.is_undefined()) rt.fail_undefined(a);
  if (b.is_undefined()) rt.fail_undefined(b);
  if (op == Op::add) {
    if (a.is_string() && b.is_string()) return concatenate(rt, a, b);
    if (a.is_sequence() && a.kind() == b.kind()) return concatenate(rt, a, b);
    if (a.is_string() || b.is_string()) {
      Runtime::fail(std::string("can only join a string to a string with +, not '") + type_name(a) +
                    "' and '" + type_name(b) + "'");
    }
  }
  if (op == Op::mul) {
    if ((a.is_string() || a.is_sequence()) && b.is_integral()) return repeat(rt, a, b.as_int());
    if ((b.is_string() || b.is_sequence()) && a.is_integral()) return repeat(rt, b, a.as_int());
  }
  bad_operands(op_text(op), a, b);
}

Value power(Runtime& rt, const Value& base, const Value& exponent) {
  rt.step();
  if (base.is_integral() && exponent.is_integral() && exponent.as_int() >= 0) {
    Int result = 1, factor = base.as_int(), left = exponent.as_int();
    if (factor == 0 || factor == 1) return Value::integer(left == 0 ? 1 : factor);
    if (factor == -1) return Value::integer(left % 2 == 0 ? 1 : -1);
    if (left > 127) overflow();
    for (; left > 0; --left) result = checked_mul(result, factor);
    return Value::integer(result);
  }
  const double b = base.as_double(), e = exponent.as_double();
  if (b == 0 && e < 0) Runtime::fail("0.0 cannot be raised to a negative power");
  if (b < 0 && std::isfinite(b) && std::isfinite(e) && std::floor(e) != e) {
    Runtime::fail("complex numbers are not supported", StatusCode::unsupported);
  }
  const double result = std::pow(b, e);
  if (std::isinf(result) && std::isfinite(b) && std::isfinite(e)) Runtime::fail("the result is too large");
  return Value::floating(result);
}

Value negate(Runtime& rt, const Value& value) {
  if (value.is_undefined()) rt.fail_undefined(value);
  if (value.is(Kind::floating)) return Value::floating(-value.as_double());
  if (!value.is_integral())
    Runtime::fail(std::string("bad operand type for unary -: '") + type_name(value) + "'");
  if (value.as_int() == kIntMin) overflow();
  return Value::integer(-value.as_int());
}

Value unary_plus(Runtime& rt, const Value& value) {
  if (value.is_undefined()) rt.fail_undefined(value);
  if (!value.is_number())
    Runtime::fail(std::string("bad operand type for unary +: '") + type_name(value) + "'");
  return value.is(Kind::boolean) ? Value::integer(value.as_int()) : value;
}

Value round_to(Runtime& rt, const Value& value, Int digits) {
  if (value.is_integral()) {
    if (digits >= 0) return Value::integer(value.as_int());
    if (digits < -38) return Value::integer(0);
    const Int unit = power(rt, Value::integer(10), Value::integer(-digits)).as_int();
    const Int down = floor_divide(value.as_int(), unit), rest = modulo(value.as_int(), unit);
    const bool up =
        rest > unit / 2 || (rest == unit / 2 && modulo(down, 2) != 0);  // half to even; unit is even
    return Value::integer(checked_mul(up ? down + 1 : down, unit));
  }
  const double number = value.as_double();
  if (!std::isfinite(number) || digits > 330) return value;
  if (digits < -330) return Value::floating(std::copysign(0.0, number));
  if (digits >= 0) {
    char buffer[800];  // the C library rounds the exact binary value half to even, as Python does
    std::snprintf(buffer, sizeof(buffer), "%.*f", static_cast<int>(digits), number);
    return Value::floating(std::strtod(buffer, nullptr));
  }
  const double unit = std::pow(10.0, static_cast<double>(-digits));
  return Value::floating(std::nearbyint(number / unit) * unit);
}

}  // namespace fovea::jinja
