// Filters over text and numbers.
#include <algorithm>
#include <cmath>

#include "text/jinja/attributes.h"
#include "text/jinja/builtins.h"
#include "text/jinja/python.h"
#include "text/jinja/unicode.h"

namespace fovea::jinja {

namespace {

// A filter that is the string method of the same name, on any value as text.
Value method(Runtime& rt, std::string_view name, const Value& value, const Args& args) {
  return find_string_method(name)->body(rt, to_str(rt, value), args);
}
Value upper(Runtime& rt, const Value& value, const Args& args) { return method(rt, "upper", value, args); }
Value lower(Runtime& rt, const Value& value, const Args& args) { return method(rt, "lower", value, args); }
Value capitalize(Runtime& rt, const Value& value, const Args& args) {
  return method(rt, "capitalize", value, args);
}

Value trim(Runtime& rt, const Value& value, const Args& args) {
  const Params params("trim", args, {"chars"}, 0);
  Args chars;
  if (params.has(0)) chars.positional.push_back(params.get(0));
  return method(rt, "strip", value, chars);
}

Value center(Runtime& rt, const Value& value, const Args& args) {
  const Params params("center", args, {"width"}, 0);
  return method(rt, "center", value, Args{{params.get(0, Value::integer(80))}, {}});
}

// Words start after white space, a hyphen or an opening bracket.
Value title(Runtime& rt, const Value& value, const Args& args) {
  const Params none("title", args, {}, 0);
  const std::string text = to_text(rt, value);
  rt.meter().step_bytes(text.size() * 8);
  const auto separates = [](char32_t cp) {
    return is_space(cp) ||
           (cp < 0x80 && std::string_view("-({[<").find(static_cast<char>(cp)) != std::string_view::npos);
  };
  std::string out;
  for (size_t pos = 0; pos < text.size();) {
    const bool separator = separates(decode(text, pos).value);
    size_t end = pos;
    while (end < text.size() && separates(decode(text, end).value) == separator)
      end += decode(text, end).bytes;
    const size_t first = decode(text, pos).bytes;
    out += change_case(std::string_view(text).substr(pos, first), Case::upper);
    out += change_case(std::string_view(text).substr(pos + first, end - pos - first), Case::lower);
    pos = end;
  }
  return rt.str(std::move(out));
}

Value replace(Runtime& rt, const Value& value, const Args& args) {
  const Params params("replace", args, {"old", "new", "count"}, 2);
  const Int count = params.is_none_or_missing(2) ? -1 : params.integer(2, -1);
  return rt.str(
      replace_text(rt, to_text(rt, value), to_text(rt, params.get(0)), to_text(rt, params.get(1)), count));
}

Value string(Runtime& rt, const Value& value, const Args& args) {
  const Params none("string", args, {}, 0);
  return to_str(rt, value);
}

Value safe(Runtime& rt, const Value& value, const Args& args) {
  const Params none("safe", args, {}, 0);
  return rt.str(to_text(rt, value), true);
}
Value escape_filter(Runtime& rt, const Value& value, const Args& args) {
  const Params none("escape", args, {}, 0);
  return escape(rt, value);
}
Value force_escape(Runtime& rt, const Value& value, const Args& args) {
  const Params none("forceescape", args, {}, 0);
  return rt.str(escape_html(rt, to_text(rt, value)), true);
}

Value format(Runtime& rt, const Value& value, const Args& args) {
  if (!args.positional.empty() && !args.named.empty()) {
    Runtime::fail("format: positional and named arguments cannot stand together");
  }
  const Value text = to_str(rt, value);
  if (args.named.empty())
    return rt.str(percent_format(rt, text, rt.tuple(args.positional)), text.as<Str>().markup);
  DictBuilder named(rt);
  for (const auto& [name, item] : args.named) named.set(rt.str(name), item);
  return rt.str(percent_format(rt, text, named.build()), text.as<Str>().markup);
}

Value indent(Runtime& rt, const Value& value, const Args& args) {
  const Params params("indent", args, {"width", "first", "blank"}, 0);
  if (value.is_undefined()) rt.fail_undefined(value);
  if (!value.is_string()) Runtime::fail(std::string("indent needs a string, not ") + type_name(value));
  std::string by;
  if (params.has(0) && params.get(0).is_string()) {
    by = std::string(params.text(0));
  } else {
    const Int width = std::max<Int>(params.integer(0, 4), 0);
    rt.check_text(static_cast<size_t>(std::min<Int>(width, INT64_MAX)));
    by = std::string(static_cast<size_t>(width), ' ');
  }
  const bool blank = params.flag(2, false);
  const Value with_end = rt.str(std::string(value.text()) + "\n");
  const Value lines = find_string_method("splitlines")->body(rt, with_end, {});
  std::string out = params.flag(1, false) ? by : "";
  for (size_t i = 0; i < lines.items().size(); ++i) {
    const std::string_view line = lines.items()[i].text();
    rt.check_text(out.size() + by.size() + line.size());
    if (i > 0) out += '\n';
    if (i > 0 && (blank || !line.empty())) out += by;
    out += line;
  }
  return rt.str(std::move(out), value.as<Str>().markup);
}

Value truncate(Runtime& rt, const Value& value, const Args& args) {
  const Params params("truncate", args, {"length", "killwords", "end", "leeway"}, 0);
  const std::optional<Int> size = length_of(value);
  const Int length = params.integer(0, 255), leeway = params.is_none_or_missing(3) ? 5 : params.integer(3, 5);
  const std::string end(params.has(2) ? params.text(2) : "...");
  const Int end_length = static_cast<Int>(count_code_points(end));
  if (length < end_length || leeway < 0) Runtime::fail("truncate: the length is too small");
  if (size && *size <= length + leeway) return value;  // a short list stays itself as well
  if (!value.is_string()) Runtime::fail(std::string("truncate needs a string, not ") + type_name(value));
  std::string_view kept =
      value.text().substr(0, byte_offset(value.text(), static_cast<size_t>(length - end_length)));
  if (!params.flag(1, false)) {
    const size_t space = kept.rfind(' ');
    if (space != std::string_view::npos) kept = kept.substr(0, space);
  }
  return piece(rt, value, std::string(kept) + end);
}

Value word_count(Runtime& rt, const Value& value, const Args& args) {
  const Params none("wordcount", args, {}, 0);
  const std::string text = to_text(rt, value);
  const Charge memory(&rt.meter(), text.size() * sizeof(char32_t));
  rt.meter().step_bytes(text.size() * 4);
  Int words = 0;
  bool in_word = false;
  for (char32_t cp : code_points(text)) {
    words += is_word(cp) && !in_word ? 1 : 0;
    in_word = is_word(cp);
  }
  return Value::integer(words);
}

std::string quote_url(std::string_view text, bool query) {
  std::string out;
  for (char c : text) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) ||
                       std::string_view("_.-~").find(c) != std::string_view::npos;
    if (plain || (c == '/' && !query)) {
      out += c;
    } else if (c == ' ' && query) {
      out += '+';
    } else {
      out += '%';
      out += "0123456789ABCDEF"[static_cast<unsigned char>(c) >> 4];
      out += "0123456789ABCDEF"[static_cast<unsigned char>(c) & 15];
    }
  }
  return out;
}

