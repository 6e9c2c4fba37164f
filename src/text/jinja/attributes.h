// obj.name and obj[key], in the order and with the refusals of jinja2's immutable sandbox; methods of
// built-in types.
#pragma once

#include <string_view>

#include "text/jinja/runtime.h"

namespace fovea::jinja {

// obj.name: a Python attribute first, then the item of that name.
Value get_attribute(Runtime& rt, const Value& object, std::string_view name);
// obj[key]: the item first, then, for a string, the attribute of that name.
Value get_item(Runtime& rt, const Value& object, const Value& key);

struct Method {
  std::string_view name;
  Function::Body body;
};
// The method of a string, list, tuple, dict, range, number ... of that name, or null.
const Method* find_method(const Value& object, std::string_view name);
const Method* find_string_method(std::string_view name);

}  // namespace fovea::jinja
