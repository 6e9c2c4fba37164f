// The global functions.
#include "text/jinja/builtins.h"
#include "text/jinja/python.h"

namespace fovea::jinja {

namespace {

constexpr Int kMaxRange = 100000;  // as jinja2's sandbox

Value range(Runtime& rt, const Value&, const Args& args) {
  const Params params("range", args, {"start", "stop", "step"}, 1);
  const bool one = args.positional.size() == 1;
  const Int start = one ? 0 : params.integer(0, 0), stop = params.integer(one ? 0 : 1, 0), step = params.integer(2, 1);
  if (step == 0) Runtime::fail("range(): the step must not be zero");
  std::vector<Value> values;
  for (Int i = start; step > 0 ? i < stop : i > stop;) {
    if (static_cast<Int>(values.size()) == kMaxRange) {
      Runtime::fail("range() is bigger than " + std::to_string(kMaxRange), StatusCode::resource_exhausted);
    }
    values.push_back(Value::integer(i));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return rt.seq(Kind::range, std::move(values));
}

// dict(mapping, name=value ...)
Value dict(Runtime& rt, const Value&, const Args& args) {
  DictBuilder builder(rt);
  for (const Value& mapping : args.positional) {
    if (!mapping.is(Kind::dict) || args.positional.size() > 1) {
      Runtime::fail("dict() and namespace() take one mapping and named values");
    }
    for (const auto& [key, value] : mapping.as<Dict>().items) builder.set(key, value);
  }
  for (const auto& [name, value] : args.named) builder.set(rt.str(name), value);
  return builder.build();
}

Value name_space(Runtime& rt, const Value& self, const Args& args) {
  const Value attributes = dict(rt, self, args);
  const Value object = rt.name_space();
  for (const auto& [key, value] : attributes.as<Dict>().items) {
    object.as<Namespace>().attributes.emplace_back(to_text(rt, key), value);
  }
  return object;
}

Value raise_exception(Runtime& rt, const Value&, const Args& args) {
  Runtime::fail(to_text(rt, Params("raise_exception", args, {"message"}, 1).get(0)));
}

Value strftime_now(Runtime& rt, const Value&, const Args& args) {
  return rt.str(format_time(Params("strftime_now", args, {"format"}, 1).text(0), rt.now()));
}

}  // namespace

Function::Body find_global(std::string_view name) {
  constexpr std::pair<std::string_view, Function::Body> kGlobals[] = {{"dict", dict},
                                                                      {"namespace", name_space},
                                                                      {"raise_exception", raise_exception},
                                                                      {"range", range},
                                                                      {"strftime_now", strftime_now}};
  for (const auto& [known, body] : kGlobals) {
    if (known == name) return body;
  }
  return nullptr;
}

}  // namespace fovea::jinja
