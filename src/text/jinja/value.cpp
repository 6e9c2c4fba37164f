#include "text/jinja/value.h"

#include "text/jinja/unicode.h"

namespace fovea::jinja {

Str::Str(Meter* meter, std::string s, bool is_markup)
    : Object(meter, s.capacity() + sizeof(Str), 1),
      text(std::move(s)),
      length(count_code_points(text)),
      markup(is_markup) {}

std::string_view Value::text() const { return as<Str>().text; }
const std::vector<Value>& Value::items() const { return as<Seq>().values; }

const Value* Dict::find(std::string_view key) const {
  const auto matches = [&](const Value& candidate) {
    return candidate.is_string() && candidate.text() == key;
  };
  if (index.empty()) {
    for (const auto& [name, value] : items) {
      if (matches(name)) return &value;
    }
    return nullptr;
  }
  const auto [begin, end] = index.equal_range(std::hash<std::string_view>()(key));
  for (auto it = begin; it != end; ++it) {
    if (matches(items[it->second].first)) return &items[it->second].second;
  }
  return nullptr;
}

const char* type_name(const Value& value) {
  switch (value.kind()) {
    case Kind::undefined:
      return "Undefined";
    case Kind::none:
      return "NoneType";
    case Kind::boolean:
      return "bool";
    case Kind::integer:
      return "int";
    case Kind::floating:
      return "float";
    case Kind::string:
      return "str";
    case Kind::list:
      return "list";
    case Kind::tuple:
      return "tuple";
    case Kind::dict:
      return "dict";
    case Kind::range:
      return "range";
    case Kind::view: {
      const ViewOf of = value.as<View>().of;
      return of == ViewOf::keys ? "dict_keys" : of == ViewOf::values ? "dict_values" : "dict_items";
    }
    case Kind::iterator:
      return "generator";
    case Kind::name_space:
      return "Namespace";
    case Kind::loop:
      return "LoopContext";
    case Kind::cycler:
      return "Cycler";
    case Kind::joiner:
      return "Joiner";
    case Kind::macro:
      return "Macro";
    case Kind::function:
      return "function";
  }
  return "object";
}

bool truthy(const Value& value) {
  switch (value.kind()) {
    case Kind::undefined:
    case Kind::none:
      return false;
    case Kind::boolean:
    case Kind::integer:
      return value.as_int() != 0;
    case Kind::floating:
      return value.as_double() != 0;
    case Kind::string:
      return !value.text().empty();
    case Kind::list:
    case Kind::tuple:
      return !value.items().empty();
    case Kind::dict:
      return !value.as<Dict>().items.empty();
    case Kind::view:
      return !value.as<View>().dict.as<Dict>().items.empty();
    case Kind::range:
      return value.as<Range>().count != 0;
    default:
      return true;
  }
}

}  // namespace fovea::jinja
