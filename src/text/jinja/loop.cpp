#include "text/jinja/loop.h"

#include <algorithm>

#include "text/jinja/python.h"

namespace fovea::jinja {

namespace {

Value call_cycle(Runtime&, const Value& self, const Args& args) {
  if (!args.named.empty()) Runtime::fail("loop.cycle() takes no named arguments");
  if (args.positional.empty()) Runtime::fail("loop.cycle() needs at least one item");
  const Int count = static_cast<Int>(args.positional.size());
  const Int at = ((self.as<Loop>().index0 % count) + count) % count;
  return args.positional[static_cast<size_t>(at)];
}

Value call_changed(Runtime& rt, const Value& self, const Args& args) {
  if (!args.named.empty()) Runtime::fail("loop.changed() takes no named arguments");
  return Value::boolean(self.as<Loop>().changed(rt, self, args.positional));
}

}  // namespace

Loop::Loop(Runtime& rt, const Value& iterable, int depth0)
    : Object(&rt.meter(), sizeof(Loop), std::min(iterable.depth() + 2, kMaxValueDepth)),
      iterable(iterable),
      depth0(depth0),
      iterator_(iterate(rt, iterable)) {}

bool Loop::advance(Runtime& rt) {
  Value item;
  if (has_after_) {
    item = std::move(after_);
    has_after_ = false;
  } else if (!iterator_->next(rt, &item)) {
    return false;
  }
  ++index0;
  previous_ = std::move(current);
  current = std::move(item);
  return true;
}

const Value* Loop::peek(Runtime& rt) {
  if (!has_after_) has_after_ = iterator_->next(rt, &after_);
  return has_after_ ? &after_ : nullptr;
}

Int Loop::length(Runtime& rt) {
  if (length_) return *length_;
  length_ = length_of(iterable);
  if (!length_) {
    const Value rest = rt.list(to_vector(rt, Value(Kind::iterator, iterator_)));
    length_ = static_cast<Int>(rest.items().size()) + index0 + 1 + (has_after_ ? 1 : 0);
    iterator_ = iterate(rt, rest);
  }
  return *length_;
}

bool Loop::changed(Runtime& rt, const Value& self, const std::vector<Value>& values) {
  bool differs = !last_changed_ || last_changed_->size() != values.size();
  for (size_t i = 0; !differs && i < values.size(); ++i) differs = !equal(rt, (*last_changed_)[i], values[i]);
  if (!differs) return false;
  // What is remembered may hold this loop.
  if (!last_changed_) rt.keep_until_end(self.shared(), [this] { last_changed_.reset(); });
  last_changed_ = values;
  return true;
}

bool has_loop_attribute(std::string_view name) {
  constexpr std::string_view kNames[] = {"index",  "index0", "revindex", "revindex0", "first",
                                         "last",   "length", "previtem", "nextitem",  "depth",
                                         "depth0", "cycle",  "changed"};
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

Value Loop::attribute(Runtime& rt, std::string_view name, const Value& self) {
  if (name == "index") return Value::integer(index0 + 1);
  if (name == "index0") return Value::integer(index0);
  if (name == "revindex") return Value::integer(length(rt) - index0);
  if (name == "revindex0") return Value::integer(length(rt) - index0 - 1);
  if (name == "first") return Value::boolean(index0 == 0);
  if (name == "last") return Value::boolean(peek(rt) == nullptr);
  if (name == "length") return Value::integer(length(rt));
  if (name == "depth") return Value::integer(depth0 + 1);
  if (name == "depth0") return Value::integer(depth0);
  if (name == "cycle") return rt.function("cycle", self, call_cycle);
  if (name == "changed") return rt.function("changed", self, call_changed);
  if (name == "previtem") return index0 == 0 ? rt.undefined("there is no previous item") : previous_;
  const Value* next = peek(rt);
  return next == nullptr ? rt.undefined("there is no next item") : *next;
}

}  // namespace fovea::jinja
