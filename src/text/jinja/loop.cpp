#include "text/jinja/loop.h"

#include <algorithm>
#include <cstdint>

namespace fovea::jinja {

namespace {
int depth_of(const std::vector<Value>& items) {
  int depth = 0;
  for (const Value& item : items) depth = std::max(depth, item.depth());
  return std::min(depth + 1, kMaxValueDepth);
}
}  // namespace

Loop::Loop(Runtime& rt, std::vector<Value> items, Test test)
    : Object(&rt.meter(), sizeof(Loop) + items.size() * sizeof(Value), depth_of(items)), test_(std::move(test)) {
  (test_ ? source_ : items_) = std::move(items);
}

// The test may see its own loop, by a namespace.
void Loop::read(size_t count) {
  while (items_.size() < count && read_ < source_.size()) {
    if (testing_) Runtime::fail("the test of a loop asks for what lies ahead in the loop");
    const Value item = source_[read_++];
    testing_ = true;
    if (test_(item)) items_.push_back(item);
    testing_ = false;
  }
}

size_t Loop::next() {
  const auto wanted = static_cast<size_t>(index0_ + 1);
  read(wanted + 1);
  return std::min(wanted, items_.size());
}

bool Loop::advance() {
  at_ = next();
  if (at_ == items_.size()) return false;
  ++index0_;
  return true;
}

void Loop::finish() {
  items_.clear();
  source_.clear();
}

Int Loop::length() {
  read(SIZE_MAX);
  return static_cast<Int>(items_.size());
}

Value Loop::attribute(Runtime& rt, std::string_view name) {
  if (items_.empty()) Runtime::fail("'loop' is used after its loop");
  if (name == "index") return Value::integer(index0_ + 1);
  if (name == "index0") return Value::integer(index0_);
  if (name == "revindex") return Value::integer(length() - index0_);
  if (name == "revindex0") return Value::integer(length() - index0_ - 1);
  if (name == "first") return Value::boolean(index0_ == 0);
  if (name == "last") {
    const size_t ahead = next();
    return Value::boolean(ahead == items_.size());
  }
  if (name == "length") return Value::integer(length());
  if (name == "previtem") return index0_ == 0 ? rt.undefined("there is no previous item") : items_[at_ - 1];
  if (name == "nextitem") {
    const size_t ahead = next();
    return ahead == items_.size() ? rt.undefined("there is no next item") : items_[ahead];
  }
  Runtime::fail("'loop." + std::string(name) + "' is not supported", StatusCode::unsupported);
}

}  // namespace fovea::jinja
