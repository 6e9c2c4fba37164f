// A macro as a value, and the scopes of variables.
#pragma once

#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace fovea::jinja {

struct MacroStatement;

// Variables by the number of their name. A scope that a macro was made in lives to the end of the run.
struct Scope {
  explicit Scope(Scope* parent) : parent(parent) {}
  const Value* find(int name) const {
    for (const auto& [id, value] : variables) {
      if (id == name) return &value;
    }
    return nullptr;
  }
  void set(int name, Value value) {
    for (auto& [id, old] : variables) {
      if (id == name) {
        old = std::move(value);
        return;
      }
    }
    variables.emplace_back(name, std::move(value));
  }

  Scope* const parent;
  std::vector<std::pair<int, Value>> variables;
  bool captured = false;
};

struct Macro : Object {
  Macro(Meter* meter, const MacroStatement& definition, Scope* scope)
      : Object(meter, sizeof(Macro), 1), definition(definition), scope(scope) {}
  const MacroStatement& definition;
  Scope* const scope;  // where it was made; owned by the run
};

}  // namespace fovea::jinja
