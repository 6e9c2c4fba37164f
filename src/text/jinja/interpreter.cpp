#include "text/jinja/interpreter.h"

#include "text/jinja/builtins.h"
#include "text/jinja/python.h"

namespace fovea::jinja {

namespace {

// Sends the output elsewhere for as long as this lives.
class Capture {
 public:
  explicit Capture(std::string** out) : out_(out), old_(*out) { *out = &text; }
  ~Capture() { *out_ = old_; }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;
  std::string text;

 private:
  std::string** const out_;
  std::string* const old_;
};

void capture_scopes(Scope* scope) {  // with a captured scope, those around it are captured already
  for (; scope != nullptr && !scope->captured; scope = scope->parent) scope->captured = true;
}

}  // namespace

Value from_json(Runtime& rt, const nlohmann::ordered_json& json, int depth) {
  using JsonType = nlohmann::ordered_json::value_t;
  if (depth > kMaxValueDepth) {
    Runtime::fail("the context is nested deeper than " + std::to_string(kMaxValueDepth),
                  StatusCode::resource_exhausted);
  }
  switch (json.type()) {
    case JsonType::boolean:
      return Value::boolean(json.get<bool>());
    case JsonType::number_integer:
      return Value::integer(json.get<int64_t>());
    case JsonType::number_unsigned:
      return Value::integer(json.get<uint64_t>());
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

Interpreter::Interpreter(const Template& source, const nlohmann::ordered_json& context,
                         const RunLimits& limits, std::time_t now)
    : source_(source),
      context_(context),
      limits_(limits),
      rt_(limits.max_steps, limits.max_value_bytes, limits.max_output_bytes, now),
      context_values_(source.names.size()) {}

std::string Interpreter::run() {
  std::string out;
  out_ = &out;
  root_ = push_scope(nullptr);
  run_body(source_.body);
  return out;
}

Scope* Interpreter::push_scope(Scope* parent) {
  scopes_.push_back(std::make_unique<Scope>(parent));
  return scope_ = scopes_.back().get();
}

// Leaves the innermost scope. The caller sets scope_ to the one before.
void Interpreter::pop_scope() {
  if (scopes_.back()->captured) {
    rt_.meter().charge(sizeof(Scope) + 64);  // never given back: it lives to the end of the run
    captured_.push_back(std::move(scopes_.back()));
  }
  scopes_.pop_back();
}

const Value& Interpreter::context_value(int name) {
  std::unique_ptr<Value>& slot = context_values_[static_cast<size_t>(name)];
  if (slot != nullptr) return *slot;
  const std::string& text = source_.names[static_cast<size_t>(name)];
  if (const auto found = context_.find(text); context_.is_object() && found != context_.end()) {
    slot = std::make_unique<Value>(from_json(rt_, *found));
  } else if (const Function::Body body = find_global(text)) {
    slot = std::make_unique<Value>(rt_.function(text, Value(), body));
  } else {
    slot = std::make_unique<Value>(rt_.undefined("'" + text + "' is undefined"));
  }
  return *slot;
}

Value Interpreter::lookup(int name) {
  for (const Scope* scope = scope_; scope != nullptr; scope = scope->parent) {
    if (const Value* found = scope->find(name)) return *found;
  }
  return context_value(name);
}

void Interpreter::write(std::string_view text) {
  if (text.size() > limits_.max_output_bytes - std::min(out_->size(), limits_.max_output_bytes)) {
    Runtime::fail("the output is longer than " + std::to_string(limits_.max_output_bytes) + " bytes",
                  StatusCode::resource_exhausted);
  }
  rt_.meter().step_bytes(text.size());
  *out_ += text;
}

// What a call block or a filter block gives must be text.
void Interpreter::write_result(const Value& value) {
  if (!value.is_string())
    Runtime::fail(std::string("a block must give text, not a value of type ") + type_name(value));
  write(value.text());
}

Interpreter::Flow Interpreter::run_body(const Body& body) {
  for (const int name : body.late) {
    if (context_value(name).is_undefined()) continue;  // it is undefined anyway
    scope_->set(name, rt_.undefined("'" + source_.names[static_cast<size_t>(name)] + "' is undefined"));
  }
  for (const auto& statement : body.statements) {
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
      if (value.is_string()) {
        write(value.text());
      } else {
        write(to_text(rt_, value));
      }
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
      run_set_block(static_cast<const SetBlock&>(statement));
      break;
    case Statement::Type::macro:
      make_macro(static_cast<const MacroStatement&>(statement));
      break;
    case Statement::Type::call_block:
      run_call_block(static_cast<const CallBlock&>(statement));
      break;
    case Statement::Type::filter_block:
      return run_filter_block(static_cast<const FilterBlock&>(statement));
    case Statement::Type::with:
      return run_with(static_cast<const With&>(statement));
    case Statement::Type::block:
      run_block(static_cast<const Block&>(statement));
      break;
    case Statement::Type::break_loop:
      return Flow::break_loop;
    case Statement::Type::continue_loop:
      return Flow::continue_loop;
    case Statement::Type::refuse:
      Runtime::fail(static_cast<const Refuse&>(statement).what, StatusCode::unsupported);
  }
  return Flow::next;
}

void Interpreter::check_namespaces(const Target& target) {
  for (const Target& part : target.parts) check_namespaces(part);
  if (target.type == Target::Type::attribute && !lookup(target.id).is(Kind::name_space)) {
    Runtime::fail("cannot assign attribute on non-namespace object");
  }
}

void Interpreter::assign(const Target& target, const Value& value) {
  rt_.step();
  if (target.type == Target::Type::name) {
    scope_->set(target.id, value);
    return;
  }
  if (target.type == Target::Type::attribute) {
    const Value object = lookup(target.id);
    if (target.attribute.starts_with("_")) {
      Runtime::fail("a namespace cannot hold the name '" + target.attribute + "'");
    }
    for (auto& [name, old] : object.as<Namespace>().attributes) {
      if (name != target.attribute) continue;
      old = value;
      return;
    }
    object.as<Namespace>().attributes.emplace_back(target.attribute, value);
    return;
  }
  if (value.is_undefined() && !target.parts.empty()) rt_.fail_undefined(value);
  const std::vector<Value> items = to_vector(rt_, value);
  if (items.size() != target.parts.size()) {
    Runtime::fail((items.size() < target.parts.size() ? "not enough" : "too many") +
                  std::string(" values to unpack: expected ") + std::to_string(target.parts.size()) +
                  ", got " + std::to_string(items.size()));
  }
  for (size_t i = 0; i < items.size(); ++i) assign(target.parts[i], items[i]);
}

void Interpreter::run_set(const Set& statement) {
  check_namespaces(statement.target);
  const Value value = evaluate(*statement.value);
  assign(statement.target, value);
}

void Interpreter::run_set_block(const SetBlock& statement) {
  Scope* const outer = scope_;
  push_scope(outer);
  std::string text;
  {
    Capture capture(&out_);
    run_body(statement.body);
    text = std::move(capture.text);
  }
  Value value = rt_.str(std::move(text));
  if (statement.filters != nullptr) value = evaluate_postfix(*statement.filters, value);
  scope_ = outer;
  if (statement.target.type == Target::Type::attribute) check_namespaces(statement.target);
  pop_scope();
  assign(statement.target, value);
}

Interpreter::Flow Interpreter::run_filter_block(const FilterBlock& statement) {
  Scope* const outer = scope_;
  push_scope(outer);
  std::string text;
  Flow flow;
  {
    Capture capture(&out_);
    flow = run_body(statement.body);
    text = std::move(capture.text);
  }
  if (flow == Flow::next) write_result(evaluate_postfix(*statement.filters, rt_.str(std::move(text))));
  scope_ = outer;
  pop_scope();
  return flow;
}

Interpreter::Flow Interpreter::run_branch(const Branch& statement) {
  for (const auto& [test, body] : statement.cases) {
    if (truthy(evaluate(*test))) return run_body(body);
  }
  return run_body(statement.otherwise);
}

Interpreter::Flow Interpreter::run_with(const With& statement) {
  std::vector<Value> values;
  for (const auto& [target, expr] : statement.variables) values.push_back(evaluate(*expr));
  Scope* const outer = scope_;
  push_scope(outer);
  for (size_t i = 0; i < values.size(); ++i) assign(statement.variables[i].first, values[i]);
  const Flow flow = run_body(statement.body);
  scope_ = outer;
  pop_scope();
  return flow;
}

// A block sees the variables of the top of the template, not those of the statements around it, unless it is
// scoped.
void Interpreter::run_block(const Block& statement) {
  Scope* const outer = scope_;
  push_scope(statement.scoped ? outer : root_);
  for (const int name : source_.body.late) {  // not assigned yet: the context's
    const Value* found = root_->find(name);
    if (found != nullptr && found->is_undefined()) scope_->set(name, context_value(name));
  }
  run_body(statement.body);
  scope_ = outer;
  pop_scope();
}

// What the names of a target hold: a tuple for a, b.
Value Interpreter::held(const Target& target) {
  if (target.type == Target::Type::name) return lookup(target.id);
  std::vector<Value> parts;
  for (const Target& part : target.parts) parts.push_back(held(part));
  return rt_.tuple(std::move(parts));
}

// The items that pass the test. They come as the target holds them: an item [a, b] of `for x, y` is a tuple.
Value Interpreter::filtered_source(const ForStatement& statement, const Value& items) {
  const auto source = iterate(rt_, items);
  Scope* const outer = scope_;
  return rt_.iterator(
      [this, source, outer, &statement](Runtime& rt, Value* out) {
        const Level level(this);
        while (source->next(rt, out)) {
          Scope* const caller = scope_;
          push_scope(outer);
          assign(statement.target, *out);
          const bool passes = truthy(evaluate(*statement.test));
          if (passes) *out = held(statement.target);
          scope_ = caller;
          pop_scope();
          if (passes) return true;
        }
        return false;
      },
      items.depth());
}

Interpreter::Flow Interpreter::run_for(const ForStatement& statement) {
  const Value items = evaluate(*statement.iterable);
  if (!statement.recursive) return run_loop(statement, items, 0);
  std::string text;
  {
    Capture capture(&out_);
    run_loop(statement, items, 0);
    text = std::move(capture.text);
  }
  write(text);
  return Flow::next;
}

// The body for each item. The else part runs when no item's body came to its end, be it by break or continue.
// A break or continue of an outer loop can only come from the else part.
Interpreter::Flow Interpreter::run_loop(const ForStatement& statement, const Value& items, int depth0) {
  Scope* const outer = scope_;
  const Value source = statement.test != nullptr ? filtered_source(statement, items) : items;
  Value loop;
  std::shared_ptr<Iterator> plain;
  if (statement.uses_loop) {
    auto object = std::make_shared<Loop>(rt_, source, depth0);
    object->recursive = statement.recursive ? &statement : nullptr;
    object->scope = outer;
    loop = Value(Kind::loop, std::move(object));
    // The loop may outlive its statement (in a namespace), and its filter and its recursion look names up
    // here.
    if (statement.recursive || statement.test != nullptr) capture_scopes(outer);
  } else {
    plain = iterate(rt_, source);
  }
  const int loop_id = statement.loop_id;
  bool finished = false;  // the body, for some item
  Value item;
  while (plain != nullptr ? plain->next(rt_, &item) : loop.as<Loop>().advance(rt_)) {
    rt_.step();
    push_scope(outer);
    if (plain == nullptr) scope_->set(loop_id, loop);
    assign(statement.target, plain != nullptr ? item : loop.as<Loop>().current);
    const Flow flow = run_body(statement.body);
    scope_ = outer;
    pop_scope();
    finished = finished || flow == Flow::next;
    if (flow == Flow::break_loop) break;
  }
  if (finished || statement.otherwise.statements.empty()) return Flow::next;
  push_scope(outer);
  const Flow flow = run_body(statement.otherwise);
  scope_ = outer;
  pop_scope();
  return flow;
}

void Interpreter::make_macro(const MacroStatement& statement) {
  capture_scopes(scope_);
  scope_->set(statement.id,
              Value(Kind::macro, std::make_shared<Macro>(&rt_.meter(), statement.definition, scope_)));
}

void Interpreter::run_call_block(const CallBlock& statement) {
  if (statement.call == nullptr) {  // generation: the text is printed as it is
    Scope* const outer = scope_;
    push_scope(outer);
    run_body(statement.definition.body);
    scope_ = outer;
    pop_scope();
    return;
  }
  capture_scopes(scope_);
  const Value caller(Kind::macro, std::make_shared<Macro>(&rt_.meter(), statement.definition, scope_));
  const Postfix& postfix = *statement.call;
  Value value = evaluate(*postfix.base);
  for (const Link& link : postfix.links) {
    value = apply(link, value, &link == &postfix.links.back() ? &caller : nullptr);
  }
  write_result(value);
}

}  // namespace fovea::jinja
