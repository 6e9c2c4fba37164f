// The tests of `is`.
#include <cstring>

#include "text/jinja/builtins.h"
#include "text/jinja/python.h"

namespace fovea::jinja {

namespace {

bool is_true(const Value& value) { return value.is(Kind::boolean) && truthy(value); }
bool is_false(const Value& value) { return value.is(Kind::boolean) && !truthy(value); }
bool is_sequence(const Value& value) {
  return value.is_string() || value.is_sequence() || value.is(Kind::dict) || value.is(Kind::range) || value.is_undefined();
}
bool is_callable(const Value& value) { return value.is(Kind::function) || value.is(Kind::macro) || value.is_undefined(); }

struct Plain {
  std::string_view name;
  bool (*holds)(const Value&);
};
constexpr Plain kPlain[] = {
    {"boolean", [](const Value& v) { return v.is(Kind::boolean); }},
    {"callable", is_callable},
    {"defined", [](const Value& v) { return !v.is_undefined(); }},
    {"false", is_false},
    {"float", [](const Value& v) { return v.is(Kind::floating); }},
    {"integer", [](const Value& v) { return v.is(Kind::integer); }},
    {"iterable", is_iterable},
    {"mapping", [](const Value& v) { return v.is(Kind::dict); }},
    {"none", [](const Value& v) { return v.is_none(); }},
    {"number", [](const Value& v) { return v.is_number(); }},
    {"sequence", is_sequence},
    {"string", [](const Value& v) { return v.is_string(); }},
    {"true", is_true},
    {"undefined", [](const Value& v) { return v.is_undefined(); }},
};

template <size_t row>
bool plain(Runtime&, const Value& value, const Args& args) {
  const Params none("test", args, {});
  return kPlain[row].holds(value);
}
template <size_t... rows>
Test plain_test(size_t row, std::index_sequence<rows...>) {
  constexpr Test kTests[] = {plain<rows>...};
  return kTests[row];
}

bool remainder_is(Runtime& rt, const Value& value, const Value& by, Int wanted) {
  return equal(rt, binary(rt, Op::mod, value, by), Value::integer(wanted));
}
Value other(const Args& args) { return Params("comparison", args, {"other"}, 1).get(0); }

struct Row {
  std::string_view name;
  Test test;
};
const Row kTests[] = {
    {"odd", [](Runtime& rt, const Value& v, const Args&) { return remainder_is(rt, v, Value::integer(2), 1); }},
    {"even", [](Runtime& rt, const Value& v, const Args&) { return remainder_is(rt, v, Value::integer(2), 0); }},
    {"divisibleby", [](Runtime& rt, const Value& v, const Args& args) { return remainder_is(rt, v, other(args), 0); }},
    {"in", [](Runtime& rt, const Value& v, const Args& args) { return contains(rt, other(args), v); }},
    {"==", [](Runtime& rt, const Value& v, const Args& args) { return equal(rt, v, other(args)); }},
    {"!=", [](Runtime& rt, const Value& v, const Args& args) { return !equal(rt, v, other(args)); }},
    {"<", [](Runtime& rt, const Value& v, const Args& args) { return less(rt, v, other(args)); }},
    {">", [](Runtime& rt, const Value& v, const Args& args) { return less(rt, other(args), v); }},
};
constexpr std::pair<std::string_view, std::string_view> kAliases[] = {
    {"eq", "=="}, {"equalto", "=="}, {"ne", "!="}, {"lt", "<"}, {"lessthan", "<"}, {"gt", ">"}, {"greaterthan", ">"}};

}  // namespace

Test find_test(std::string_view name) {
  for (const auto& [alias, of] : kAliases) {
    if (alias == name) name = of;
  }
  for (size_t row = 0; row < std::size(kPlain); ++row) {
    if (kPlain[row].name == name) return plain_test(row, std::make_index_sequence<std::size(kPlain)>());
  }
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
