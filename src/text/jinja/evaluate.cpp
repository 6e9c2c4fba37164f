// Expressions and calls.
#include <algorithm>

#include "text/jinja/builtins.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/python.h"

namespace fovea::jinja {

Value Interpreter::evaluate(const Expr& expr) {
  const Level level(this);
  rt_.step();
  line_ = expr.line;
  const auto operands = [&]() -> const Operands& { return static_cast<const Operands&>(expr); };
  switch (expr.type) {
    case Expr::Type::constant:
      return static_cast<const Constant&>(expr).value;
    case Expr::Type::name:
      return lookup(static_cast<const Name&>(expr).id);
    case Expr::Type::list:
      return rt_.list(evaluate_all(operands().items));
    case Expr::Type::tuple:
      return rt_.tuple(evaluate_all(operands().items));
    case Expr::Type::dict:
      return evaluate_dict(static_cast<const DictExpr&>(expr));
    case Expr::Type::minus:
      return negate(rt_, evaluate(*operands().items[0]));
    case Expr::Type::negation:
      return Value::boolean(!truthy(evaluate(*operands().items[0])));
    case Expr::Type::chain:
      return evaluate_chain(static_cast<const Chain&>(expr));
    case Expr::Type::concat:
      return evaluate_concat(operands());
    case Expr::Type::logic_and:
    case Expr::Type::logic_or:
      return evaluate_logic(operands());
    case Expr::Type::compare:
      return evaluate_compare(static_cast<const Compare&>(expr));
    case Expr::Type::cond:
      return evaluate_cond(operands());
    case Expr::Type::postfix: {
      const auto& postfix = static_cast<const Postfix&>(expr);
      return apply(postfix.links, evaluate(*postfix.base));
    }
  }
  return Value();
}

std::vector<Value> Interpreter::evaluate_all(const std::vector<ExprPtr>& items) {
  std::vector<Value> values;
  values.reserve(items.size());
  for (const ExprPtr& item : items) values.push_back(evaluate(*item));
  return values;
}

Value Interpreter::evaluate_dict(const DictExpr& expr) {
  DictBuilder builder(rt_);
  for (const auto& [key, value] : expr.items) {
    const Value name = evaluate(*key);
    builder.set(name, evaluate(*value));
  }
  return builder.build();
}

Value Interpreter::evaluate_chain(const Chain& expr) {
  Value value = evaluate(*expr.first);
  for (const auto& [op, operand] : expr.rest) {
    const Value right = evaluate(*operand);
    value = binary(rt_, op, value, right);
  }
  return value;
}

Value Interpreter::evaluate_concat(const Operands& expr) {
  std::string text;
  for (const Value& part : evaluate_all(expr.items)) {
    const std::string piece = to_text(rt_, part);
    rt_.check_text(text.size() + piece.size());
    text += piece;
  }
  return rt_.str(std::move(text));
}

Value Interpreter::evaluate_logic(const Operands& expr) {
  Value value;
  for (const ExprPtr& part : expr.items) {
    value = evaluate(*part);
    if (truthy(value) != (expr.type == Expr::Type::logic_and)) return value;
  }
  return value;
}

Value Interpreter::evaluate_compare(const Compare& expr) {
  const auto holds = [&](Relation relation, const Value& left, const Value& right) {
    switch (relation) {
      case Relation::eq:
        return equal(rt_, left, right);
      case Relation::ne:
        return !equal(rt_, left, right);
      case Relation::lt:
        return less(rt_, left, right);
      case Relation::le:
        return !less(rt_, right, left);
      case Relation::gt:
        return less(rt_, right, left);
      case Relation::ge:
        return !less(rt_, left, right);
      case Relation::in:
        return contains(rt_, right, left);
      case Relation::not_in:
        break;
    }
    return !contains(rt_, right, left);
  };
  Value left = evaluate(*expr.first);
  for (const auto& [relation, operand] : expr.rest) {
    Value right = evaluate(*operand);
    if (!holds(relation, left, right)) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

Value Interpreter::evaluate_cond(const Operands& expr) {
  if (truthy(evaluate(*expr.items[0]))) return evaluate(*expr.items[1]);
  if (expr.items.size() > 2) return evaluate(*expr.items[2]);
  return rt_.undefined("the inline if-expression was false and has no else part");
}

Args Interpreter::evaluate_args(const CallArgs& args) {
  Args given;
  given.positional = evaluate_all(args.positional);
  for (const auto& [name, arg] : args.named) given.named.emplace_back(name, evaluate(*arg));
  if (args.star != nullptr) {
    for (const Value& arg : to_vector(rt_, evaluate(*args.star))) given.positional.push_back(arg);
  }
  return given;
}

Value Interpreter::apply(const std::vector<Link>& links, Value value) {
  for (const Link& link : links) value = apply(link, value);
  return value;
}

Value Interpreter::apply(const Link& link, const Value& value) {
  rt_.step();
  line_ = link.line;
  const auto bound = [&](const ExprPtr& expr) { return expr != nullptr ? evaluate(*expr) : Value(); };
  if (link.type == Link::Type::attribute) return get_attribute(rt_, value, link.name);
  if (link.type == Link::Type::item) return get_item(rt_, value, bound(link.start));
  if (link.type == Link::Type::slice) {
    const Value start = bound(link.start), stop = bound(link.stop);
    return slice(rt_, value, start, stop, bound(link.step));
  }
  const Args args = evaluate_args(link.args);
  line_ = link.line;
  if (link.type == Link::Type::call) return call(value, args);
  if (link.type == Link::Type::filter) return call_filter(rt_, link.name, value, args);
  return Value::boolean(call_test(rt_, link.name, value, args) != link.negated);
}

Value Interpreter::call(const Value& callee, const Args& args) {
  rt_.step();
  if (callee.is(Kind::function)) return callee.as<Function>().body(rt_, callee.as<Function>().self, args);
  if (callee.is(Kind::macro)) return call_macro(callee.as<Macro>(), args);
  if (callee.is_undefined()) rt_.fail_undefined(callee);
  Runtime::fail(std::string("a value of type '") + type_name(callee) + "' cannot be called");
}

Value Interpreter::call_macro(const Macro& macro, const Args& args) {
  if (++calls_ > limits_.max_depth) {
    Runtime::fail("macros call each other deeper than " + std::to_string(limits_.max_depth), StatusCode::resource_exhausted);
  }
  const Level level(this);
  Scope* const caller = scope_;
  Scope* const scope = push_scope(macro.scope);
  bind_parameters(macro.definition, args, scope);
  std::string text;
  std::string* const out = std::exchange(out_, &text);
  run_body(macro.definition.body);
  out_ = out;
  pop_scope(caller);
  --calls_;
  return rt_.str(std::move(text));
}

void Interpreter::bind_parameters(const MacroStatement& definition, const Args& args, Scope* scope) {
  const size_t count = definition.parameters.size(), without = count - definition.defaults.size();
  const std::string who = "macro '" + definition.name + "'";
  if (args.positional.size() > count) Runtime::fail(who + " takes not more than " + std::to_string(count) + " arguments");
  std::vector<bool> given(count, false);
  for (size_t i = 0; i < args.positional.size(); ++i) {
    scope->set(definition.parameters[i], args.positional[i]);
    given[i] = true;
  }
  for (const auto& [name, value] : args.named) {
    const auto found = std::find(definition.parameter_names.begin(), definition.parameter_names.end(), name);
    const auto i = static_cast<size_t>(found - definition.parameter_names.begin());
    if (i == count || given[i]) Runtime::fail(who + " takes no keyword argument '" + name + "'");
    scope->set(definition.parameters[i], value);
    given[i] = true;
  }
  for (size_t i = 0; i < count; ++i) {  // a default sees the parameters before it
    if (given[i]) continue;
    scope->set(definition.parameters[i], i >= without
                                             ? evaluate(*definition.defaults[i - without])
                                             : rt_.undefined("parameter '" + definition.parameter_names[i] + "' was not provided"));
  }
}

}  // namespace fovea::jinja
