// The tests of `is`.
#include "text/jinja/attributes.h"
#include "text/jinja/builtins.h"
#include "text/jinja/python.h"

namespace fovea::jinja {

namespace {

using Check = bool (*)(const Value&);

template <Check check>
bool plain(Runtime&, const Value& value, const Args& args) {
  const Params none("test", args, {}, 0);
  return check(value);
}

bool is_defined(const Value& value) { return !value.is_undefined(); }
bool is_undefined(const Value& value) { return value.is_undefined(); }
bool is_none(const Value& value) { return value.is_none(); }
bool is_boolean(const Value& value) { return value.is(Kind::boolean); }
bool is_true(const Value& value) { return value.is(Kind::boolean) && truthy(value); }
bool is_false(const Value& value) { return value.is(Kind::boolean) && !truthy(value); }
bool is_integer(const Value& value) { return value.is(Kind::integer); }
bool is_float(const Value& value) { return value.is(Kind::floating); }
bool is_number(const Value& value) { return value.is_number(); }
bool is_string(const Value& value) { return value.is_string(); }
bool is_mapping(const Value& value) { return value.is(Kind::dict); }
bool is_escaped(const Value& value) { return value.is_string() && value.as<Str>().markup; }
bool is_sequence(const Value& value) {
  return value.is_string() || value.is_sequence() || value.is(Kind::dict) || value.is(Kind::range) ||
         value.is_undefined();
}
bool is_callable(const Value& value) {
  return value.is(Kind::function) || value.is(Kind::macro) || value.is(Kind::loop) ||
         value.is(Kind::joiner) || value.is_undefined();
}

bool remainder_is(Runtime& rt, const Value& value, const Value& by, Int wanted) {
  return equal(rt, binary(rt, Op::mod, value, by), Value::integer(wanted));
}
bool odd(Runtime& rt, const Value& value, const Args& args) {
  const Params none("odd", args, {}, 0);
  return remainder_is(rt, value, Value::integer(2), 1);
}
bool even(Runtime& rt, const Value& value, const Args& args) {
  const Params none("even", args, {}, 0);
  return remainder_is(rt, value, Value::integer(2), 0);
}
bool divisible_by(Runtime& rt, const Value& value, const Args& args) {
  return remainder_is(rt, value, Params("divisibleby", args, {"num"}, 1).get(0), 0);
}

bool text_case(Runtime& rt, const Value& value, const Args& args, const char* method) {
  const Params none(method, args, {}, 0);
  return truthy(find_string_method(method)->body(rt, to_str(rt, value), {}));
}
bool lower(Runtime& rt, const Value& value, const Args& args) {
  return text_case(rt, value, args, "islower");
}
bool upper(Runtime& rt, const Value& value, const Args& args) {
  return text_case(rt, value, args, "isupper");
}

bool same_as(Runtime&, const Value& value, const Args& args) {
  return same(value, Params("sameas", args, {"other"}, 1).get(0));
}
bool in(Runtime& rt, const Value& value, const Args& args) {
  return contains(rt, Params("in", args, {"seq"}, 1).get(0), value);
}
bool eq(Runtime& rt, const Value& value, const Args& args) {
  return equal(rt, value, Params("eq", args, {"other"}, 1, true).get(0));
}
bool ne(Runtime& rt, const Value& value, const Args& args) { return !eq(rt, value, args); }
template <Order order>
bool compare(Runtime& rt, const Value& value, const Args& args) {
  return ordered(rt, value, Params("comparison", args, {"other"}, 1, true).get(0), order);
}

// The name of a filter or test; what cannot be a key of a dict fails.
std::string_view name_of(Runtime& rt, const Value& value, const char* test, const Args& args) {
  const Params none(test, args, {}, 0);
  hash(rt, value);
  return value.is_string() ? value.text() : std::string_view();
}
bool is_filter(Runtime& rt, const Value& value, const Args& args) {
  return find_filter(name_of(rt, value, "filter", args)) != nullptr;
}
bool is_test(Runtime& rt, const Value& value, const Args& args) {
  return find_test(name_of(rt, value, "test", args)) != nullptr;
}
bool iterable(Runtime&, const Value& value, const Args& args) {
  const Params none("iterable", args, {}, 0);
  return is_iterable(value);
}

struct Row {
  std::string_view name;
  Test test;
};
constexpr Row kTests[] = {
    {"!=", ne},
    {"<", compare<Order::less>},
    {"<=", compare<Order::less_equal>},
    {"==", eq},
    {">", compare<Order::greater>},
    {">=", compare<Order::greater_equal>},
    {"boolean", plain<is_boolean>},
    {"callable", plain<is_callable>},
    {"defined", plain<is_defined>},
    {"divisibleby", divisible_by},
    {"eq", eq},
    {"equalto", eq},
    {"escaped", plain<is_escaped>},
    {"even", even},
    {"false", plain<is_false>},
    {"filter", is_filter},
    {"float", plain<is_float>},
    {"ge", compare<Order::greater_equal>},
    {"greaterthan", compare<Order::greater>},
    {"gt", compare<Order::greater>},
    {"in", in},
    {"integer", plain<is_integer>},
    {"iterable", iterable},
    {"le", compare<Order::less_equal>},
    {"lessthan", compare<Order::less>},
    {"lower", lower},
    {"lt", compare<Order::less>},
    {"mapping", plain<is_mapping>},
    {"ne", ne},
    {"none", plain<is_none>},
    {"number", plain<is_number>},
    {"odd", odd},
    {"sameas", same_as},
    {"sequence", plain<is_sequence>},
    {"string", plain<is_string>},
    {"test", is_test},
    {"true", plain<is_true>},
    {"undefined", plain<is_undefined>},
    {"upper", upper},
};

}  // namespace

Test find_test(std::string_view name) {
  for (const Row& row : kTests) {
    if (row.name == name) return row.test;
  }
  return nullptr;
}

bool call_test(Runtime& rt, std::string_view name, const Value& value, const Args& args) {
  const Test test = find_test(name);
  if (test == nullptr) Runtime::fail("no test named '" + std::string(name) + "'");
  rt.step();
  return test(rt, value, args);
}

}  // namespace fovea::jinja
