// obj.name and obj[key], in the order of jinja2's immutable sandbox; the methods of strings and dicts.
#include <algorithm>

#include "text/jinja/loop.h"
#include "text/jinja/python.h"
#include "text/jinja/unicode.h"

namespace fovea::jinja {

namespace {

template <Case how>
Value cased(Runtime& rt, const Value& self, const Args& args) {
  const Params none("upper, lower, title or capitalize", args, {});
  rt.meter().step_bytes(self.text().size() * 4);
  return rt.str(change_case(self.text(), how));
}

template <bool left, bool right>
Value strip(Runtime& rt, const Value& self, const Args& args) {
  const Params params("strip", args, {"chars"});
  std::string_view text = self.text();
  rt.meter().step_bytes(text.size());
  if (!params.has(0)) return rt.str(strip_space(text, left, right));
  const Charge memory(&rt.meter(), params.text(0).size() * sizeof(std::string_view));
  const std::vector<std::string_view> chars = letters(params.text(0));
  const auto dropped = [&](std::string_view letter) {
    rt.step(1 + static_cast<int64_t>(chars.size() / 16));
    return std::find(chars.begin(), chars.end(), letter) != chars.end();
  };
  while (left && !text.empty()) {
    const size_t bytes = decode(text, 0).bytes;
    if (!dropped(text.substr(0, bytes))) break;
    text.remove_prefix(bytes);
  }
  while (right && !text.empty()) {
    const size_t bytes = decode_last(text).bytes;
    if (!dropped(text.substr(text.size() - bytes))) break;
    text.remove_suffix(bytes);
  }
  return rt.str(text);
}

// Splitting at white space: words, and where the limit is reached the rest.
Value split_space(Runtime& rt, std::string_view text, Int limit) {
  std::vector<Value> parts;
  for (text = strip_space(text, true, false); !text.empty(); text = strip_space(text, true, false)) {
    size_t end = 0;
    const bool rest = limit >= 0 && static_cast<Int>(parts.size()) == limit;
    while (end < text.size() && (rest || !is_space(decode(text, end).value))) end += decode(text, end).bytes;
    parts.push_back(rt.str(text.substr(0, end)));
    text.remove_prefix(end);
  }
  return rt.list(std::move(parts));
}

std::string_view separator_of(const Params& params) {
  const std::string_view separator = params.text(0);
  if (separator.empty()) Runtime::fail("empty separator");
  return separator;
}

Value split(Runtime& rt, const Value& self, const Args& args) {
  const Params params("split", args, {"sep", "maxsplit"});
  const Int limit = params.integer(1, -1);
  const std::string_view text = self.text();
  rt.meter().step_bytes(text.size());
  if (!params.has(0)) return split_space(rt, text, limit);
  const std::string_view separator = separator_of(params);
  std::vector<Value> parts;
  size_t from = 0;
  while (limit < 0 || static_cast<Int>(parts.size()) < limit) {
    const size_t found = find_text(text, separator, from);
    if (found == std::string_view::npos) break;
    parts.push_back(rt.str(text.substr(from, found - from)));
    from = found + separator.size();
  }
  parts.push_back(rt.str(text.substr(from)));
  return rt.list(std::move(parts));
}

Value rsplit(Runtime& rt, const Value& self, const Args& args) {
  const Params params("rsplit", args, {"sep", "maxsplit"}, 1);
  const Int limit = params.integer(1, -1);
  std::string_view rest = self.text();
  const std::string_view separator = separator_of(params);
  std::vector<Value> parts;
  while (limit < 0 || static_cast<Int>(parts.size()) < limit) {
    rt.meter().step_bytes(rest.size());
    const size_t found = rfind_text(rest, separator);
    if (found == std::string_view::npos) break;
    parts.push_back(rt.str(rest.substr(found + separator.size())));
    rest = rest.substr(0, found);
  }
  parts.push_back(rt.str(rest));
  std::reverse(parts.begin(), parts.end());
  return rt.list(std::move(parts));
}

template <bool last>
Value find(Runtime& rt, const Value& self, const Args& args) {
  const Params params("find", args, {"sub"}, 1);
  rt.meter().step_bytes(self.text().size());
  const size_t found = last ? rfind_text(self.text(), params.text(0)) : find_text(self.text(), params.text(0), 0);
  if (found == std::string_view::npos) return Value::integer(-1);
  return Value::integer(static_cast<Int>(count_code_points(self.text().substr(0, found))));
}

Value count(Runtime& rt, const Value& self, const Args& args) {
  const Params params("count", args, {"sub"}, 1);
  const std::string_view needle = separator_of(params);
  rt.meter().step_bytes(self.text().size());
  Int found = 0;
  for (size_t at = 0; (at = find_text(self.text(), needle, at)) != std::string_view::npos; at += needle.size()) ++found;
  return Value::integer(found);
}

template <bool ends>
Value starts_or_ends(Runtime&, const Value& self, const Args& args) {
  const Params params(ends ? "endswith" : "startswith", args, {"affix"}, 1);
  const auto matches = [&](const Value& affix) {
    if (!affix.is_string()) Runtime::fail(std::string("startswith and endswith need a string, not ") + type_name(affix));
    return ends ? self.text().ends_with(affix.text()) : self.text().starts_with(affix.text());
  };
  const Value given = params.get(0);
  if (!given.is(Kind::tuple)) return Value::boolean(matches(given));
  return Value::boolean(std::any_of(given.items().begin(), given.items().end(), matches));
}

Value replace(Runtime& rt, const Value& self, const Args& args) {
  const Params params("replace", args, {"old", "new", "count"}, 2);
  return rt.str(replace_text(rt, self.text(), params.text(0), params.text(1), params.integer(2, -1)));
}

Value join(Runtime& rt, const Value& self, const Args& args) {
  const Params params("join", args, {"iterable"}, 1);
  std::vector<std::string> parts;
  size_t bytes = 0;
  for (const Value& item : to_vector(rt, params.get(0))) {
    if (!item.is_string()) Runtime::fail(std::string("join(): every item must be a string, not ") + type_name(item));
    rt.check_text(bytes += item.text().size());
    parts.emplace_back(item.text());
  }
  return rt.str(join_texts(rt, self.text(), parts));
}

// '{} and {}'.format(a, b): plain fields in order, nothing else.
Value format(Runtime& rt, const Value& self, const Args& args) {
  const std::string_view text = self.text();
  std::string out;
  size_t used = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const std::string_view two = text.substr(i, 2);
    if (two == "{}") {
      if (used >= args.positional.size()) Runtime::fail("format(): there are more fields than values");
      out += to_text(rt, args.positional[used++]);
      rt.check_text(out.size());
      ++i;
    } else if (two == "{{" || two == "}}") {
      out += text[i++];
    } else if (text[i] == '{' || text[i] == '}') {
      Runtime::fail("format(): only the fields {} are supported", StatusCode::unsupported);
    } else {
      out += text[i];
    }
  }
  return rt.str(std::move(out));
}

Value get(Runtime&, const Value& self, const Args& args) {
  const Params params("get", args, {"key", "default"}, 1);
  const Value* found = self.as<Dict>().find(params.get(0));
  return found != nullptr ? *found : params.get(1);
}

template <bool keys, bool values>
Value view(Runtime& rt, const Value& self, const Args& args) {
  const Params none("items, keys or values", args, {});
  std::vector<Value> all;
  for (const auto& [key, value] : self.as<Dict>().items) {
    all.push_back(keys && values ? rt.tuple({key, value}) : keys ? key : value);
  }
  return rt.seq(Kind::view, std::move(all));
}

struct Method {
  std::string_view name;
  Function::Body body;
};
constexpr Method kString[] = {{"capitalize", cased<Case::capitalize>},
                              {"count", count},
                              {"endswith", starts_or_ends<true>},
                              {"find", find<false>},
                              {"format", format},
                              {"join", join},
                              {"lower", cased<Case::lower>},
                              {"lstrip", strip<true, false>},
                              {"replace", replace},
                              {"rfind", find<true>},
                              {"rsplit", rsplit},
                              {"rstrip", strip<false, true>},
                              {"split", split},
                              {"startswith", starts_or_ends<false>},
                              {"strip", strip<true, true>},
                              {"title", cased<Case::title>},
                              {"upper", cased<Case::upper>}};
constexpr Method kDict[] = {{"get", get}, {"items", view<true, true>}, {"keys", view<true, false>}, {"values", view<false, true>}};

// Methods of a Python dict that are not here: they come before an item of that name, so that the item must not be found.
constexpr std::string_view kOtherDict[] = {"clear", "copy", "fromkeys", "pop", "popitem", "setdefault", "update"};

std::optional<Value> attribute(Runtime& rt, const Value& object, std::string_view name) {
  if (name.starts_with("_")) return std::nullopt;  // the sandbox hides them
  if (const Function::Body method = find_method(object, name)) return rt.function(object, method);
  if (object.is(Kind::dict) && std::find(std::begin(kOtherDict), std::end(kOtherDict), name) != std::end(kOtherDict)) {
    return rt.undefined("the method '" + std::string(name) + "' of a dict is not supported");
  }
  if (object.is(Kind::loop)) return object.as<Loop>().attribute(rt, name);
  if (object.is(Kind::name_space)) {
    rt.meter().step_search(object.as<Namespace>().attributes.size());
    for (const auto& [key, value] : object.as<Namespace>().attributes) {
      if (key == name) return value;
    }
  }
  return std::nullopt;
}

std::optional<Value> item(const Value& object, const Value& key) {
  if (object.is(Kind::dict)) {
    const Value* found = object.as<Dict>().find(key);
    return found != nullptr ? std::optional<Value>(*found) : std::nullopt;
  }
  if ((!object.is_sequence() && !object.is(Kind::range)) || !key.is_integral()) return std::nullopt;
  const auto length = static_cast<Int>(object.items().size());
  const Int at = key.as_int() < 0 ? key.as_int() + length : key.as_int();
  if (at < 0 || at >= length) return std::nullopt;
  return object.items()[static_cast<size_t>(at)];
}

Value missing(Runtime& rt, const Value& object, const Value& key) {
  const std::string shown = key.is_number() || key.is_string() ? to_repr(rt, key) : std::string(type_name(key));
  if (!key.is_string()) return rt.undefined(std::string(type_name(object)) + " object has no element " + shown);
  return rt.undefined(std::string("'") + type_name(object) + " object' has no attribute " + shown);
}

}  // namespace

