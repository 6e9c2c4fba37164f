// Calls: of built-in functions, of macros as jinja2's Macro takes its arguments, of recursive loops.
#include <algorithm>

#include "text/jinja/interpreter.h"
#include "text/jinja/python.h"

namespace fovea::jinja {

Value Interpreter::call(const Value& callee, const Args& args) {
  rt_.step();
  switch (callee.kind()) {
    case Kind::function: {
      const Function& function = callee.as<Function>();
      const Value result = function.body(rt_, function.self, args);
      // The methods of a safe text give safe texts.
      if (!function.self.is_string() || !function.self.as<Str>().markup) return result;
      return result.is_string() && !result.as<Str>().markup ? rt_.str(std::string(result.text()), true)
                                                            : result;
    }
    case Kind::macro:
      return call_macro(callee.as<Macro>(), args);
    case Kind::loop:
      return call_loop(callee, args);
    case Kind::joiner: {
      const Params none("joiner", args, {}, 0);
      Joiner& joiner = callee.as<Joiner>();
      if (joiner.used) return joiner.separator;
      joiner.used = true;
      return rt_.str("");
    }
    case Kind::undefined:
      rt_.fail_undefined(callee);
    default:
      Runtime::fail(std::string("a value of type '") + type_name(callee) + "' cannot be called");
  }
}

Value Interpreter::call_loop(const Value& loop, const Args& args) {
  const Params params("loop", args, {"iterable"}, 1);
  const Loop& object = loop.as<Loop>();
  if (object.recursive == nullptr) Runtime::fail("the loop must have the 'recursive' marker to be called");
  if (++calls_ > limits_.max_depth) {
    Runtime::fail("loops and macros call each other deeper than " + std::to_string(limits_.max_depth),
                  StatusCode::resource_exhausted);
  }
  const Level level(this);
  Scope* const caller = scope_;
  std::string* const out = out_;
  std::string text;
  out_ = &text;
  scope_ = object.scope;
  run_loop(*object.recursive, params.get(0), object.depth0 + 1);
  scope_ = caller;
  out_ = out;
  --calls_;
  return rt_.str(std::move(text));
}

Value Interpreter::call_macro(const Macro& macro, const Args& args) {
  if (++calls_ > limits_.max_depth) {
    Runtime::fail("loops and macros call each other deeper than " + std::to_string(limits_.max_depth),
                  StatusCode::resource_exhausted);
  }
  const Level level(this);
  Scope* const caller = scope_;
  std::string* const out = out_;
  std::string text;
  Scope* const scope = push_scope(macro.scope);
  bind_parameters(macro.definition, args, scope);
  out_ = &text;
  run_body(macro.definition.body);
  out_ = out;
  scope_ = caller;
  pop_scope();
  --calls_;
  return rt_.str(std::move(text));
}

void Interpreter::bind_parameters(const MacroDefinition& definition, const Args& args, Scope* scope) {
  const size_t count = definition.parameters.size();
  std::vector<std::pair<std::string, Value>> named = args.named;
  std::vector<bool> given(count, false);
  bool found_caller = false;
  for (size_t i = 0; i < count; ++i) {
    const std::string& name = definition.parameter_names[i];
    if (i < args.positional.size()) {
      scope->set(definition.parameters[i], args.positional[i]);
      given[i] = true;
      // With all arguments given by position, a `caller` among the parameters counts as found.
      found_caller = found_caller || (args.positional.size() >= count && name == "caller");
      continue;
    }
    found_caller = found_caller || name == "caller";
    const auto found =
        std::find_if(named.begin(), named.end(), [&](const auto& arg) { return arg.first == name; });
    given[i] = found != named.end();
    scope->set(definition.parameters[i],
               given[i] ? found->second : rt_.undefined("parameter '" + name + "' was not provided"));
    if (given[i]) named.erase(found);
  }
  bind_specials(definition, std::move(named), args, found_caller, scope);
  for (size_t i = 0; i < count; ++i) {
    const size_t without = count - definition.defaults.size();
    if (!given[i] && i >= without)
      scope->set(definition.parameters[i], evaluate(*definition.defaults[i - without]));
  }
}

// caller, kwargs and varargs, for a body that names them; else surplus arguments fail.
void Interpreter::bind_specials(const MacroDefinition& definition,
                                std::vector<std::pair<std::string, Value>> named, const Args& args,
                                bool found_caller, Scope* scope) {
  const size_t count = definition.parameters.size();
  if (definition.uses_caller && !found_caller) {
    const auto caller =
        std::find_if(named.begin(), named.end(), [](const auto& arg) { return arg.first == "caller"; });
    const bool passed = caller != named.end() && !caller->second.is_none();
    scope->set(definition.caller_id, passed ? caller->second : rt_.undefined("no caller defined"));
    if (caller != named.end()) named.erase(caller);
  }
  const std::string who = "macro '" + definition.name + "'";
  if (definition.uses_kwargs) {
    DictBuilder rest(rt_);
    for (const auto& [name, value] : named) rest.set(rt_.str(name), value);
    scope->set(definition.kwargs_id, rest.build());
  } else if (!named.empty()) {
    Runtime::fail(who + " takes no keyword argument '" + named[0].first + "'");
  }
  if (definition.uses_varargs) {
    std::vector<Value> rest;
    for (size_t i = count; i < args.positional.size(); ++i) rest.push_back(args.positional[i]);
    scope->set(definition.varargs_id, rt_.tuple(std::move(rest)));
  } else if (args.positional.size() > count) {
    Runtime::fail(who + " takes not more than " + std::to_string(count) + " arguments");
  }
}

}  // namespace fovea::jinja
