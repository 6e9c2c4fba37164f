// The lazy filters map, select, reject, selectattr, rejectattr.
#include "text/jinja/builtins.h"
#include "text/jinja/python.h"

namespace fovea::jinja {

namespace {

// What the lazy filters share: the source is opened, and the arguments are looked at, when the first item is
// asked for.
struct Source {
  Value value;
  Args args;
  std::shared_ptr<Iterator> items;
  bool opened = false;

  bool next(Runtime& rt, Value* out) {
    if (!opened) {
      opened = true;
      if (truthy(value)) items = iterate(rt, value);
    }
    rt.step();
    return items != nullptr && items->next(rt, out);
  }
};

std::shared_ptr<Source> make_source(const Value& value, const Args& args) {
  auto source = std::make_shared<Source>();
  source->value = value;
  source->args = args;
  return source;
}

int depth_of(const Value& value, const Args& args) {
  int depth = value.depth();
  for (const Value& arg : args.positional) depth = std::max(depth, arg.depth());
  for (const auto& [name, arg] : args.named) depth = std::max(depth, arg.depth());
  return depth;
}

Args without_first(const Args& args, size_t count) {
  Args rest = args;
  rest.positional.erase(rest.positional.begin(), rest.positional.begin() + static_cast<int64_t>(count));
  return rest;
}

std::string filter_name(const Value& name) {
  if (!name.is_string())
    Runtime::fail(std::string("the name of a filter or test must be a string, not ") + type_name(name));
  return std::string(name.text());
}

Value map_attribute(Runtime& rt, const Value& value, const Args& args) {
  const Params params("map", args, {"attribute", "default"}, 1);
  const auto source = make_source(value, args);
  const AttributePath path(rt, params.get(0));
  return rt.iterator(
      [=](Runtime& run, Value* out) {
        Value item;
        if (!source->next(run, &item)) return false;
        const Value fallback = source->args.named.size() > 1
                                   ? Params("map", source->args, {"attribute", "default"}, 1).get(1)
                                   : Value();
        *out = path.get(run, item, fallback.is_none() ? nullptr : &fallback);
        return true;
      },
      depth_of(value, args));
}

Value map(Runtime& rt, const Value& value, const Args& args) {
  bool by_attribute = false;
  for (const auto& [name, arg] : args.named) by_attribute = by_attribute || name == "attribute";
  if (!truthy(value)) return rt.iterator([](Runtime&, Value*) { return false; }, 0);
  if (args.positional.empty() && by_attribute) return map_attribute(rt, value, args);
  const auto source = make_source(value, args);
  return rt.iterator(
      [source](Runtime& run, Value* out) {
        Value item;
        if (source->args.positional.empty()) Runtime::fail("map requires a filter argument");
        if (!source->next(run, &item)) return false;
        *out =
            call_filter(run, filter_name(source->args.positional[0]), item, without_first(source->args, 1));
        return true;
      },
      depth_of(value, args));
}

Value choose(Runtime& rt, const Value& value, const Args& args, bool by_attribute, bool keep) {
  const auto source = make_source(value, args);
  return rt.iterator(
      [=](Runtime& run, Value* out) {
        const std::vector<Value>& given = source->args.positional;
        if (by_attribute && given.empty()) {
          if (!truthy(source->value)) return false;
          Runtime::fail("missing parameter for attribute name");
        }
        const size_t used = by_attribute ? 1 : 0;
        const AttributePath path(run, by_attribute ? given[0] : Value());
        while (source->next(run, out)) {
          const Value tested = path.get(run, *out);
          const bool passes = given.size() > used ? call_test(run, filter_name(given[used]), tested,
                                                              without_first(source->args, used + 1))
                                                  : truthy(tested);
          if (passes == keep) return true;
        }
        return false;
      },
      depth_of(value, args));
}

Value select(Runtime& rt, const Value& value, const Args& args) {
  return choose(rt, value, args, false, true);
}
Value reject(Runtime& rt, const Value& value, const Args& args) {
  return choose(rt, value, args, false, false);
}
Value select_attr(Runtime& rt, const Value& value, const Args& args) {
  return choose(rt, value, args, true, true);
}
Value reject_attr(Runtime& rt, const Value& value, const Args& args) {
  return choose(rt, value, args, true, false);
}

constexpr NamedFilter kFilters[] = {{"map", map},
                                    {"reject", reject},
                                    {"rejectattr", reject_attr},
                                    {"select", select},
                                    {"selectattr", select_attr}};

}  // namespace

Filter find_select_filter(std::string_view name) {
  for (const NamedFilter& row : kFilters) {
    if (row.name == name) return row.filter;
  }
  return nullptr;
}

Filter find_filter(std::string_view name) {
  if (const Filter found = find_text_filter(name)) return found;
  if (const Filter found = find_list_filter(name)) return found;
  return find_select_filter(name);
}

Value call_filter(Runtime& rt, std::string_view name, const Value& value, const Args& args) {
  const Filter filter = find_filter(name);
  if (filter == nullptr) Runtime::fail("no filter named '" + std::string(name) + "'");
  rt.step();
  return filter(rt, value, args);
}

}  // namespace fovea::jinja