Function::Body find_method(const Value& object, std::string_view name) {
  if (object.is_string()) {
    for (const Method& method : kString) {
      if (method.name == name) return method.body;
    }
  }
  if (object.is(Kind::dict)) {
    for (const Method& method : kDict) {
      if (method.name == name) return method.body;
    }
  }
  return nullptr;
}

Value get_attribute(Runtime& rt, const Value& object, std::string_view name) {
  rt.step();
  if (object.is_undefined()) rt.fail_undefined(object);
  if (auto found = attribute(rt, object, name)) return *std::move(found);
  const Value key = rt.str(name);
  if (auto found = item(object, key)) return *std::move(found);
  return missing(rt, object, key);
}

Value get_item(Runtime& rt, const Value& object, const Value& key) {
  rt.step();
  if (object.is_undefined()) rt.fail_undefined(object);
  if (object.is_string() && key.is_integral()) {
    const Value letter = slice(rt, object, key, key.as_int() == -1 ? Value() : Value::integer(key.as_int() + 1), Value());
    return letter.text().empty() ? missing(rt, object, key) : letter;
  }
  if (auto found = item(object, key)) return *std::move(found);
  if (key.is_string()) {
    if (auto found = attribute(rt, object, key.text())) return *std::move(found);
  }
  return missing(rt, object, key);
}

}  // namespace fovea::jinja