Value url_encode(Runtime& rt, const Value& value, const Args& args) {
  const Params none("urlencode", args, {}, 0);
  if (value.is_string() || !is_iterable(value)) return rt.str(quote_url(to_text(rt, value), false));
  const Value pairs = value.is(Kind::dict) ? rt.view(ViewOf::items, value) : value;
  std::vector<std::string> parts;
  for (const Value& pair : to_vector(rt, pairs)) {
    const std::vector<Value> both = to_vector(rt, pair);
    if (both.size() != 2) Runtime::fail("urlencode needs pairs of a key and a value");
    parts.push_back(quote_url(to_text(rt, both[0]), true) + "=" + quote_url(to_text(rt, both[1]), true));
  }
  return rt.str(join_texts(rt, "&", parts));
}

Value to_int(Runtime& rt, const Value& value, const Args& args) {
  const Params params("int", args, {"default", "base"}, 0);
  const Value fallback = params.get(0, Value::integer(0));
  if (value.is_undefined()) rt.fail_undefined(value);
  if (value.is_integral()) return Value::integer(value.as_int());
  if (value.is_string()) {
    const Int base = params.integer(1, 10);
    const bool valid_base = base == 0 || (base >= 2 && base <= 36);
    const auto whole = valid_base ? parse_int(value.text(), static_cast<int>(base)) : std::nullopt;
    if (whole) return Value::integer(*whole);
    const auto number = parse_float(value.text());
    if (!number || !std::isfinite(*number)) return fallback;
    const auto cut = double_to_int(*number);
    return cut ? Value::integer(*cut) : fallback;
  }
  if (!value.is(Kind::floating)) return fallback;
  const auto cut = double_to_int(value.as_double());
  if (!cut && std::isfinite(value.as_double()))
    Runtime::fail("int: the number is too big", StatusCode::resource_exhausted);
  if (!cut && std::isinf(value.as_double())) Runtime::fail("int: cannot convert float infinity to integer");
  return cut ? Value::integer(*cut) : fallback;
}

