// The filters.
#include <algorithm>
#include <cmath>

#include "text/jinja/builtins.h"
#include "text/jinja/python.h"
#include "text/jinja/unicode.h"

namespace fovea::jinja {

namespace {

// A filter that is the string method of the same name, on any value as text.
Value method(Runtime& rt, std::string_view name, const Value& value, const Args& args) {
  const Value text = value.is_string() ? value : rt.str(to_text(rt, value));
  return find_method(text, name)(rt, text, args);
}
Value upper(Runtime& rt, const Value& value, const Args& args) { return method(rt, "upper", value, args); }
Value lower(Runtime& rt, const Value& value, const Args& args) { return method(rt, "lower", value, args); }
// Words start after white space, a hyphen or an opening bracket, unlike those of str.title().
Value title(Runtime& rt, const Value& value, const Args& args) {
  const Params none("title", args, {});
  std::string out;
  bool starts = true;
  for (const Value& letter : to_vector(rt, rt.str(to_text(rt, value)))) {
    out += change_case(letter.text(), starts ? Case::upper : Case::lower);
    starts = is_space(decode(letter.text(), 0).value) || std::string_view("-({[<").find(letter.text()) != std::string_view::npos;
  }
  return rt.str(std::move(out));
}
Value capitalize(Runtime& rt, const Value& value, const Args& args) { return method(rt, "capitalize", value, args); }
Value trim(Runtime& rt, const Value& value, const Args& args) { return method(rt, "strip", value, args); }

Value replace(Runtime& rt, const Value& value, const Args& args) {
  const Params params("replace", args, {"old", "new", "count"}, 2);
  return rt.str(replace_text(rt, to_text(rt, value), to_text(rt, params.get(0)), to_text(rt, params.get(1)),
                             params.has(2) ? params.integer(2, -1) : -1));
}

Value string(Runtime& rt, const Value& value, const Args& args) {
  const Params none("string", args, {});
  return value.is_string() ? value : rt.str(to_text(rt, value));
}

Value safe(Runtime& rt, const Value& value, const Args& args) {
  const Params none("safe", args, {});
  return rt.str(to_text(rt, value), true);
}

// '%s' | format(value): %s and %% alone.
Value format(Runtime& rt, const Value& value, const Args& args) {
  const std::string text = to_text(rt, value);
  std::string out;
  size_t used = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char letter = i + 1 < text.size() ? text[i + 1] : 0;
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    if (letter != 's' && letter != '%') Runtime::fail("format: only %s and %% are supported", StatusCode::unsupported);
    if (letter == 's' && used == args.positional.size()) Runtime::fail("format: not enough arguments");
    out += letter == 's' ? to_text(rt, args.positional[used++]) : "%";
    rt.check_text(out.size());
    ++i;
  }
  if (used != args.positional.size() || !args.named.empty()) Runtime::fail("format: not all arguments are used");
  return rt.str(std::move(out));
}

Value indent(Runtime& rt, const Value& value, const Args& args) {
  const Params params("indent", args, {"width", "first", "blank"});
  if (!value.is_string()) Runtime::fail(std::string("indent needs a string, not ") + type_name(value));
  const auto width = static_cast<size_t>(std::max<Int>(params.integer(0, 4), 0));
  rt.check_text(width);
  const std::string by(width, ' ');
  std::string out = params.flag(1) ? by : "";
  const std::string_view text = value.text();
  if (text.find_first_of("\r\v\f") != std::string_view::npos) {
    Runtime::fail("indent of a text with line ends other than \\n is not supported", StatusCode::unsupported);
  }
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    rt.check_text(out.size() + by.size() + line.size());
    if (begin > 0) out += '\n';
    if (begin > 0 && (params.flag(2) || !line.empty())) out += by;
    out += line;
    begin = end + 1;
  }
  return rt.str(std::move(out));
}

Value to_int(Runtime& rt, const Value& value, const Args& args) {
  const Params params("int", args, {"default"});
  if (value.is_undefined()) rt.fail_undefined(value);
  if (value.is_integral()) return Value::integer(value.as_int());
  const auto whole = value.is_string() ? parse_int(value.text()) : std::nullopt;
  if (whole) return Value::integer(*whole);
  const std::optional<double> number = value.is(Kind::floating) ? value.as_double()
                                       : value.is_string()      ? parse_float(value.text())
                                                                : std::nullopt;
  if (!number || !(std::fabs(*number) < 9.2e18)) return params.get(0, Value::integer(0));
  return Value::integer(static_cast<Int>(*number));
}

Value json(Runtime& rt, const Value& value, const Args& args) { return rt.str(to_json(rt, value, args)); }

