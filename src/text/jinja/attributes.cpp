#include "text/jinja/attributes.h"

#include <algorithm>

#include "text/jinja/ast.h"
#include "text/jinja/loop.h"
#include "text/jinja/macro.h"
#include "text/jinja/python.h"

namespace fovea::jinja {

namespace {

// Methods that exist in Python but would change the value: the sandbox makes them undefined.
bool is_refused(const Value& object, std::string_view name) {
  constexpr std::string_view kList[] = {"append", "clear", "pop",    "reverse",
                                        "insert", "sort",  "extend", "remove"};
  constexpr std::string_view kDict[] = {"clear", "pop", "popitem", "setdefault", "update"};
  if (object.is(Kind::list)) return std::find(std::begin(kList), std::end(kList), name) != std::end(kList);
  if (object.is(Kind::dict)) return std::find(std::begin(kDict), std::end(kDict), name) != std::end(kDict);
  return false;
}

std::optional<Value> macro_attribute(Runtime& rt, const Macro& macro, std::string_view name) {
  const MacroDefinition& definition = macro.definition;
  if (name == "name") return definition.name.empty() ? Value() : rt.str(definition.name);
  if (name == "catch_kwargs") return Value::boolean(definition.uses_kwargs);
  if (name == "catch_varargs") return Value::boolean(definition.uses_varargs);
  if (name == "caller") return Value::boolean(definition.uses_caller);
  if (name != "arguments") return std::nullopt;
  std::vector<Value> names;
  for (const std::string& argument : definition.parameter_names) names.push_back(rt.str(argument));
  return rt.tuple(std::move(names));
}

// What Python's getattr gives; nothing when there is no such attribute.
std::optional<Value> python_attribute(Runtime& rt, const Value& object, std::string_view name) {
  if (const Method* method = find_method(object, name))
    return rt.function(std::string(name), object, method->body);
  switch (object.kind()) {
    case Kind::list:
    case Kind::dict:
      if (!is_refused(object, name)) return std::nullopt;
      return rt.undefined("access to attribute '" + std::string(name) + "' of '" + type_name(object) +
                          "' object is unsafe: it would change the value");
    case Kind::name_space:
      for (const auto& [key, value] : object.as<Namespace>().attributes) {
        if (key == name) return value;
      }
      return std::nullopt;
    case Kind::loop:
      if (!has_loop_attribute(name)) return std::nullopt;
      return object.as<Loop>().attribute(rt, name, object);
    case Kind::macro:
      return macro_attribute(rt, object.as<Macro>(), name);
    case Kind::tuple:
      if (!object.as<Seq>().group) return std::nullopt;
      if (name == "grouper") return object.items()[0];
      if (name == "list") return object.items()[1];
      return std::nullopt;
    case Kind::range: {
      const Range& range = object.as<Range>();
      if (name == "start") return Value::integer(range.start);
      if (name == "stop") return Value::integer(range.stop);
      if (name == "step") return Value::integer(range.step);
      return std::nullopt;
    }
    case Kind::cycler:
      if (name == "current") return object.as<Cycler>().all.items()[object.as<Cycler>().at];
      if (name == "items") return object.as<Cycler>().all;
      if (name == "pos") return Value::integer(static_cast<Int>(object.as<Cycler>().at));
      return std::nullopt;
    case Kind::joiner:
      if (name == "sep") return object.as<Joiner>().separator;
      if (name == "used") return Value::boolean(object.as<Joiner>().used);
      return std::nullopt;
    case Kind::boolean:
    case Kind::integer:
    case Kind::floating:
      if (name == "real") return unary_plus(rt, object);
      if (name == "imag") return object.is(Kind::floating) ? Value::floating(0) : Value::integer(0);
      if (object.is_integral() && name == "numerator") return unary_plus(rt, object);
      if (object.is_integral() && name == "denominator") return Value::integer(1);
      return std::nullopt;
    default:
      return std::nullopt;
  }
}

std::optional<Value> python_item(Runtime& rt, const Value& object, const Value& key) {
  switch (object.kind()) {
    case Kind::dict: {
      const Dict& dict = object.as<Dict>();
      if (key.is_string()) {
        const Value* found = dict.find(key.text());
        return found != nullptr ? std::optional<Value>(*found) : std::nullopt;
      }
      for (const auto& [name, value] : dict.items) {
        if (!name.is_string() && equal(rt, name, key)) return value;
      }
      return std::nullopt;
    }
    case Kind::string:
    case Kind::list:
    case Kind::tuple:
    case Kind::range:
      return key.is_integral() ? item_at(rt, object, key.as_int()) : std::nullopt;
    default:
      return std::nullopt;
  }
}

Value missing(Runtime& rt, const Value& object, const Value& key) {
  const std::string shown =
      key.is_number() || key.is_string() ? to_repr(rt, key) : std::string(type_name(key));
  if (!key.is_string())
    return rt.undefined(std::string(type_name(object)) + " object has no element " + shown);
  return rt.undefined(std::string("'") + type_name(object) + " object' has no attribute " + shown);
}

}  // namespace

Value get_attribute(Runtime& rt, const Value& object, std::string_view name) {
  rt.step();
  if (object.is_undefined()) rt.fail_undefined(object);
  if (auto found = python_attribute(rt, object, name)) {
    if (name.starts_with("_"))
      return rt.undefined("access to attribute '" + std::string(name) + "' is unsafe");
    return *std::move(found);
  }
  if (object.is(Kind::dict)) {
    if (const Value* found = object.as<Dict>().find(name)) return *found;
  }
  return missing(rt, object, rt.str(name));
}

Value get_item(Runtime& rt, const Value& object, const Value& key) {
  rt.step();
  if (object.is_undefined()) rt.fail_undefined(object);
  if (auto found = python_item(rt, object, key)) return *std::move(found);
  if (key.is_string()) {
    if (auto found = python_attribute(rt, object, key.text())) {
      if (key.text().starts_with("_"))
        return rt.undefined("access to attribute '" + std::string(key.text()) + "' is unsafe");
      return *std::move(found);
    }
  }
  return missing(rt, object, key);
}

}  // namespace fovea::jinja
