// Python's rules for values: printing, equality, order, hashing, iteration, operators, numbers as text.
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
Value to_str(Runtime& rt, const Value& value);  // as a string value; a string (also a safe one) stays itself

std::string int_text(Int value);
std::string float_repr(double value);
std::optional<Int> parse_int(std::string_view text, int base);  // int(text, base)
std::optional<double> parse_float(std::string_view text);       // float(text)
std::optional<Int> double_to_int(double value);                 // int(value): towards zero, if it fits

bool equal(Runtime& rt, const Value& a, const Value& b);
bool less(Runtime& rt, const Value& a, const Value& b);  // a < b, fails when they have no order
enum class Order { less, less_equal, greater, greater_equal };
bool ordered(Runtime& rt, const Value& a, const Value& b, Order order);
bool same(const Value& a, const Value& b);  // `is`
size_t hash(Runtime& rt, const Value& value);
bool contains(Runtime& rt, const Value& container, const Value& item);  // item in container

// An iterator over the value (itself, if it is one); fails if it cannot be iterated.
std::shared_ptr<Iterator> iterate(Runtime& rt, const Value& value);
bool is_iterable(const Value& value);
std::vector<Value> to_vector(Runtime& rt, const Value& value);  // list(value)
Value reversed(Runtime& rt, const Value& value);                // fails where Python's reversed() does
std::optional<Int> length_of(const Value& value);               // len(), if it has one

enum class Op { add, sub, mul, div, floor_div, mod, pow };
Value binary(Runtime& rt, Op op, const Value& a, const Value& b);
Value negate(Runtime& rt, const Value& value);
Value unary_plus(Runtime& rt, const Value& value);
Value power(Runtime& rt, const Value& base, const Value& exponent);
Value round_to(Runtime& rt, const Value& value, Int digits);

// value[start:stop:step]; the bounds may be None.
Value slice(Runtime& rt, const Value& value, const Value& start, const Value& stop, const Value& step);
// value[index] of a string, list, tuple or range: null when out of range.
std::optional<Value> item_at(Runtime& rt, const Value& value, Int index);

// Text pieces: byte ranges of a string value that become strings of the same kind.
Value piece(Runtime& rt, const Value& whole, std::string_view part);
size_t find_text(std::string_view text, std::string_view needle, size_t from);  // npos: none; linear time
size_t rfind_text(std::string_view text, std::string_view needle);              // npos: none; linear time
std::string replace_text(Runtime& rt, std::string_view text, std::string_view from, std::string_view to,
                         Int count);
std::string join_texts(Runtime& rt, std::string_view separator, const std::vector<std::string>& parts);
std::string escape_html(Runtime& rt, std::string_view text);
Value escape(Runtime& rt, const Value& value);  // markupsafe.escape

std::string percent_format(Runtime& rt, const Value& format, const Value& args);  // format % args
std::string brace_format(Runtime& rt, const Value& format, const Args& args);     // format.format(...)
std::string format_time(std::string_view format, std::time_t when);               // strftime, C locale, UTC
std::string to_json(Runtime& rt, const Value& value, const Args& args);           // the filter tojson

}  // namespace fovea::jinja
