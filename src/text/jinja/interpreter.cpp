#include "text/jinja/interpreter.h"

#include "text/jinja/builtins.h"
#include "text/jinja/python.h"

namespace fovea::jinja {

namespace {

// A JSON value as a value of a run. Fails when it is nested deeper than kMaxValueDepth.
Value from_json(Runtime& rt, const nlohmann::ordered_json& json, int depth) {
  using JsonType = nlohmann::ordered_json::value_t;
  Runtime::checked_depth(depth);
  switch (json.type()) {
    case JsonType::boolean:
      return Value::boolean(json.get<bool>());
    case JsonType::number_integer:
      return Value::integer(json.get<int64_t>());
    case JsonType::number_unsigned:
      if (json.get<uint64_t>() > INT64_MAX) {
        Runtime::fail("the number " + json.dump() + " needs more than 64 bits", StatusCode::unsupported);
      }
      return Value::integer(json.get<int64_t>());
    case JsonType::number_float:
      return Value::floating(json.get<double>());
    case JsonType::string:
      return rt.str(json.get_ref<const std::string&>());
    case JsonType::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const auto& item : json) items.push_back(from_json(rt, item, depth + 1));
      return rt.list(std::move(items));
    }
    case JsonType::object: {
      DictBuilder builder(rt);
      for (const auto& [key, item] : json.items()) builder.set(rt.str(key), from_json(rt, item, depth + 1));
      return builder.build();
    }
    default:
      return Value();
  }
}

}  // namespace

Interpreter::Interpreter(const Template& source, const nlohmann::ordered_json& context, const RunLimits& limits, std::time_t now)
    : source_(source),
      context_(context),
      limits_(limits),
      rt_(limits.max_steps, limits.max_value_bytes, limits.max_output_bytes, now),
      context_values_(source.names.size()) {}

std::string Interpreter::run() {
  std::string out;
  out_ = &out;
  push_scope(nullptr);
  run_body(source_.body);
  return out;
}

Scope* Interpreter::push_scope(Scope* parent) {
  scopes_.push_back(std::make_unique<Scope>(parent));
  return scope_ = scopes_.back().get();
}

// Leaves the innermost scope for the one that was current before.
void Interpreter::pop_scope(Scope* outer) {
  if (scopes_.back()->captured) {
    rt_.meter().charge(sizeof(Scope) + 64);  // never given back: it lives to the end of the run
    captured_.push_back(std::move(scopes_.back()));
  }
  scopes_.pop_back();
  scope_ = outer;
}

const Value& Interpreter::context_value(int name) {
  std::unique_ptr<Value>& slot = context_values_[static_cast<size_t>(name)];
  if (slot != nullptr) return *slot;
  const std::string& text = source_.names[static_cast<size_t>(name)];
  if (const auto found = context_.find(text); found != context_.end()) {
    slot = std::make_unique<Value>(from_json(rt_, *found, 0));
  } else if (const Function::Body body = find_global(text)) {
    slot = std::make_unique<Value>(rt_.function(Value(), body));
  } else {
    slot = std::make_unique<Value>(rt_.undefined("'" + text + "' is undefined"));
  }
  return *slot;
}

Value Interpreter::lookup(int name) {
  for (const Scope* scope = scope_; scope != nullptr; scope = scope->parent) {
    rt_.meter().step_search(scope->variables.size());
    if (const Value* found = scope->find(name)) return *found;
  }
  return context_value(name);
}

void Interpreter::assign(Scope* scope, int name, Value value) {
  rt_.meter().step_search(scope->variables.size());
  scope->set(name, std::move(value));
}

void Interpreter::write(std::string_view text) {
  if (text.size() > limits_.max_output_bytes - std::min(out_->size(), limits_.max_output_bytes)) {
    Runtime::fail("the output is longer than " + std::to_string(limits_.max_output_bytes) + " bytes",
                  StatusCode::resource_exhausted);
  }
  rt_.meter().step_bytes(text.size());
  *out_ += text;
}

Interpreter::Flow Interpreter::run_body(const Body& body) {
  for (const auto& statement : body) {
    const Flow flow = run_statement(*statement);
    if (flow != Flow::next) return flow;
  }
  return Flow::next;
}

Interpreter::Flow Interpreter::run_statement(const Statement& statement) {
  const Level level(this);
  rt_.step();
  line_ = statement.line;
  switch (statement.type) {
    case Statement::Type::text:
      write(static_cast<const Text&>(statement).text);
      break;
    case Statement::Type::print: {
      const Value value = evaluate(*static_cast<const Print&>(statement).value);
      write(value.is_string() ? value.text() : std::string_view(to_text(rt_, value)));
      break;
    }
    case Statement::Type::for_loop:
      return run_for(static_cast<const ForStatement&>(statement));
    case Statement::Type::branch:
      return run_branch(static_cast<const Branch&>(statement));
    case Statement::Type::set:
      run_set(static_cast<const Set&>(statement));
      break;
    case Statement::Type::set_block:
    case Statement::Type::filter_block:
    case Statement::Type::scope:
      return run_enclosed(static_cast<const Enclosed&>(statement));
    case Statement::Type::macro:
      make_macro(static_cast<const MacroStatement&>(statement));
      break;
    case Statement::Type::break_loop:
      return Flow::break_loop;
    case Statement::Type::continue_loop:
      return Flow::continue_loop;
  }
  return Flow::next;
}

