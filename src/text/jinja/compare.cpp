// Equality, order, identity, hashing and membership.
#include <algorithm>
#include <cmath>

#include "text/jinja/python.h"

namespace fovea::jinja {

namespace {

// -1, 0, 1; 2 when there is no order (NaN). Exact for every pair of int and float.
int compare_int_double(Int a, double b) {
  if (std::isnan(b)) return 2;
  if (b >= 1.7e38) return -1;
  if (b <= -1.7e38) return 1;
  const double whole = std::floor(b);
  const Int whole_int = static_cast<Int>(whole);
  if (a != whole_int) return a < whole_int ? -1 : 1;
  return b > whole ? -1 : 0;
}

int compare_numbers(const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) return a.as_int() < b.as_int() ? -1 : a.as_int() > b.as_int();
  if (a.is_integral()) return compare_int_double(a.as_int(), b.as_double());
  if (b.is_integral()) {
    const int reversed = compare_int_double(b.as_int(), a.as_double());
    return reversed == 2 ? 2 : -reversed;
  }
  const double x = a.as_double(), y = b.as_double();
  return std::isnan(x) || std::isnan(y) ? 2 : x < y ? -1 : x > y;
}

bool identical_or_equal(Runtime& rt, const Value& a, const Value& b) {  // as containers compare their items
  return (a.object() != nullptr && a.object() == b.object() && a.kind() == b.kind()) || equal(rt, a, b);
}

bool equal_dicts(Runtime& rt, const Dict& a, const Dict& b) {
  if (a.items.size() != b.items.size()) return false;
  for (const auto& [key, value] : a.items) {
    const Value* other = nullptr;
    if (key.is_string()) {
      other = b.find(key.text());
    } else {
      for (const auto& [name, candidate] : b.items) {
        if (equal(rt, name, key)) other = &candidate;
      }
    }
    if (other == nullptr || !identical_or_equal(rt, value, *other)) return false;
  }
  return true;
}

bool equal_views(Runtime& rt, const View& a, const View& b) {
  if (a.of != b.of || a.of == ViewOf::values) return &a == &b;
  const Dict &x = a.dict.as<Dict>(), &y = b.dict.as<Dict>();
  if (x.items.size() != y.items.size()) return false;
  if (a.of == ViewOf::items) return equal_dicts(rt, x, y);
  for (const auto& [key, value] : x.items) {
    bool found = false;
    for (const auto& [name, other] : y.items) found = found || equal(rt, key, name);
    if (!found) return false;
  }
  return true;
}

bool equal_ranges(const Range& a, const Range& b) {
  if (a.count != b.count) return false;
  if (a.count == 0) return true;
  return a.start == b.start && (a.count == 1 || a.step == b.step);
}

bool holds(Order order, int sign) {  // sign: -1, 0, 1
  switch (order) {
    case Order::less:
      return sign < 0;
    case Order::less_equal:
      return sign <= 0;
    case Order::greater:
      return sign > 0;
    case Order::greater_equal:
      return sign >= 0;
  }
  return false;
}

const char* order_text(Order order) {
  switch (order) {
    case Order::less:
      return "<";
    case Order::less_equal:
      return "<=";
    case Order::greater:
      return ">";
    case Order::greater_equal:
      return ">=";
  }
  return "?";
}

bool range_contains(const Range& range, Int item) {
  const Int last = range.start + range.step * (range.count - 1);
  if (range.count == 0 || item < std::min(range.start, last) || item > std::max(range.start, last))
    return false;
  const Int offset = item - range.start;
  return offset % range.step == 0;
}

bool dict_contains(Runtime& rt, const Dict& dict, const Value& item) {
  hash(rt, item);  // an unhashable item fails
  if (item.is_string()) return dict.find(item.text()) != nullptr;
  for (const auto& [key, value] : dict.items) {
    if (equal(rt, key, item)) return true;
  }
  return false;
}

}  // namespace

bool equal(Runtime& rt, const Value& a, const Value& b) {
  rt.step();
  if (a.is_number() && b.is_number()) return compare_numbers(a, b) == 0;
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::undefined:
    case Kind::none:
      return true;
    case Kind::string:
      rt.meter().step_bytes(a.text().size());
      return a.text() == b.text();
    case Kind::list:
    case Kind::tuple:
      if (a.items().size() != b.items().size()) return false;
      for (size_t i = 0; i < a.items().size(); ++i) {
        if (!identical_or_equal(rt, a.items()[i], b.items()[i])) return false;
      }
      return true;
    case Kind::dict:
      return equal_dicts(rt, a.as<Dict>(), b.as<Dict>());
    case Kind::view:
      return equal_views(rt, a.as<View>(), b.as<View>());
    case Kind::range:
      return equal_ranges(a.as<Range>(), b.as<Range>());
    case Kind::function:
      return a.as<Function>().body == b.as<Function>().body &&
             same(a.as<Function>().self, b.as<Function>().self);
    default:
      return a.object() == b.object();
  }
}

