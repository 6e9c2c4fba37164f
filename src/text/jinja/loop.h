// The variable `loop` of a for statement.
#pragma once

#include <functional>

#include "text/jinja/runtime.h"

namespace fovea::jinja {

// Mutable: it walks with its for statement, looking one item ahead where the template asks. The statement's test is run as the
// walk comes to an item, not before.
struct Loop : Object {
  using Test = std::function<bool(const Value& item)>;  // empty: every item passes
  Loop(Runtime& rt, std::vector<Value> items, Test test);

  bool advance();  // to the next item that passes; false at the end
  void finish();   // its statement is left: nothing lies ahead or behind
  const Value& current() const { return items_[at_]; }
  Value attribute(Runtime& rt, std::string_view name);  // undefined when there is no such name

 private:
  void read(size_t count);  // runs the test until so many items have passed, or none is left
  size_t next();            // place of the item after the current one, items_.size() when there is none
  Int length();

  std::vector<Value> source_;  // not tested yet, from `read_`
  std::vector<Value> items_;   // those that passed
  size_t read_ = 0, at_ = 0;
  Int index0_ = -1;
  bool testing_ = false;
  const Test test_;
};

}  // namespace fovea::jinja
