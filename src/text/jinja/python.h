// Python's rules for values: printing, equality, order, iteration, operators, numbers as text.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/runtime.h"

namespace fovea::jinja {

// str() and repr(). `str` of an undefined value is empty.
std::string to_text(Runtime& rt, const Value& value);
std::string to_repr(Runtime& rt, const Value& value);
std::string to_json(Runtime& rt, const Value& value, const Args& args);  // the filter tojson: json.dumps

std::string float_repr(double value);
std::optional<Int> parse_int(std::string_view text);       // int(text)
std::optional<double> parse_float(std::string_view text);  // float(text)

bool equal(Runtime& rt, const Value& a, const Value& b);
bool less(Runtime& rt, const Value& a, const Value& b);                 // a < b; fails when they have no order
bool contains(Runtime& rt, const Value& container, const Value& item);  // item in container

bool is_iterable(const Value& value);
// list(value): fails if it cannot be iterated; empties an iterator.
std::vector<Value> to_vector(Runtime& rt, const Value& value);
std::optional<Int> length_of(const Value& value);  // len(), if it has one

enum class Op { add, sub, mul, div, floor_div, mod };
Value binary(Runtime& rt, Op op, const Value& a, const Value& b);
Value negate(Runtime& rt, const Value& value);

// value[start:stop:step]; the bounds may be None.
Value slice(Runtime& rt, const Value& value, const Value& start, const Value& stop, const Value& step);
// obj.name: a method first, then the item of that name.
Value get_attribute(Runtime& rt, const Value& object, std::string_view name);
// obj[key]: the item first, then, for a string, the method of that name.
Value get_item(Runtime& rt, const Value& object, const Value& key);
// The method of that name, or null (methods.cpp).
Function::Body find_method(const Value& object, std::string_view name);

size_t find_text(std::string_view text, std::string_view needle, size_t from);  // npos: none; linear time
size_t rfind_text(std::string_view text, std::string_view needle);              // npos: none; linear time
std::string replace_text(Runtime& rt, std::string_view text, std::string_view from, std::string_view to, Int count);
std::string join_texts(Runtime& rt, std::string_view separator, const std::vector<std::string>& parts);
std::string escape_html(Runtime& rt, std::string_view text);
std::string format_time(std::string_view format, std::time_t when);  // strftime, C locale, UTC

}  // namespace fovea::jinja
