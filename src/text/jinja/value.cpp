#include "text/jinja/value.h"

#include "text/jinja/unicode.h"

namespace fovea::jinja {

Str::Str(Meter* meter, std::string s, bool is_markup)
    : Object(meter, s.capacity() + sizeof(Str), 1), text(std::move(s)), length(count_code_points(text)), markup(is_markup) {}

std::string_view Value::text() const { return as<Str>().text; }
std::vector<Value>& Value::items() const { return as<Seq>().values; }

const Value* Dict::find(std::string_view key) const {
  if (index.empty()) {
    for (const auto& [name, value] : items) {
      if (name.is_string() && name.text() == key) return &value;
    }
    return nullptr;
  }
  const auto found = index.find(key);
  return found != index.end() ? &items[found->second].second : nullptr;
}

const Value* Dict::find(const Value& key) const {
  if (key.is_string()) return find(key.text());
  for (const auto& [name, value] : items) {
    if (key.is_integral() && name.is_integral() && name.as_int() == key.as_int()) return &value;
  }
  return nullptr;
}

const char* type_name(const Value& value) {
  constexpr const char* kNames[] = {"Undefined", "NoneType",  "bool",      "int",  "float",     "str",         "list",  "tuple",
                                    "range",     "dict view", "generator", "dict", "Namespace", "LoopContext", "Macro", "function"};
  return kNames[static_cast<size_t>(value.kind())];
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
    case Kind::range:
    case Kind::view:
      return !value.items().empty();
    case Kind::dict:
      return !value.as<Dict>().items.empty();
    default:
      return true;
  }
}

}  // namespace fovea::jinja
