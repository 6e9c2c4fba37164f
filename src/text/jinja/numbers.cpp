// Numbers and the operators + - * / // %: text of and from numbers, arithmetic with Python's rules.
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "text/jinja/python.h"
#include "text/jinja/unicode.h"

namespace fovea::jinja {

namespace {

[[noreturn]] void overflow() {
  Runtime::fail("an integer of the template needs more than 64 bits", StatusCode::resource_exhausted);
}

[[noreturn]] void bad_operands(Op op, const Value& a, const Value& b) {
  constexpr const char* kOps[] = {"+", "-", "*", "/", "//", "%"};
  Runtime::fail(std::string("unsupported operand types for ") + kOps[static_cast<size_t>(op)] + ": '" + type_name(a) + "' and '" +
                type_name(b) + "'");
}

// a // b and a % b: the rest has the sign of b.
Int divide(Op op, Int a, Int b) {
  if (b == 0) Runtime::fail("division by zero");
  if (b == -1) {
    if (op == Op::floor_div && a == INT64_MIN) overflow();
    return op == Op::floor_div ? -a : 0;
  }
  const Int rest = a % b;
  const bool adjust = rest != 0 && (rest < 0) != (b < 0);
  if (op == Op::mod) return adjust ? rest + b : rest;
  return adjust ? a / b - 1 : a / b;
}

Value number_op(Op op, const Value& a, const Value& b) {
  if (op == Op::div) {
    if (b.as_double() == 0) Runtime::fail("division by zero");
    return Value::floating(a.as_double() / b.as_double());
  }
  if (a.is_integral() && b.is_integral()) {
    const Int x = a.as_int(), y = b.as_int();
    Int result = 0;
    if (op == Op::floor_div || op == Op::mod) return Value::integer(divide(op, x, y));
    if (op == Op::add   ? __builtin_add_overflow(x, y, &result)
        : op == Op::sub ? __builtin_sub_overflow(x, y, &result)
                        : __builtin_mul_overflow(x, y, &result)) {
      overflow();
    }
    return Value::integer(result);
  }
  const double x = a.as_double(), y = b.as_double();
  if (op == Op::add) return Value::floating(x + y);
  if (op == Op::sub) return Value::floating(x - y);
  if (op == Op::mul) return Value::floating(x * y);
  Runtime::fail("// and % of floats are not supported", StatusCode::unsupported);
}

// text * count, list * count, tuple * count
Value repeat(Runtime& rt, const Value& what, Int count) {
  count = std::max<Int>(count, 0);
  if (what.is_string()) {
    const std::string_view text = what.text();
    size_t bytes = 0;
    if (__builtin_mul_overflow(text.size(), static_cast<size_t>(count), &bytes)) bytes = SIZE_MAX;
    rt.check_text(bytes);
    std::string all;
    all.reserve(bytes);
    for (Int i = 0; i < count && !text.empty(); ++i) all += text;
    return rt.str(std::move(all));
  }
  const std::vector<Value>& items = what.items();
  int64_t total = 0;
  if (__builtin_mul_overflow(static_cast<int64_t>(items.size()), count, &total)) total = INT64_MAX / 2;
  rt.step(std::min<int64_t>(total, INT64_MAX / 2));
  std::vector<Value> all;
  for (Int i = 0; i < count && !items.empty(); ++i) all.insert(all.end(), items.begin(), items.end());
  return rt.seq(what.kind(), std::move(all));
}

Value concatenate(Runtime& rt, const Value& a, const Value& b) {
  if (a.is_string()) {
    const bool markup = a.as<Str>().markup || b.as<Str>().markup;
    const auto part = [&](const Value& v) {
      return markup && !v.as<Str>().markup ? escape_html(rt, v.text()) : std::string(v.text());
    };
    rt.check_text(a.text().size() + b.text().size());
    return rt.str(part(a) + part(b), markup);
  }
  rt.step(static_cast<int64_t>(a.items().size() + b.items().size()));
  std::vector<Value> all = a.items();
  all.insert(all.end(), b.items().begin(), b.items().end());
  return rt.seq(a.kind(), std::move(all));
}

}  // namespace

std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific).ptr;
  std::string_view all(buffer, static_cast<size_t>(end - buffer));
  const std::string sign = all[0] == '-' ? "-" : "";
  all.remove_prefix(sign.size());
  const size_t e = all.find('e');
  const int exponent = std::atoi(std::string(all.substr(e + 1)).c_str());
  std::string digits(1, all[0]);
  if (e > 2) digits += all.substr(2, e - 2);
  const int count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {  // as repr() of Python chooses
    char tail[16];
    std::snprintf(tail, sizeof(tail), "e%c%02d", exponent < 0 ? '-' : '+', std::abs(exponent));
    return sign + digits.substr(0, 1) + (count > 1 ? "." + digits.substr(1) : "") + tail;
  }
  if (exponent < 0) return sign + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  const auto whole = static_cast<size_t>(exponent + 1);
  if (exponent + 1 >= count) return sign + digits + std::string(whole - digits.size(), '0') + ".0";
  return sign + digits.substr(0, whole) + "." + digits.substr(whole);
}

std::optional<Int> parse_int(std::string_view text) {
  text = strip_space(text);
  if (text.find('_') != std::string_view::npos && text.find_first_not_of("0123456789+-_") == std::string_view::npos) {
    Runtime::fail("the number '" + std::string(text) + "' with underscores is not supported", StatusCode::unsupported);
  }
  if (text.starts_with('+')) text.remove_prefix(1), text = text.starts_with('-') ? "" : text;
  Int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc::result_out_of_range) overflow();
  return error == std::errc() && end == text.data() + text.size() ? std::optional<Int>(value) : std::nullopt;
}

std::optional<double> parse_float(std::string_view text) {
  text = strip_space(text);
  if (text.find_first_not_of("0123456789+-.eE") != std::string_view::npos) return std::nullopt;
  if (text.starts_with('+')) text.remove_prefix(1), text = text.starts_with('-') ? "" : text;
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? std::optional<double>(value) : std::nullopt;
}

Value binary(Runtime& rt, Op op, const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) return number_op(op, a, b);
  if (a.is_undefined()) rt.fail_undefined(a);
  if (b.is_undefined()) rt.fail_undefined(b);
  if (op == Op::mod && a.is_string()) Runtime::fail("the operator % on a text is not supported", StatusCode::unsupported);
  if (op == Op::add && a.kind() == b.kind() && (a.is_string() || a.is_sequence())) return concatenate(rt, a, b);
  if (op == Op::mul && (a.is_string() || a.is_sequence()) && b.is_integral()) return repeat(rt, a, b.as_int());
  if (op == Op::mul && (b.is_string() || b.is_sequence()) && a.is_integral()) return repeat(rt, b, a.as_int());
  bad_operands(op, a, b);
}

Value negate(Runtime& rt, const Value& value) {
  if (value.is_undefined()) rt.fail_undefined(value);
  if (value.is(Kind::floating)) return Value::floating(-value.as_double());
  if (!value.is_integral()) Runtime::fail(std::string("bad operand type for unary -: '") + type_name(value) + "'");
  return number_op(Op::sub, Value::integer(0), value);
}

}  // namespace fovea::jinja
