#include "text/jinja/runtime.h"

#include <algorithm>

#include "text/jinja/python.h"

namespace fovea::jinja {

namespace {
constexpr size_t kIndexFrom = 8;  // items from which a dict gets a hash index
}

Runtime::~Runtime() {
  for (const auto& object : namespaces_) object->attributes.clear();
}

void Runtime::check_text(size_t bytes) const {
  if (bytes <= max_text_bytes_) return;
  fail("a text of the template is longer than " + std::to_string(max_text_bytes_) + " bytes", StatusCode::resource_exhausted);
}

int Runtime::checked_depth(int depth) {
  if (depth <= kMaxValueDepth) return depth;
  fail("values are nested deeper than " + std::to_string(kMaxValueDepth), StatusCode::resource_exhausted);
}

Value Runtime::str(std::string text, bool markup) {
  check_text(text.size());
  meter_.step_bytes(text.size());
  return Value(Kind::string, std::make_shared<Str>(&meter_, std::move(text), markup));
}

Value Runtime::undefined(std::string hint) { return Value(Kind::undefined, std::make_shared<Hint>(&meter_, std::move(hint))); }

Value Runtime::seq(Kind kind, std::vector<Value> values) {
  step(1 + static_cast<int64_t>(values.size()));
  int deepest = 0;
  for (const Value& value : values) deepest = std::max(deepest, value.depth());
  return Value(kind, std::make_shared<Seq>(&meter_, std::move(values), checked_depth(deepest + 1)));
}

Value Runtime::name_space() {
  namespaces_.push_back(std::make_shared<Namespace>(&meter_));
  return Value(Kind::name_space, namespaces_.back());
}

Value Runtime::function(const Value& self, Function::Body body) {
  checked_depth(self.depth() + 1);
  return Value(Kind::function, std::make_shared<Function>(&meter_, self, body));
}

void DictBuilder::set(const Value& key, const Value& value) {
  rt_.step();
  const bool text = key.is_string();
  if (!text && !key.is(Kind::integer)) {
    Runtime::fail(std::string("a key of a dict must be a string or an integer, not ") + type_name(key));
  }
  depth_ = std::max(depth_, value.depth());
  rt_.meter().step_bytes(text ? key.text().size() : items_.size() * 64);
  if (items_.size() == kIndexFrom && index_.empty()) {
    for (size_t i = 0; i < items_.size(); ++i) {
      if (items_[i].first.is_string()) index_.emplace(items_[i].first.text(), i);
    }
  }
  size_t at = items_.size();
  if (text && !index_.empty()) {
    at = index_.emplace(key.text(), at).first->second;
  } else {
    const auto same = [&](const auto& item) { return equal(rt_, item.first, key); };
    at = static_cast<size_t>(std::find_if(items_.begin(), items_.end(), same) - items_.begin());
  }
  if (at < items_.size()) {
    items_[at].second = value;
  } else {
    items_.emplace_back(key, value);
  }
}

Value DictBuilder::build() {
  const int depth = Runtime::checked_depth(depth_ + 1);
  return Value(Kind::dict, std::make_shared<Dict>(&rt_.meter(), std::move(items_), std::move(index_), depth));
}

Params::Params(const char* function, const Args& args, std::initializer_list<const char*> names, size_t required)
    : function_(function), names_(names), found_(names.size(), nullptr) {
  const std::string called = std::string(function) + "()";
  if (args.positional.size() > names_.size()) {
    Runtime::fail(called + " takes at most " + std::to_string(names_.size()) + " arguments (" +
                  std::to_string(args.positional.size()) + " given)");
  }
  for (size_t i = 0; i < args.positional.size(); ++i) found_[i] = &args.positional[i];
  for (const auto& [name, value] : args.named) {
    const auto at = std::find(names_.begin(), names_.end(), name);
    if (at == names_.end()) Runtime::fail(called + " takes no argument named '" + name + "'");
    const size_t i = static_cast<size_t>(at - names_.begin());
    if (found_[i] != nullptr) Runtime::fail(called + " got two values for '" + name + "'");
    found_[i] = &value;
  }
  for (size_t i = 0; i < required; ++i) {
    if (found_[i] == nullptr) Runtime::fail(called + " needs the argument '" + names_[i] + "'");
  }
}

Int Params::integer(size_t i, Int fallback) const {
  if (found_[i] == nullptr) return fallback;
  if (found_[i]->is_integral()) return found_[i]->as_int();
  Runtime::fail(std::string(function_) + "(): '" + names_[i] + "' must be an integer, not " + type_name(*found_[i]));
}

std::string_view Params::text(size_t i) const {
  if (found_[i] != nullptr && found_[i]->is_string()) return found_[i]->text();
  Runtime::fail(std::string(function_) + "(): '" + names_[i] + "' must be a string" +
                (found_[i] ? std::string(", not ") + type_name(*found_[i]) : ""));
}

}  // namespace fovea::jinja
