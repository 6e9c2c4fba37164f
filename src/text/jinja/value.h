// The values of a template: Python's, as far as published templates see them. Containers are immutable and shared; what can
// change (namespaces, loops, iterators) is marked so. Every object is paid for at its run's Meter.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/jinja/meter.h"

namespace fovea::jinja {

using Int = int64_t;  // Python's integers have no bound; what needs more bits than these is refused

enum class Kind : uint8_t {
  undefined,
  none,
  boolean,
  integer,
  floating,
  string,
  list,
  tuple,
  range,
  view,      // dict.keys(), values(), items()
  iterator,  // what lazy filters give
  dict,
  name_space,
  loop,
  macro,
  function,  // a built-in function or a bound method
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
  Value(Kind kind, std::shared_ptr<Object> object) : kind_(kind), object_(std::move(object)) {}
  static Value boolean(bool b) {
    Value v = integer(b);
    v.kind_ = Kind::boolean;
    return v;
  }
  static Value integer(Int i) {
    Value v(Kind::integer, nullptr);
    v.int_ = i;
    return v;
  }
  static Value floating(double d) {
    Value v(Kind::floating, nullptr);
    v.double_ = d;
    return v;
  }

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool is_undefined() const { return kind_ == Kind::undefined; }
  bool is_none() const { return kind_ == Kind::none; }
  bool is_string() const { return kind_ == Kind::string; }
  bool is_integral() const { return kind_ == Kind::integer || kind_ == Kind::boolean; }  // bool is an int in Python
  bool is_number() const { return is_integral() || kind_ == Kind::floating; }
  bool is_sequence() const { return kind_ == Kind::list || kind_ == Kind::tuple; }
  bool has_items() const { return kind_ >= Kind::list && kind_ <= Kind::iterator; }

  Int as_int() const { return int_; }  // of an integral value
  double as_double() const { return kind_ == Kind::floating ? double_ : static_cast<double>(int_); }
  Object* object() const { return object_.get(); }
  template <typename T>
  T& as() const {
    return static_cast<T&>(*object_);
  }
  int depth() const { return object_ ? object_->depth : 0; }
  std::string_view text() const;      // of a string
  std::vector<Value>& items() const;  // where has_items()

 private:
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
  const bool markup;    // made by the filter `safe`: what + joins to it is escaped
};

// The hint of an undefined value: what went wrong, for when it is used.
struct Hint : Object {
  Hint(Meter* meter, std::string s) : Object(meter, s.size() + sizeof(Hint), 1), text(std::move(s)) {}
  const std::string text;
};

// Of a list, tuple, range or view, whose values never change, and of an iterator, which hands its values out once.
struct Seq : Object {
  Seq(Meter* meter, std::vector<Value> values, int depth)
      : Object(meter, values.capacity() * sizeof(Value) + sizeof(Seq), depth), values(std::move(values)) {}
  std::vector<Value> values;
};

// The keys are strings or integers.
struct Dict : Object {
  using Items = std::vector<std::pair<Value, Value>>;
  using Index = std::unordered_map<std::string_view, size_t>;  // text of a key -> place; empty when there are few items
  Dict(Meter* meter, Items items, Index index, int depth)
      : Object(meter, items.capacity() * sizeof(items[0]) + index.size() * 48 + sizeof(Dict), depth),
        items(std::move(items)),
        index(std::move(index)) {}
  const Value* find(const Value& key) const;  // null when it is not there
  const Value* find(std::string_view key) const;
  const Items items;
  const Index index;
};

// Mutable. Its run empties it at the end: a namespace may hold itself.
struct Namespace : Object {
  explicit Namespace(Meter* meter) : Object(meter, sizeof(Namespace), 1) {}
  std::vector<std::pair<std::string, Value>> attributes;
};

struct Args {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

class Runtime;

struct Function : Object {
  using Body = Value (*)(Runtime&, const Value& self, const Args&);
  Function(Meter* meter, Value self, Body body)
      : Object(meter, sizeof(Function), self.depth() + 1), self(std::move(self)), body(body) {}
  const Value self;  // of a bound method
  const Body body;
};

const char* type_name(const Value& value);  // Python's: "str", "list", ...
bool truthy(const Value& value);

}  // namespace fovea::jinja