bool ordered(Runtime& rt, const Value& a, const Value& b, Order order) {
  rt.step();
  if (a.is_number() && b.is_number()) {
    const int sign = compare_numbers(a, b);
    return sign != 2 && holds(order, sign);
  }
  if (a.is_undefined()) rt.fail_undefined(a);
  if (b.is_undefined()) rt.fail_undefined(b);
  if (a.is_string() && b.is_string()) {
    rt.meter().step_bytes(std::min(a.text().size(), b.text().size()));
    const int sign = a.text().compare(b.text());  // the order of UTF-8 bytes is the order of code points
    return holds(order, sign);
  }
  if (a.is_sequence() && a.kind() == b.kind()) {
    const std::vector<Value>&x = a.items(), &y = b.items();
    for (size_t i = 0; i < x.size() && i < y.size(); ++i) {
      if (!identical_or_equal(rt, x[i], y[i])) return ordered(rt, x[i], y[i], order);
    }
    return holds(order, x.size() < y.size() ? -1 : x.size() > y.size());
  }
  Runtime::fail(std::string("'") + order_text(order) + "' is not supported between '" + type_name(a) +
                "' and '" + type_name(b) + "'");
}

bool less(Runtime& rt, const Value& a, const Value& b) { return ordered(rt, a, b, Order::less); }

bool same(const Value& a, const Value& b) {
  if (a.kind() != b.kind()) return false;
  if (a.is_none()) return true;
  if (a.is_integral()) return a.as_int() == b.as_int();
  if (a.is(Kind::floating)) return a.as_double() == b.as_double();
  if (a.is_string() && a.text().size() <= 1) return a.text() == b.text();
  return a.object() == b.object();
}

size_t hash(Runtime& rt, const Value& value) {
  rt.step();
  switch (value.kind()) {
    case Kind::undefined:
    case Kind::none:
      return 1;
    case Kind::boolean:
    case Kind::integer:
      return std::hash<uint64_t>()(static_cast<uint64_t>(value.as_int()) * 0x9E3779B97F4A7C15u);
    case Kind::floating: {
      const auto whole = double_to_int(value.as_double());
      if (whole && static_cast<double>(*whole) == value.as_double()) return hash(rt, Value::integer(*whole));
      return std::hash<double>()(value.as_double());
    }
    case Kind::string:
      rt.meter().step_bytes(value.text().size());
      return std::hash<std::string_view>()(value.text());
    case Kind::tuple: {
      size_t all = 0x345678;
      for (const Value& item : value.items()) all = all * 1000003 ^ hash(rt, item);
      return all;
    }
    case Kind::range:
      return static_cast<size_t>(value.as<Range>().count);
    case Kind::list:
    case Kind::dict:
      Runtime::fail(std::string("a ") + type_name(value) + " cannot be a key (unhashable type)");
    case Kind::view:
      if (value.as<View>().of != ViewOf::values)
        Runtime::fail("a dict view cannot be a key (unhashable type)");
      [[fallthrough]];
    default:
      return std::hash<const void*>()(value.object());
  }
}

bool contains(Runtime& rt, const Value& container, const Value& item) {
  rt.step();
  switch (container.kind()) {
    case Kind::string:
      if (!item.is_string()) {
        Runtime::fail(std::string("'in <string>' needs a string on its left, not ") + type_name(item));
      }
      rt.meter().step_bytes(container.text().size());
      return find_text(container.text(), item.text(), 0) != std::string_view::npos;
    case Kind::dict:
      return dict_contains(rt, container.as<Dict>(), item);
    case Kind::view:
      if (container.as<View>().of == ViewOf::keys)
        return dict_contains(rt, container.as<View>().dict.as<Dict>(), item);
      break;
    case Kind::range:
      if (item.is_integral()) return range_contains(container.as<Range>(), item.as_int());
      break;
    case Kind::list:
    case Kind::tuple:
      for (const Value& candidate : container.items()) {
        if (identical_or_equal(rt, candidate, item)) return true;
      }
      return false;
    default:
      break;
  }
  const auto iterator = iterate(rt, container);
  Value candidate;
  while (iterator->next(rt, &candidate)) {
    if (identical_or_equal(rt, candidate, item)) return true;
  }
  return false;
}

}  // namespace fovea::jinja
