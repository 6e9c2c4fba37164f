// What every built-in of a run needs: the meter, the makers of values, arguments, and errors.
#pragma once

#include <ctime>
#include <initializer_list>
#include <string>
#include <vector>

#include "text/jinja/value.h"

namespace fovea::jinja {

class Runtime {
 public:
  Runtime(int64_t max_steps, size_t max_value_bytes, size_t max_text_bytes, std::time_t now)
      : meter_(max_steps, max_value_bytes), max_text_bytes_(max_text_bytes), now_(now) {}
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  Meter& meter() { return meter_; }
  void step(int64_t count = 1) { meter_.step(count); }
  std::time_t now() const { return now_; }
  void check_text(size_t bytes) const;  // fails when a text of so many bytes is too long

  [[noreturn]] static void fail(const std::string& what, StatusCode code = StatusCode::invalid_argument) {
    throw TemplateError(code, what);
  }
  // Fails with the hint of an undefined value that is used.
  [[noreturn]] static void fail_undefined(const Value& value) { fail(value.as<Hint>().text); }

  Value str(std::string text, bool markup = false);
  Value str(std::string_view text) { return str(std::string(text)); }
  Value str(const char* text) { return str(std::string(text)); }
  Value undefined(std::string hint);
  Value seq(Kind kind, std::vector<Value> values);  // list, tuple, range, view or iterator
  Value list(std::vector<Value> values) { return seq(Kind::list, std::move(values)); }
  Value tuple(std::vector<Value> values) { return seq(Kind::tuple, std::move(values)); }
  Value name_space();
  Value function(const Value& self, Function::Body body);
  static int checked_depth(int depth);

 private:
  Meter meter_;
  const size_t max_text_bytes_;
  const std::time_t now_;
  std::vector<std::shared_ptr<Namespace>> namespaces_;  // all of the run
};

// Builds a dict: a key that comes again keeps its place and takes the new value.
class DictBuilder {
 public:
  explicit DictBuilder(Runtime& rt) : rt_(rt) {}
  void set(const Value& key, const Value& value);
  Value build();

 private:
  Runtime& rt_;
  Dict::Items items_;
  Dict::Index index_;
  int depth_ = 0;
};

// The arguments of one call, matched to the names of its parameters. Fails on too many, too few, twice or unknown.
class Params {
 public:
  // The first `required` are needed.
  Params(const char* function, const Args& args, std::initializer_list<const char*> names, size_t required = 0);
  bool has(size_t i) const { return found_[i] != nullptr && !found_[i]->is_none(); }  // given, and not None
  Value get(size_t i, const Value& fallback = Value()) const { return found_[i] ? *found_[i] : fallback; }
  Int integer(size_t i, Int fallback) const;  // fails when given and no integer
  bool flag(size_t i, bool fallback = false) const { return found_[i] ? truthy(*found_[i]) : fallback; }
  std::string_view text(size_t i) const;  // fails when not a string

 private:
  const char* function_;
  std::vector<const char*> names_;
  std::vector<const Value*> found_;
};

}  // namespace fovea::jinja
