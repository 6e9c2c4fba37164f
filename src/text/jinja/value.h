// The values of a template: Python's, as far as templates see them. Containers are immutable and shared; what
// can change (namespaces, loops, cyclers, iterators) is marked so. Every object is paid for at its run's
// Meter.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/jinja/meter.h"

namespace fovea::jinja {

// 128 bits: Python's integers have no bound, and JSON brings 64-bit unsigned ones.
__extension__ typedef __int128 Int;

enum class Kind : uint8_t {
  undefined,
  none,
  boolean,
  integer,
  floating,
  string,
  list,
  tuple,
  dict,
  range,
  view,      // dict.keys(), values(), items()
  iterator,  // generators and reversed()
  name_space,
  loop,
  cycler,
  joiner,
  macro,
  function,  // a built-in function, class or bound method
};

// Containers deeper than this are refused, so that walking and freeing them never overflows the stack.
constexpr int kMaxValueDepth = 200;

struct Object {
  Object(Meter* meter, size_t bytes, int depth) : depth(depth), charge_(meter, bytes) {}
  virtual ~Object() = default;
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;

  const int depth;  // 1 + the deepest child; 1 for what holds no values

 private:
  Charge charge_;
};

class Value {
 public:
  Value() = default;  // None
  static Value undefined() { return Value(Kind::undefined); }
  static Value boolean(bool b) {
    Value v(Kind::boolean);
    v.int_ = b;
    return v;
  }
  static Value integer(Int i) {
    Value v(Kind::integer);
    v.int_ = i;
    return v;
  }
  static Value floating(double d) {
    Value v(Kind::floating);
    v.double_ = d;
    return v;
  }
  Value(Kind kind, std::shared_ptr<Object> object) : kind_(kind), object_(std::move(object)) {}

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool is_undefined() const { return kind_ == Kind::undefined; }
  bool is_none() const { return kind_ == Kind::none; }
  bool is_string() const { return kind_ == Kind::string; }
  bool is_integral() const {
    return kind_ == Kind::integer || kind_ == Kind::boolean;
  }  // bool is an int in Python
  bool is_number() const { return is_integral() || kind_ == Kind::floating; }
  bool is_sequence() const { return kind_ == Kind::list || kind_ == Kind::tuple; }

  Int as_int() const { return int_; }  // of an integral value
  double as_double() const { return kind_ == Kind::floating ? double_ : static_cast<double>(int_); }
  Object* object() const { return object_.get(); }
  const std::shared_ptr<Object>& shared() const { return object_; }
  template <typename T>
  T& as() const {
    return static_cast<T&>(*object_);
  }
  int depth() const { return object_ ? object_->depth : 0; }
  std::string_view text() const;            // of a string
  const std::vector<Value>& items() const;  // of a list or tuple

 private:
  explicit Value(Kind kind) : kind_(kind) {}
  Kind kind_ = Kind::none;
  union {
    Int int_ = 0;
    double double_;
  };
  std::shared_ptr<Object> object_;
};

struct Str : Object {
  Str(Meter* meter, std::string s, bool is_markup);
  const std::string text;
  const size_t length;  // code points
  const bool markup;    // made by the filters `safe` and `escape`: what is joined to it is escaped
  bool ascii() const { return length == text.size(); }
};

// The hint of an undefined value: what went wrong, for when it is used.
struct Hint : Object {
  Hint(Meter* meter, std::string s) : Object(meter, s.size() + sizeof(Hint), 1), text(std::move(s)) {}
  const std::string text;
};

struct Seq : Object {
  Seq(Meter* meter, std::vector<Value> values, int depth, bool group)
      : Object(meter, values.capacity() * sizeof(Value) + sizeof(Seq), depth),
        values(std::move(values)),
        group(group) {}
  const std::vector<Value> values;
  const bool group;  // a tuple of the filter `groupby`, with the attributes grouper and list
};

struct Dict : Object {
  using Items = std::vector<std::pair<Value, Value>>;
  Dict(Meter* meter, Items items, std::unordered_multimap<size_t, uint32_t> index, int depth)
      : Object(meter, items.capacity() * sizeof(items[0]) + index.size() * 48 + sizeof(Dict), depth),
        items(std::move(items)),
        index(std::move(index)) {}
  const Value* find(std::string_view key) const;
  const Items items;
  const std::unordered_multimap<size_t, uint32_t> index;  // hash -> place; empty when there are few items
};

struct Range : Object {
  Range(Meter* meter, Int start, Int stop, Int step, Int count)
      : Object(meter, sizeof(Range), 1), start(start), stop(stop), step(step), count(count) {}
  const Int start, stop, step, count;
};

enum class ViewOf { keys, values, items };
struct View : Object {
  View(Meter* meter, ViewOf of, Value dict)
      : Object(meter, sizeof(View), dict.depth() + 1), of(of), dict(dict) {}
  const ViewOf of;
  const Value dict;
};

class Runtime;

// Mutable: each item is taken once. `next` gives false at the end, and again after it.
struct Iterator : Object {
  using Next = std::function<bool(Runtime&, Value*)>;
  Iterator(Meter* meter, int depth, Next next)
      : Object(meter, sizeof(Iterator) + 64, depth), next(std::move(next)) {}
  const Next next;
};

// Mutable. Its run empties it at the end: a namespace may hold itself.
struct Namespace : Object {
  explicit Namespace(Meter* meter) : Object(meter, sizeof(Namespace), 1) {}
  std::vector<std::pair<std::string, Value>> attributes;
};

struct Cycler : Object {
  Cycler(Meter* meter, Value all) : Object(meter, sizeof(Cycler), all.depth() + 1), all(std::move(all)) {}
  const Value all;  // a tuple, not empty
  size_t at = 0;
};

struct Joiner : Object {
  Joiner(Meter* meter, Value separator)
      : Object(meter, sizeof(Joiner), separator.depth() + 1), separator(std::move(separator)) {}
  const Value separator;
  bool used = false;
};

struct Args {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

struct Function : Object {
  using Body = Value (*)(Runtime&, const Value& self, const Args&);
  Function(Meter* meter, std::string name, Value self, Body body)
      : Object(meter, sizeof(Function), self.depth() + 1),
        name(std::move(name)),
        self(std::move(self)),
        body(body) {}
  const std::string name;
  const Value self;  // of a bound method
  const Body body;
};

const char* type_name(const Value& value);  // Python's: "str", "list", ...
bool truthy(const Value& value);

}  // namespace fovea::jinja
