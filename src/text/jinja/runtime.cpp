#include "text/jinja/runtime.h"

#include <algorithm>

#include "text/jinja/python.h"

namespace fovea::jinja {

namespace {
constexpr size_t kIndexFrom = 8;  // items from which a dict gets a hash index
}

Runtime::~Runtime() {
  for (auto& [object, clear] : kept_) clear();
}

void Runtime::check_text(size_t bytes) const {
  if (bytes > max_text_bytes_) {
    fail("a text of the template is longer than " + std::to_string(max_text_bytes_) + " bytes",
         StatusCode::resource_exhausted);
  }
}

void Runtime::fail_undefined(const Value& value) {
  fail(value.object() != nullptr ? value.as<Hint>().text : "the value is undefined");
}

int Runtime::checked_depth(int depth) const {
  if (depth > kMaxValueDepth) {
    fail("values are nested deeper than " + std::to_string(kMaxValueDepth), StatusCode::resource_exhausted);
  }
  return depth;
}

int Runtime::depth_of(const std::vector<Value>& values) const {
  int deepest = 0;
  for (const Value& value : values) deepest = std::max(deepest, value.depth());
  return checked_depth(deepest + 1);
}

Value Runtime::str(std::string text, bool markup) {
  check_text(text.size());
  meter_.step_bytes(text.size());
  return Value(Kind::string, std::make_shared<Str>(&meter_, std::move(text), markup));
}

Value Runtime::undefined(std::string hint) {
  return Value(Kind::undefined, std::make_shared<Hint>(&meter_, std::move(hint)));
}

Value Runtime::list(std::vector<Value> values) {
  step(1 + static_cast<int64_t>(values.size()));
  const int depth = depth_of(values);
  return Value(Kind::list, std::make_shared<Seq>(&meter_, std::move(values), depth, false));
}

Value Runtime::tuple(std::vector<Value> values, bool group) {
  step(1 + static_cast<int64_t>(values.size()));
  const int depth = depth_of(values);
  return Value(Kind::tuple, std::make_shared<Seq>(&meter_, std::move(values), depth, group));
}

Value Runtime::range(Int start, Int stop, Int step, Int count) {
  return Value(Kind::range, std::make_shared<Range>(&meter_, start, stop, step, count));
}

Value Runtime::view(ViewOf of, const Value& dict) {
  checked_depth(dict.depth() + 1);
  return Value(Kind::view, std::make_shared<View>(&meter_, of, dict));
}

Value Runtime::iterator(Iterator::Next next, int source_depth) {
  // Two levels: an iterator over an iterator runs inside its `next`.
  const int depth = checked_depth(source_depth + 2);
  return Value(Kind::iterator, std::make_shared<Iterator>(&meter_, depth, std::move(next)));
}

Value Runtime::name_space() {
  auto object = std::make_shared<Namespace>(&meter_);
  keep_until_end(object, [raw = object.get()] { raw->attributes.clear(); });
  return Value(Kind::name_space, object);
}

Value Runtime::cycler(Value all) {
  checked_depth(all.depth() + 1);
  return Value(Kind::cycler, std::make_shared<Cycler>(&meter_, std::move(all)));
}

Value Runtime::joiner(Value separator) {
  checked_depth(separator.depth() + 1);
  return Value(Kind::joiner, std::make_shared<Joiner>(&meter_, std::move(separator)));
}

Value Runtime::function(std::string name, const Value& self, Function::Body body) {
  checked_depth(self.depth() + 1);
  return Value(Kind::function, std::make_shared<Function>(&meter_, std::move(name), self, body));
}

void Runtime::keep_until_end(std::shared_ptr<Object> object, std::function<void()> clear) {
  kept_.emplace_back(std::move(object), std::move(clear));
}

int64_t DictBuilder::find(const Value& key) {
  if (items_.size() < kIndexFrom) {
    hash(rt_, key);  // an unhashable key fails, however few the items
    for (size_t i = 0; i < items_.size(); ++i) {
      if (equal(rt_, items_[i].first, key)) return static_cast<int64_t>(i);
    }
    return -1;
  }
  if (index_.empty()) {
    for (size_t i = 0; i < items_.size(); ++i) index_.emplace(hash(rt_, items_[i].first), i);
  }
  const auto [begin, end] = index_.equal_range(hash(rt_, key));
  for (auto it = begin; it != end; ++it) {
    if (equal(rt_, items_[it->second].first, key)) return it->second;
  }
  return -1;
}

void DictBuilder::set(const Value& key, const Value& value) {
  rt_.step();
  depth_ = std::max({depth_, key.depth(), value.depth()});
  const int64_t found = find(key);
  if (found >= 0) {
    items_[static_cast<size_t>(found)].second = value;
    return;
  }
  if (!index_.empty()) index_.emplace(hash(rt_, key), items_.size());
  items_.emplace_back(key, value);
}

Value DictBuilder::build() {
  if (depth_ + 1 > kMaxValueDepth) {
    Runtime::fail("values are nested deeper than " + std::to_string(kMaxValueDepth),
                  StatusCode::resource_exhausted);
  }
  return Value(Kind::dict,
               std::make_shared<Dict>(&rt_.meter(), std::move(items_), std::move(index_), depth_ + 1));
}

Params::Params(const char* function, const Args& args, std::initializer_list<const char*> names,
               size_t required, bool positional_only)
    : function_(function), names_(names), found_(names.size(), nullptr) {
  const std::string called = std::string(function) + "()";
  if (args.positional.size() > names_.size()) {
    Runtime::fail(called + " takes at most " + std::to_string(names_.size()) + " arguments (" +
                  std::to_string(args.positional.size()) + " given)");
  }
  for (size_t i = 0; i < args.positional.size(); ++i) found_[i] = &args.positional[i];
  for (const auto& [name, value] : args.named) {
    const auto at = std::find(names_.begin(), names_.end(), name);
    if (at == names_.end() || positional_only)
      Runtime::fail(called + " takes no argument named '" + name + "'");
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
  if (!found_[i]->is_integral()) {
    Runtime::fail(std::string(function_) + "(): '" + names_[i] + "' must be an integer, not " +
                  type_name(*found_[i]));
  }
  return found_[i]->as_int();
}

std::string_view Params::text(size_t i) const {
  if (found_[i] == nullptr || !found_[i]->is_string()) {
    Runtime::fail(std::string(function_) + "(): '" + names_[i] + "' must be a string" +
                  (found_[i] ? std::string(", not ") + type_name(*found_[i]) : ""));
  }
  return found_[i]->text();
}

}  // namespace fovea::jinja
