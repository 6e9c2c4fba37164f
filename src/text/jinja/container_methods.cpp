// The methods of lists, tuples, dicts, ranges, numbers, cyclers; those that would change a value are refused.
#include <algorithm>
#include <cmath>

#include "text/jinja/attributes.h"
#include "text/jinja/python.h"

namespace fovea::jinja {

namespace {

Value count(Runtime& rt, const Value& self, const Args& args) {
  const Params params("count", args, {"value"}, 1, true);
  Int found = 0;
  for (const Value& item : to_vector(rt, self)) found += equal(rt, item, params.get(0)) ? 1 : 0;
  return Value::integer(found);
}

Value index(Runtime& rt, const Value& self, const Args& args) {
  const Params params("index", args, {"value", "start", "stop"}, 1, true);
  const std::vector<Value> items = to_vector(rt, self);
  const Int length = static_cast<Int>(items.size());
  Int start = params.integer(1, 0), stop = params.integer(2, length);
  if (start < 0) start = std::max<Int>(start + length, 0);
  if (stop < 0) stop += length;
  for (Int i = start; i < std::min(stop, length); ++i) {
    if (equal(rt, items[static_cast<size_t>(i)], params.get(0))) return Value::integer(i);
  }
  Runtime::fail("index(): the value is not in the " + std::string(type_name(self)));
}

Value copy(Runtime&, const Value& self, const Args& args) {
  const Params none("copy", args, {}, 0);
  return self;
}

Value get(Runtime& rt, const Value& self, const Args& args) {
  const Params params("get", args, {"key", "default"}, 1, true);
  const Dict& dict = self.as<Dict>();
  const Value key = params.get(0);
  hash(rt, key);  // an unhashable key fails
  if (key.is_string()) {
    const Value* found = dict.find(key.text());
    return found != nullptr ? *found : params.get(1);
  }
  for (const auto& [name, value] : dict.items) {
    if (equal(rt, name, key)) return value;
  }
  return params.get(1);
}

Value items(Runtime& rt, const Value& self, const Args& args) {
  const Params none("items", args, {}, 0);
  return rt.view(ViewOf::items, self);
}
Value keys(Runtime& rt, const Value& self, const Args& args) {
  const Params none("keys", args, {}, 0);
  return rt.view(ViewOf::keys, self);
}
Value values(Runtime& rt, const Value& self, const Args& args) {
  const Params none("values", args, {}, 0);
  return rt.view(ViewOf::values, self);
}

Value from_keys(Runtime& rt, const Value&, const Args& args) {
  const Params params("fromkeys", args, {"iterable", "value"}, 1, true);
  DictBuilder builder(rt);
  for (const Value& key : to_vector(rt, params.get(0))) builder.set(key, params.get(1));
  return builder.build();
}

Value is_integer(Runtime&, const Value& self, const Args& args) {
  const Params none("is_integer", args, {}, 0);
  return Value::boolean(std::isfinite(self.as_double()) && std::floor(self.as_double()) == self.as_double());
}

Value bit_length(Runtime&, const Value& self, const Args& args) {
  const Params none("bit_length", args, {}, 0);
  Int bits = 0;
  for (Int rest = self.as_int(); rest != 0; rest /= 2) ++bits;
  return Value::integer(bits);
}

Value next_of_cycler(Runtime&, const Value& self, const Args& args) {
  const Params none("next", args, {}, 0);
  Cycler& cycler = self.as<Cycler>();
  const Value item = cycler.all.items()[cycler.at];
  cycler.at = (cycler.at + 1) % cycler.all.items().size();
  return item;
}

Value reset(Runtime&, const Value& self, const Args& args) {
  const Params none("reset", args, {}, 0);
  self.as<Cycler>().at = 0;
  return Value();
}

constexpr Method kSequence[] = {{"count", count}, {"index", index}};
constexpr Method kList[] = {{"count", count}, {"index", index}, {"copy", copy}};
constexpr Method kDict[] = {{"copy", copy},   {"fromkeys", from_keys}, {"get", get},
                            {"items", items}, {"keys", keys},          {"values", values}};
constexpr Method kFloat[] = {{"is_integer", is_integer}};
constexpr Method kInt[] = {{"bit_length", bit_length}};
constexpr Method kCycler[] = {{"next", next_of_cycler}, {"reset", reset}};

template <size_t n>
const Method* find_in(const Method (&methods)[n], std::string_view name) {
  for (const Method& method : methods) {
    if (method.name == name) return &method;
  }
  return nullptr;
}

}  // namespace

const Method* find_method(const Value& object, std::string_view name) {
  switch (object.kind()) {
    case Kind::string:
      return find_string_method(name);
    case Kind::list:
      return find_in(kList, name);
    case Kind::tuple:
    case Kind::range:
      return find_in(kSequence, name);
    case Kind::dict:
      return find_in(kDict, name);
    case Kind::boolean:
    case Kind::integer:
      return find_in(kInt, name);
    case Kind::floating:
      return find_in(kFloat, name);
    case Kind::cycler:
      return find_in(kCycler, name);
    case Kind::function:  // the global `dict` is a value with this one method
      return name == "fromkeys" && object.as<Function>().name == "dict" ? find_in(kDict, name) : nullptr;
    default:
      return nullptr;
  }
}

}  // namespace fovea::jinja