Namespace& Interpreter::namespace_of(const Target& target) {
  const Value object = lookup(target.id);
  if (!object.is(Kind::name_space)) Runtime::fail("cannot assign attribute on non-namespace object");
  return object.as<Namespace>();  // the run owns it
}

void Interpreter::assign(const Target& target, const Value& value) {
  rt_.step();
  if (target.type == Target::Type::name) {
    assign(scope_, target.id, value);
    return;
  }
  if (target.type == Target::Type::attribute) {
    auto& attributes = namespace_of(target).attributes;
    rt_.meter().step_search(attributes.size());
    for (auto& [name, old] : attributes) {
      if (name != target.attribute) continue;
      old = value;
      return;
    }
    attributes.emplace_back(target.attribute, value);
    return;
  }
  if (value.is_undefined()) rt_.fail_undefined(value);
  const std::vector<Value> items = to_vector(rt_, value);
  if (items.size() != target.parts.size()) {
    Runtime::fail((items.size() < target.parts.size() ? "not enough" : "too many") + std::string(" values to unpack: expected ") +
                  std::to_string(target.parts.size()) + ", got " + std::to_string(items.size()));
  }
  for (size_t i = 0; i < items.size(); ++i) assign(target.parts[i], items[i]);
}

void Interpreter::run_set(const Set& statement) {
  if (statement.target.type == Target::Type::attribute) namespace_of(statement.target);
  const Value value = evaluate(*statement.value);
  assign(statement.target, value);
}

// A body in a scope of its own inside `outer`, its output to `out`.
Interpreter::Flow Interpreter::run_in_scope(const Body& body, Scope* outer, std::string* out) {
  Scope* const caller = scope_;
  std::string* const caller_out = std::exchange(out_, out);
  push_scope(outer);
  const Flow flow = run_body(body);
  pop_scope(caller);
  out_ = caller_out;
  return flow;
}

Interpreter::Flow Interpreter::run_enclosed(const Enclosed& statement) {
  if (statement.type == Statement::Type::scope) return run_in_scope(statement.body, scope_, out_);
  std::string text;
  const Flow flow = run_in_scope(statement.body, scope_, &text);
  if (flow != Flow::next) return flow;
  Value value = rt_.str(std::move(text));
  if (statement.filters != nullptr) value = apply(statement.filters->links, value);
  if (statement.type == Statement::Type::set_block) {
    assign(statement.target, value);
  } else {
    if (!value.is_string()) Runtime::fail(std::string("a filter block must give text, not ") + type_name(value));
    write(value.text());
  }
  return flow;
}

Interpreter::Flow Interpreter::run_branch(const Branch& statement) {
  for (const auto& [test, body] : statement.cases) {
    if (truthy(evaluate(*test))) return run_body(body);
  }
  return run_body(statement.otherwise);
}

// The body for each item. The else part runs when no item's body came to its end, be it by break or continue.
// A break or continue of an outer loop can only come from the else part.
Interpreter::Flow Interpreter::run_for(const ForStatement& statement) {
  std::vector<Value> items = to_vector(rt_, evaluate(*statement.iterable));
  Scope* const outer = scope_;
  Loop::Test test;
  if (statement.test != nullptr) {
    test = [&, outer](const Value& item) {
      const Level level(this);
      Scope* const caller = scope_;
      push_scope(outer);
      assign(statement.target, item);
      const bool passes = truthy(evaluate(*statement.test));
      pop_scope(caller);
      return passes;
    };
  }
  const auto loop = std::make_shared<Loop>(rt_, std::move(items), std::move(test));
  bool finished = false;  // the body, for some item
  while (loop->advance()) {
    rt_.step();
    push_scope(outer);
    assign(scope_, statement.loop_id, Value(Kind::loop, loop));
    assign(statement.target, loop->current());
    const Flow flow = run_body(statement.body);
    pop_scope(outer);
    finished = finished || flow == Flow::next;
    if (flow == Flow::break_loop) break;
  }
  loop->finish();
  return finished || statement.otherwise.empty() ? Flow::next : run_in_scope(statement.otherwise, outer, out_);
}

void Interpreter::make_macro(const MacroStatement& statement) {
  // With a captured scope, those around it are captured already.
  for (Scope* scope = scope_; scope != nullptr && !scope->captured; scope = scope->parent) scope->captured = true;
  assign(scope_, statement.id, Value(Kind::macro, std::make_shared<Macro>(&rt_.meter(), statement, scope_)));
}

}  // namespace fovea::jinja
