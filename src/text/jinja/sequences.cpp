// Equality, order, membership, iteration, len() and slices.
#include <algorithm>
#include <cmath>

#include "text/jinja/loop.h"
#include "text/jinja/python.h"
#include "text/jinja/unicode.h"

namespace fovea::jinja {

namespace {

// Less than, equal to or greater than 0; nothing when there is no order (NaN). An int and a float meet as long doubles, which
// hold both exactly.
std::optional<int> compare_numbers(const Value& a, const Value& b) {
  const auto exact = [](const Value& v) -> long double {
    return v.is_integral() ? static_cast<long double>(v.as_int()) : static_cast<long double>(v.as_double());
  };
  const long double x = exact(a), y = exact(b);
  if (std::isnan(x) || std::isnan(y)) return std::nullopt;
  return x < y ? -1 : x > y ? 1 : 0;
}

bool same_or_equal(Runtime& rt, const Value& a, const Value& b) {  // as containers compare their items
  return (a.object() != nullptr && a.object() == b.object() && a.kind() == b.kind()) || equal(rt, a, b);
}

bool equal_dicts(Runtime& rt, const Dict& a, const Dict& b) {
  return a.items.size() == b.items.size() && std::all_of(a.items.begin(), a.items.end(), [&](const auto& item) {
           const Value* other = b.find(item.first);
           return other != nullptr && same_or_equal(rt, item.second, *other);
         });
}

// The bounds of a slice of `length` items, as slice.indices() of Python gives them.
struct Bounds {
  Int start, step, count;
};

Int slice_index(const Value& value) {
  if (value.is_undefined()) Runtime::fail_undefined(value);
  if (value.is_integral()) return std::clamp<Int>(value.as_int(), -INT32_MAX, INT32_MAX);  // past the end of any value
  Runtime::fail(std::string("slice indices must be integers or none, not ") + type_name(value));
}

Bounds slice_bounds(Int length, const Value& start, const Value& stop, const Value& step) {
  const Int by = step.is_none() ? 1 : slice_index(step);
  if (by == 0) Runtime::fail("slice step cannot be zero");
  const Int lowest = by < 0 ? -1 : 0, highest = by < 0 ? length - 1 : length;
  const auto place = [&](const Value& value, Int fallback) {
    if (value.is_none()) return fallback;
    const Int i = slice_index(value);
    return std::clamp(i < 0 ? i + length : i, lowest, highest);
  };
  const Int from = place(start, by < 0 ? highest : lowest), to = place(stop, by < 0 ? lowest : highest);
  const Int span = by < 0 ? from - to : to - from, stride = std::abs(by);
  return {from, by, span <= 0 ? 0 : (span + stride - 1) / stride};
}

Value slice_text(Runtime& rt, const Value& value, const Bounds& bounds) {
  const std::string_view text = value.text();
  const auto first = static_cast<size_t>(std::max<Int>(bounds.start, 0)), count = static_cast<size_t>(bounds.count);
  const bool ascii = value.as<Str>().length == text.size();
  if (bounds.step == 1) {
    const std::string_view rest = text.substr(ascii ? first : byte_offset(text, first));
    return rt.str(rest.substr(0, ascii ? count : byte_offset(rest, count)));
  }
  const Charge memory(&rt.meter(), text.size() * sizeof(std::string_view));
  const std::vector<std::string_view> all = letters(text);
  std::string out;
  for (Int i = 0, at = bounds.start; i < bounds.count; ++i, at += bounds.step) out += all[static_cast<size_t>(at)];
  return rt.str(std::move(out));
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
    case Kind::range:
      return std::equal(a.items().begin(), a.items().end(), b.items().begin(), b.items().end(),
                        [&](const Value& x, const Value& y) { return same_or_equal(rt, x, y); });
    case Kind::dict:
      return equal_dicts(rt, a.as<Dict>(), b.as<Dict>());
    default:
      return a.object() == b.object();
  }
}

bool less(Runtime& rt, const Value& a, const Value& b) {
  rt.step();
  if (a.is_undefined()) rt.fail_undefined(a);
  if (b.is_undefined()) rt.fail_undefined(b);
  if (a.is_number() && b.is_number()) return compare_numbers(a, b) == -1;
  if (a.is_string() && b.is_string()) {
    rt.meter().step_bytes(a.text().size());
    return a.text() < b.text();  // the order of UTF-8 bytes is that of code points
  }
  if (a.is_sequence() && a.kind() == b.kind()) {
    const size_t shared = std::min(a.items().size(), b.items().size());
    for (size_t i = 0; i < shared; ++i) {
      if (!same_or_equal(rt, a.items()[i], b.items()[i])) return less(rt, a.items()[i], b.items()[i]);
    }
    return a.items().size() < b.items().size();
  }
  Runtime::fail(std::string("there is no order between '") + type_name(a) + "' and '" + type_name(b) + "'");
}

bool contains(Runtime& rt, const Value& container, const Value& item) {
  rt.step();
  if (container.is_string()) {
    if (!item.is_string()) Runtime::fail(std::string("'in <string>' needs a string on its left, not ") + type_name(item));
    rt.meter().step_bytes(container.text().size());
    return find_text(container.text(), item.text(), 0) != std::string_view::npos;
  }
  if (container.is(Kind::dict)) return container.as<Dict>().find(item) != nullptr;
  for (const Value& candidate : to_vector(rt, container)) {
    if (same_or_equal(rt, candidate, item)) return true;
  }
  return false;
}

bool is_iterable(const Value& value) {
  return value.is_undefined() || value.is_string() || value.has_items() || value.is(Kind::dict);
}

std::vector<Value> to_vector(Runtime& rt, const Value& value) {
  std::vector<Value> all;
  if (value.is(Kind::iterator)) {
    all = std::move(value.items());
    value.items().clear();
  } else if (value.has_items()) {
    all = value.items();
  } else if (value.is(Kind::dict)) {
    for (const auto& [key, item] : value.as<Dict>().items) all.push_back(key);
  } else if (value.is_string()) {
    for (std::string_view text = value.text(); !text.empty(); text.remove_prefix(decode(text, 0).bytes)) {
      all.push_back(rt.str(text.substr(0, decode(text, 0).bytes)));
    }
  } else if (!value.is_undefined()) {
    Runtime::fail(std::string("'") + type_name(value) + "' is not iterable");
  }
  rt.step(static_cast<int64_t>(all.size()));
  return all;
}

std::optional<Int> length_of(const Value& value) {
  if (value.is_undefined()) return 0;
  if (value.is_string()) return static_cast<Int>(value.as<Str>().length);
  if (value.is(Kind::dict)) return static_cast<Int>(value.as<Dict>().items.size());
  if (!value.has_items() || value.is(Kind::iterator)) return std::nullopt;
  return static_cast<Int>(value.items().size());
}

Value slice(Runtime& rt, const Value& value, const Value& start, const Value& stop, const Value& step) {
  if (value.is_undefined()) rt.fail_undefined(value);
  if (!value.is_string() && !value.is_sequence() && !value.is(Kind::range)) {
    Runtime::fail(std::string("a value of type '") + type_name(value) + "' cannot be sliced");
  }
  const Bounds bounds = slice_bounds(*length_of(value), start, stop, step);
  if (value.is_string()) return slice_text(rt, value, bounds);
  rt.step(bounds.count);
  std::vector<Value> part;
  for (Int i = 0, at = bounds.start; i < bounds.count; ++i, at += bounds.step) {
    part.push_back(value.items()[static_cast<size_t>(at)]);
  }
  return rt.seq(value.kind(), std::move(part));
}

}  // namespace fovea::jinja
