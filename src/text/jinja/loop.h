// The variable `loop` of a for statement.
#pragma once

#include "text/jinja/runtime.h"

namespace fovea::jinja {

struct ForStatement;
struct Scope;

// Mutable: it walks with its for statement, looking one item ahead where the template asks.
struct Loop : Object {
  Loop(Runtime& rt, const Value& iterable, int depth0);

  bool advance(Runtime& rt);       // to the next item; false at the end
  const Value* peek(Runtime& rt);  // the item after the current one, or null
  Int length(Runtime& rt);         // an iterator is read to its end for it
  Value attribute(Runtime& rt, std::string_view name,
                  const Value& self);  // kind none when there is no such name
  bool changed(Runtime& rt, const Value& self, const std::vector<Value>& values);

  const Value iterable;
  const int depth0;  // of a recursive loop: how deep, from 0
  Value current;
  Int index0 = -1;
  const ForStatement* recursive = nullptr;  // set: loop(...) runs this statement's body for other items
  Scope* scope = nullptr;                   // the scope that the statement stands in

 private:
  std::shared_ptr<Iterator> iterator_;
  Value previous_;
  Value after_;
  bool has_after_ = false;
  std::optional<Int> length_;
  std::optional<std::vector<Value>> last_changed_;
};

bool has_loop_attribute(std::string_view name);

}  // namespace fovea::jinja
