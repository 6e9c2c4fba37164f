// The global functions.
#include <algorithm>

#include "text/jinja/builtins.h"
#include "text/jinja/python.h"

namespace fovea::jinja {

namespace {

constexpr Int kMaxRange = 100000;  // as jinja2's sandbox

Int range_argument(const Value& value) {
  if (!value.is_integral()) Runtime::fail(std::string("range() needs integers, not ") + type_name(value));
  if (value.as_int() > INT64_MAX || value.as_int() < INT64_MIN)
    Runtime::fail("range(): the number is too big");
  return value.as_int();
}

Value range(Runtime& rt, const Value&, const Args& args) {
  const Params params("range", args, {"start", "stop", "step"}, 1, true);
  const bool one = !params.has(1);
  const Int start = one ? 0 : range_argument(params.get(0)), stop = range_argument(params.get(one ? 0 : 1));
  const Int step = params.has(2) ? range_argument(params.get(2)) : 1;
  if (step == 0) Runtime::fail("range(): the step must not be zero");
  const Int span = step > 0 ? stop - start : start - stop, stride = step > 0 ? step : -step;
  const Int count = span <= 0 ? 0 : (span + stride - 1) / stride;
  if (count > kMaxRange)
    Runtime::fail("range() is bigger than " + int_text(kMaxRange), StatusCode::resource_exhausted);
  return rt.range(start, stop, step, count);
}

// dict(mapping or pairs, name=value ...)
DictBuilder build_dict(Runtime& rt, const Args& args) {
  if (args.positional.size() > 1) Runtime::fail("dict() takes at most one positional argument");
  DictBuilder builder(rt);
  if (!args.positional.empty() && args.positional[0].is(Kind::dict)) {
    for (const auto& [key, value] : args.positional[0].as<Dict>().items) builder.set(key, value);
  } else if (!args.positional.empty()) {
    for (const Value& pair : to_vector(rt, args.positional[0])) {
      const std::vector<Value> both = to_vector(rt, pair);
      if (both.size() != 2) Runtime::fail("dict() needs pairs of a key and a value");
      builder.set(both[0], both[1]);
    }
  }
  for (const auto& [name, value] : args.named) builder.set(rt.str(name), value);
  return builder;
}

Value dict(Runtime& rt, const Value&, const Args& args) { return build_dict(rt, args).build(); }

Value name_space(Runtime& rt, const Value&, const Args& args) {
  const Value attributes = build_dict(rt, args).build();
  const Value object = rt.name_space();
  for (const auto& [key, value] : attributes.as<Dict>().items) {
    if (!key.is_string()) continue;  // no template can reach it
    if (key.text().starts_with("_"))
      Runtime::fail("a namespace cannot hold the name '" + std::string(key.text()) + "'");
    object.as<Namespace>().attributes.emplace_back(key.text(), value);
  }
  return object;
}

Value cycler(Runtime& rt, const Value&, const Args& args) {
  if (!args.named.empty()) Runtime::fail("cycler() takes no named arguments");
  if (args.positional.empty()) Runtime::fail("cycler() needs at least one item");
  return rt.cycler(rt.tuple(args.positional));
}

Value joiner(Runtime& rt, const Value&, const Args& args) {
  const Params params("joiner", args, {"sep"}, 0);
  return rt.joiner(params.has(0) ? params.get(0) : rt.str(", "));
}

Value raise_exception(Runtime& rt, const Value&, const Args& args) {
  const Params params("raise_exception", args, {"message"}, 1);
  Runtime::fail(to_text(rt, params.get(0)));
}

Value strftime_now(Runtime& rt, const Value&, const Args& args) {
  const Params params("strftime_now", args, {"format"}, 1);
  return rt.str(format_time(params.text(0), rt.now()));
}

struct Row {
  std::string_view name;
  Function::Body body;
};
constexpr Row kGlobals[] = {{"cycler", cycler},
                            {"dict", dict},
                            {"joiner", joiner},
                            {"namespace", name_space},
                            {"raise_exception", raise_exception},
                            {"range", range},
                            {"strftime_now", strftime_now}};

}  // namespace

Function::Body find_global(std::string_view name) {
  for (const Row& row : kGlobals) {
    if (row.name == name) return row.body;
  }
  return nullptr;
}

}  // namespace fovea::jinja