Value length(Runtime&, const Value& value, const Args& args) {
  const Params none("length", args, {});
  if (const auto count = length_of(value)) return Value::integer(*count);
  Runtime::fail(std::string("a value of type '") + type_name(value) + "' has no length");
}

Value default_value(Runtime& rt, const Value& value, const Args& args) {
  const Params params("default", args, {"default_value", "boolean"});
  const bool replaced = value.is_undefined() || (params.flag(1) && !truthy(value));
  return replaced ? params.get(0, rt.str("")) : value;
}

Value first(Runtime& rt, const Value& value, const Args& args) {
  const Params none("first", args, {});
  const std::vector<Value> all = to_vector(rt, value);
  return all.empty() ? rt.undefined("no first item, sequence was empty") : all.front();
}
Value last(Runtime& rt, const Value& value, const Args& args) {
  const Params none("last", args, {});
  if (value.is(Kind::iterator)) Runtime::fail("'generator' is not reversible");
  const std::vector<Value> all = to_vector(rt, value);
  return all.empty() ? rt.undefined("no last item, sequence was empty") : all.back();
}

Value list(Runtime& rt, const Value& value, const Args& args) {
  const Params none("list", args, {});
  return rt.list(to_vector(rt, value));
}

Value reverse(Runtime& rt, const Value& value, const Args& args) {
  const Params none("reverse", args, {});
  if (value.is_string()) return slice(rt, value, Value(), Value(), Value::integer(-1));
  std::vector<Value> all = to_vector(rt, value);
  std::reverse(all.begin(), all.end());
  return rt.seq(Kind::iterator, std::move(all));
}

// item.a.0.b of a path "a.0.b" (numbers are indices); the item itself for None.
Value by_path(Runtime& rt, Value item, const Value& path) {
  if (path.is_none()) return item;
  if (!path.is_string()) return get_item(rt, item, path);
  std::string_view rest = path.text();
  for (bool more = true; more;) {
    const size_t dot = std::min(rest.find('.'), rest.size());
    const std::string_view part = rest.substr(0, dot);
    const bool digits = !part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos;
    item = get_item(rt, item, digits ? Value::integer(*parse_int(part)) : rt.str(part));
    more = dot < rest.size();
    if (more) rest.remove_prefix(dot + 1);
  }
  return item;
}

Value join(Runtime& rt, const Value& value, const Args& args) {
  const Params params("join", args, {"d", "attribute"});
  std::vector<std::string> parts;
  size_t bytes = 0;
  for (const Value& item : to_vector(rt, value)) {
    parts.push_back(to_text(rt, by_path(rt, item, params.get(1))));
    rt.check_text(bytes += parts.back().size());
  }
  return rt.str(join_texts(rt, params.has(0) ? to_text(rt, params.get(0)) : "", parts));
}

Value items(Runtime& rt, const Value& value, const Args& args) {
  const Params none("items", args, {});
  if (value.is_undefined()) return rt.seq(Kind::iterator, {});
  if (!value.is(Kind::dict)) Runtime::fail("items: can only get item pairs from a mapping");
  return rt.seq(Kind::iterator, find_method(value, "items")(rt, value, {}).items());
}

Value lower_if_text(Runtime& rt, const Value& value) { return value.is_string() ? lower(rt, value, {}) : value; }

// Stable, by keys that are computed once.
std::vector<Value> sort_by(Runtime& rt, std::vector<std::pair<Value, Value>> keyed, bool backwards) {
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return backwards ? less(rt, b.first, a.first) : less(rt, a.first, b.first);
  });
  std::vector<Value> out;
  for (auto& [key, value] : keyed) out.push_back(std::move(value));
  return out;
}

Value sort(Runtime& rt, const Value& value, const Args& args) {
  const Params params("sort", args, {"reverse", "case_sensitive", "attribute"});
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& item : to_vector(rt, value)) {
    const Value key = by_path(rt, item, params.get(2));
    keyed.emplace_back(params.flag(1) ? key : lower_if_text(rt, key), item);
  }
  return rt.list(sort_by(rt, std::move(keyed), params.flag(0)));
}

Value dict_sort(Runtime& rt, const Value& value, const Args& args) {
  const Params params("dictsort", args, {"case_sensitive"});
  if (value.is_undefined()) rt.fail_undefined(value);
  if (!value.is(Kind::dict)) Runtime::fail(std::string("dictsort needs a dict, not ") + type_name(value));
  std::vector<std::pair<Value, Value>> keyed;
  for (const auto& [key, item] : value.as<Dict>().items) {
    keyed.emplace_back(params.flag(0) ? key : lower_if_text(rt, key), rt.tuple({key, item}));
  }
  return rt.list(sort_by(rt, std::move(keyed), false));
}