Value to_float(Runtime& rt, const Value& value, const Args& args) {
  const Params params("float", args, {"default"}, 0);
  if (value.is_undefined()) rt.fail_undefined(value);
  if (value.is_number()) return Value::floating(value.as_double());
  const auto number = value.is_string() ? parse_float(value.text()) : std::nullopt;
  return number ? Value::floating(*number) : params.get(0, Value::floating(0));
}

Value absolute(Runtime& rt, const Value& value, const Args& args) {
  const Params none("abs", args, {}, 0);
  if (value.is(Kind::floating)) return Value::floating(std::fabs(value.as_double()));
  if (!value.is_integral()) Runtime::fail(std::string("abs needs a number, not ") + type_name(value));
  return value.as_int() < 0 ? negate(rt, value) : unary_plus(rt, value);
}

Value round(Runtime& rt, const Value& value, const Args& args) {
  const Params params("round", args, {"precision", "method"}, 0);
  const std::string_view how = params.has(1) ? params.text(1) : "common";
  if (how != "common" && how != "ceil" && how != "floor")
    Runtime::fail("round: method must be common, ceil or floor");
  if (value.is_undefined()) rt.fail_undefined(value);
  if (!value.is_number()) Runtime::fail(std::string("round needs a number, not ") + type_name(value));
  if (how == "common" && params.has(0) && params.get(0).is_none()) {  // to an integer
    const auto whole = double_to_int(round_to(rt, value, 0).as_double());
    if (value.is_integral()) return Value::integer(value.as_int());
    if (!whole) Runtime::fail("round: the number is too big for an integer", StatusCode::resource_exhausted);
    return Value::integer(*whole);
  }
  const Int digits = params.integer(0, 0);
  if (how == "common") return round_to(rt, value, digits);
  const Value unit = power(rt, Value::integer(10), Value::integer(digits));
  const double scaled = binary(rt, Op::mul, value, unit).as_double();
  if (!std::isfinite(scaled)) Runtime::fail("round: cannot convert the number to an integer");
  const double whole = how == "ceil" ? std::ceil(scaled) : std::floor(scaled);
  return Value::floating((whole == 0 ? 0.0 : whole) / unit.as_double());
}

Value file_size(Runtime& rt, const Value& value, const Args& args) {
  const Params params("filesizeformat", args, {"binary"}, 0);
  const bool binary = params.flag(0, false);
  if (value.is_undefined()) rt.fail_undefined(value);
  const auto parsed = value.is_string() ? parse_float(value.text()) : std::nullopt;
  if (!value.is_number() && !parsed) Runtime::fail("filesizeformat needs a number");
  const double bytes = value.is_number() ? value.as_double() : *parsed, base = binary ? 1024 : 1000;
  if (bytes == 1) return rt.str("1 Byte");
  if (bytes < base) return rt.str(int_text(double_to_int(bytes).value_or(0)) + " Bytes");
  double unit = base;
  constexpr const char* kLetters = "kMGTPEZY";
  for (int i = 0; i < 8; ++i) {
    unit *= base;
    if (bytes >= unit && i < 7) continue;
    const std::string shown =
        to_text(rt, rt.str(percent_format(rt, rt.str("%.1f "), Value::floating(base * bytes / unit))));
    const std::string letter(1, binary && i == 0 ? 'K' : kLetters[i]);
    return rt.str(shown + letter + (binary ? "iB" : "B"));
  }
  return Value();
}

Value json(Runtime& rt, const Value& value, const Args& args) { return rt.str(to_json(rt, value, args)); }

constexpr NamedFilter kFilters[] = {
    {"abs", absolute},
    {"capitalize", capitalize},
    {"center", center},
    {"e", escape_filter},
    {"escape", escape_filter},
    {"filesizeformat", file_size},
    {"float", to_float},
    {"forceescape", force_escape},
    {"format", format},
    {"indent", indent},
    {"int", to_int},
    {"lower", lower},
    {"replace", replace},
    {"round", round},
    {"safe", safe},
    {"string", string},
    {"title", title},
    {"tojson", json},
    {"trim", trim},
    {"truncate", truncate},
    {"upper", upper},
    {"urlencode", url_encode},
    {"wordcount", word_count},
};

}  // namespace

Filter find_text_filter(std::string_view name) {
  for (const NamedFilter& row : kFilters) {
    if (row.name == name) return row.filter;
  }
  return nullptr;
}

}  // namespace fovea::jinja
