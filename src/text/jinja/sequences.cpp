// Iteration, len(), reversed(), slices and subscripts.
#include <algorithm>

#include "text/jinja/loop.h"
#include "text/jinja/python.h"
#include "text/jinja/unicode.h"

namespace fovea::jinja {

namespace {

Value view_item(Runtime& rt, const View& view, size_t i) {
  const auto& [key, value] = view.dict.as<Dict>().items[i];
  if (view.of == ViewOf::keys) return key;
  if (view.of == ViewOf::values) return value;
  return rt.tuple({key, value});
}

// The letters of a safe text are plain.
Iterator::Next next_of_text(const Value& value) {
  return [value, pos = size_t{0}](Runtime& rt, Value* out) mutable {
    const std::string_view text = value.text();
    if (pos >= text.size()) return false;
    const size_t bytes = decode(text, pos).bytes;
    *out = rt.str(text.substr(pos, bytes));
    pos += bytes;
    return true;
  };
}

// The next index of a walk over count items, forwards or backwards; nothing at the end.
std::optional<size_t> walk(size_t* at, size_t count, bool backwards) {
  if (*at >= count) return std::nullopt;
  const size_t i = backwards ? count - 1 - *at : *at;
  ++*at;
  return i;
}

Iterator::Next next_of(const Value& value, bool backwards) {
  switch (value.kind()) {
    case Kind::list:
    case Kind::tuple:
      return [value, backwards, at = size_t{0}](Runtime&, Value* out) mutable {
        const auto i = walk(&at, value.items().size(), backwards);
        if (i) *out = value.items()[*i];
        return i.has_value();
      };
    case Kind::dict:
      return [value, backwards, at = size_t{0}](Runtime&, Value* out) mutable {
        const Dict::Items& items = value.as<Dict>().items;
        const auto i = walk(&at, items.size(), backwards);
        if (i) *out = items[*i].first;
        return i.has_value();
      };
    case Kind::view:
      return [value, backwards, at = size_t{0}](Runtime& rt, Value* out) mutable {
        const auto i = walk(&at, value.as<View>().dict.as<Dict>().items.size(), backwards);
        if (i) *out = view_item(rt, value.as<View>(), *i);
        return i.has_value();
      };
    case Kind::range:
      return [value, backwards, at = Int{0}](Runtime&, Value* out) mutable {
        const Range& range = value.as<Range>();
        if (at >= range.count) return false;
        *out = Value::integer(range.start + range.step * (backwards ? range.count - 1 - at : at));
        ++at;
        return true;
      };
    case Kind::undefined:
      return [](Runtime&, Value*) { return false; };
    default:
      return nullptr;
  }
}

// The bounds of a slice of `length` items, as slice.indices() of Python gives them.
struct Bounds {
  Int start, stop, step, count;
};

Int slice_index(Runtime& rt, const Value& value) {
  if (value.is_undefined()) rt.fail_undefined(value);
  if (!value.is_integral()) {
    Runtime::fail(std::string("slice indices must be integers or none, not ") + type_name(value));
  }
  return std::clamp<Int>(value.as_int(), INT64_MIN, INT64_MAX);
}

Bounds slice_bounds(Runtime& rt, Int length, const Value& start, const Value& stop, const Value& step) {
  const Int by = step.is_none() ? 1 : slice_index(rt, step);
  if (by == 0) Runtime::fail("slice step cannot be zero");
  const Int lowest = by < 0 ? -1 : 0, highest = by < 0 ? length - 1 : length;
  const auto place = [&](const Value& value, Int fallback) {
    if (value.is_none()) return fallback;
    Int i = slice_index(rt, value);
    if (i < 0) i += length;
    return std::clamp(i, lowest, highest);
  };
  const Int from = place(start, by < 0 ? highest : lowest);
  const Int to = place(stop, by < 0 ? lowest : highest);
  const Int span = by < 0 ? from - to : to - from;
  const Int stride = by < 0 ? -by : by;
  return {from, to, by, span <= 0 ? 0 : (span + stride - 1) / stride};
}

Value slice_text(Runtime& rt, const Value& value, const Bounds& bounds) {
  const std::string_view text = value.text();
  if (bounds.count == 0) return piece(rt, value, text.substr(0, 0));
  const bool ascii = value.as<Str>().ascii();
  if (bounds.step == 1) {
    const auto first = static_cast<size_t>(bounds.start), count = static_cast<size_t>(bounds.count);
    const size_t begin = ascii ? first : byte_offset(text, first);
    const std::string_view rest = text.substr(begin);
    return piece(rt, value, rest.substr(0, ascii ? count : byte_offset(rest, count)));
  }
  std::string out;
  std::vector<size_t> offsets;
  if (!ascii) {
    rt.meter().charge(text.size() * sizeof(size_t));
    for (size_t pos = 0; pos < text.size(); pos += decode(text, pos).bytes) offsets.push_back(pos);
    rt.meter().release(text.size() * sizeof(size_t));
  }
  Int at = bounds.start;
  for (Int i = 0; i < bounds.count; ++i, at += bounds.step) {
    const size_t pos = ascii ? static_cast<size_t>(at) : offsets[static_cast<size_t>(at)];
    out += text.substr(pos, decode(text, pos).bytes);
  }
  return rt.str(std::move(out), value.as<Str>().markup);
}

}  // namespace

bool is_iterable(const Value& value) {
  switch (value.kind()) {
    case Kind::undefined:
    case Kind::string:
    case Kind::list:
    case Kind::tuple:
    case Kind::dict:
    case Kind::view:
    case Kind::range:
    case Kind::iterator:
    case Kind::loop:
      return true;
    default:
      return false;
  }
}

std::shared_ptr<Iterator> iterate(Runtime& rt, const Value& value) {
  if (value.is(Kind::iterator)) return std::static_pointer_cast<Iterator>(value.shared());
  Iterator::Next next = value.is_string() ? next_of_text(value) : next_of(value, false);
  if (value.is(Kind::loop)) {  // each item comes with the loop itself
    next = [value](Runtime& run, Value* out) {
      if (!value.as<Loop>().advance(run)) return false;
      *out = run.tuple({value.as<Loop>().current, value});
      return true;
    };
  }
  if (next == nullptr) Runtime::fail(std::string("'") + type_name(value) + "' is not iterable");
  return std::static_pointer_cast<Iterator>(rt.iterator(std::move(next), value.depth()).shared());
}

std::vector<Value> to_vector(Runtime& rt, const Value& value) {
  if (value.is_sequence()) {
    rt.step(static_cast<int64_t>(value.items().size()));
    return value.items();
  }
  const auto iterator = iterate(rt, value);
  std::vector<Value> all;
  Value item;
  while (iterator->next(rt, &item)) {
    rt.step();
    all.push_back(item);
  }
  return all;
}

Value reversed(Runtime& rt, const Value& value) {
  if (value.is_string()) {  // subscripts, so that the letters of a safe text are safe
    std::vector<Value> letters = to_vector(rt, value);
    if (value.as<Str>().markup) {
      for (Value& letter : letters) letter = rt.str(std::string(letter.text()), true);
    }
    std::reverse(letters.begin(), letters.end());
    const Value all = rt.list(std::move(letters));
    return rt.iterator(next_of(all, false), all.depth());
  }
  Iterator::Next next = next_of(value, true);
  if (next == nullptr) Runtime::fail(std::string("'") + type_name(value) + "' is not reversible");
  return rt.iterator(std::move(next), value.depth());
}

std::optional<Int> length_of(const Value& value) {
  switch (value.kind()) {
    case Kind::undefined:
      return 0;
    case Kind::string:
      return static_cast<Int>(value.as<Str>().length);
    case Kind::list:
    case Kind::tuple:
      return static_cast<Int>(value.items().size());
    case Kind::dict:
      return static_cast<Int>(value.as<Dict>().items.size());
    case Kind::view:
      return static_cast<Int>(value.as<View>().dict.as<Dict>().items.size());
    case Kind::range:
      return value.as<Range>().count;
    default:
      return std::nullopt;
  }
}

Value slice(Runtime& rt, const Value& value, const Value& start, const Value& stop, const Value& step) {
  if (value.is_undefined()) rt.fail_undefined(value);
  if (!value.is_string() && !value.is_sequence() && !value.is(Kind::range)) {
    Runtime::fail(std::string("a value of type '") + type_name(value) + "' cannot be sliced");
  }
  const Bounds bounds = slice_bounds(rt, *length_of(value), start, stop, step);
  if (value.is_string()) return slice_text(rt, value, bounds);
  if (value.is(Kind::range)) {
    const Range& range = value.as<Range>();
    Int by = 0;  // overflows only where one item is left, whose step means nothing
    if (__builtin_mul_overflow(range.step, bounds.step, &by)) by = 1;
    return rt.range(range.start + range.step * bounds.start, range.start + range.step * bounds.stop, by,
                    bounds.count);
  }
  rt.step(static_cast<int64_t>(bounds.count));
  std::vector<Value> picked;
  picked.reserve(static_cast<size_t>(bounds.count));
  Int at = bounds.start;
  for (Int i = 0; i < bounds.count; ++i, at += bounds.step)
    picked.push_back(value.items()[static_cast<size_t>(at)]);
  return value.is(Kind::list) ? rt.list(std::move(picked)) : rt.tuple(std::move(picked));
}

std::optional<Value> item_at(Runtime& rt, const Value& value, Int index) {
  const Int length = *length_of(value);
  if (index < 0) index += length;
  if (index < 0 || index >= length) return std::nullopt;
  if (value.is(Kind::range)) return Value::integer(value.as<Range>().start + value.as<Range>().step * index);
  if (value.is_sequence()) return value.items()[static_cast<size_t>(index)];
  const std::string_view text = value.text();
  const auto at = static_cast<size_t>(index);
  if (!value.as<Str>().ascii()) rt.meter().step_bytes(at);
  const size_t pos = value.as<Str>().ascii() ? at : byte_offset(text, at);
  return piece(rt, value, text.substr(pos, decode(text, pos).bytes));
}

}  // namespace fovea::jinja