Value unique(Runtime& rt, const Value& value, const Args& args) {
  const Params params("unique", args, {"case_sensitive", "attribute"});
  std::vector<Value> keys, kept;
  for (const Value& item : to_vector(rt, value)) {
    const Value part = by_path(rt, item, params.get(1));
    const Value key = params.flag(0) ? part : lower_if_text(rt, part);
    if (std::any_of(keys.begin(), keys.end(), [&](const Value& seen) { return equal(rt, seen, key); })) continue;
    keys.push_back(key);
    kept.push_back(item);
  }
  return rt.seq(Kind::iterator, std::move(kept));
}

template <bool most>
Value least_or_most(Runtime& rt, const Value& value, const Args& args) {
  const Params params(most ? "max" : "min", args, {"case_sensitive", "attribute"});
  Value best, best_key;
  bool found = false;
  for (const Value& item : to_vector(rt, value)) {
    const Value part = by_path(rt, item, params.get(1));
    const Value key = params.flag(0) ? part : lower_if_text(rt, part);
    if (found && !(most ? less(rt, best_key, key) : less(rt, key, best_key))) continue;
    best = item;
    best_key = key;
    found = true;
  }
  return found ? best : rt.undefined("no aggregated item, sequence was empty");
}

// The arguments after the first `count`.
Args after(const Args& args, size_t count) {
  Args rest = args;
  rest.positional.erase(rest.positional.begin(), rest.positional.begin() + static_cast<std::ptrdiff_t>(count));
  return rest;
}

Value map(Runtime& rt, const Value& value, const Args& args) {
  if (!truthy(value)) return rt.seq(Kind::iterator, {});
  std::vector<Value> mapped;
  const Args none;
  const Params by("map", args.positional.empty() ? args : none, {"attribute", "default"});
  if (args.positional.empty() && by.get(0).is_none()) Runtime::fail("map requires a filter argument");
  for (const Value& item : to_vector(rt, value)) {
    if (!args.positional.empty()) {
      if (!args.positional[0].is_string()) Runtime::fail("map: the name of the filter must be a string");
      mapped.push_back(call_filter(rt, args.positional[0].text(), item, after(args, 1)));
      continue;
    }
    const Value part = by_path(rt, item, by.get(0));
    mapped.push_back(part.is_undefined() && by.has(1) ? by.get(1) : part);
  }
  return rt.seq(Kind::iterator, std::move(mapped));
}

// select, reject, selectattr, rejectattr: the items whose value (or attribute) passes a test, or is true.
template <bool by_attribute, bool keep>
Value choose(Runtime& rt, const Value& value, const Args& args) {
  constexpr size_t kUsed = by_attribute ? 1 : 0;
  if (!truthy(value)) return rt.seq(Kind::iterator, {});
  const std::vector<Value>& given = args.positional;
  if (given.size() < kUsed) Runtime::fail("missing parameter for attribute name");
  if (given.size() > kUsed && !given[kUsed].is_string()) Runtime::fail("the name of a test must be a string");
  std::vector<Value> chosen;
  for (const Value& item : to_vector(rt, value)) {
    const Value tested = by_attribute ? by_path(rt, item, given[0]) : item;
    const bool passes = given.size() > kUsed ? call_test(rt, given[kUsed].text(), tested, after(args, kUsed + 1)) : truthy(tested);
    if (passes == keep) chosen.push_back(item);
  }
  return rt.seq(Kind::iterator, std::move(chosen));
}

constexpr std::pair<std::string_view, Filter> kFilters[] = {
    {"capitalize", capitalize},
    {"count", length},
    {"d", default_value},
    {"default", default_value},
    {"dictsort", dict_sort},
    {"first", first},
    {"format", format},
    {"indent", indent},
    {"int", to_int},
    {"items", items},
    {"join", join},
    {"last", last},
    {"length", length},
    {"list", list},
    {"lower", lower},
    {"map", map},
    {"max", least_or_most<true>},
    {"min", least_or_most<false>},
    {"reject", choose<false, false>},
    {"rejectattr", choose<true, false>},
    {"replace", replace},
    {"reverse", reverse},
    {"safe", safe},
    {"select", choose<false, true>},
    {"selectattr", choose<true, true>},
    {"sort", sort},
    {"string", string},
    {"title", title},
    {"tojson", json},
    {"trim", trim},
    {"unique", unique},
    {"upper", upper},
};

}  // namespace

Filter find_filter(std::string_view name) {
  for (const auto& [known, filter] : kFilters) {
    if (known == name) return filter;
  }
  return nullptr;
}

Value call_filter(Runtime& rt, std::string_view name, const Value& value, const Args& args) {
  const Filter filter = find_filter(name);
  if (filter == nullptr) Runtime::fail("no filter named '" + std::string(name) + "'");
  rt.step();
  return filter(rt, value, args);
}

}  // namespace fovea::jinja
