#include "text/jinja/attributes.h"
#include "text/jinja/builtins.h"
#include "text/jinja/interpreter.h"

namespace fovea::jinja {

Value Interpreter::evaluate(const Expr& expr) {
  const Level level(this);
  rt_.step();
  line_ = expr.line;
  switch (expr.type) {
    case Expr::Type::constant:
      return static_cast<const Constant&>(expr).value;
    case Expr::Type::name:
      return lookup(static_cast<const Name&>(expr).id);
    case Expr::Type::list:
    case Expr::Type::tuple:
      return evaluate_list(static_cast<const ListExpr&>(expr));
    case Expr::Type::dict:
      return evaluate_dict(static_cast<const DictExpr&>(expr));
    case Expr::Type::unary: {
      const auto& unary = static_cast<const Unary&>(expr);
      const Value operand = evaluate(*unary.operand);
      return unary.minus ? negate(rt_, operand) : unary_plus(rt_, operand);
    }
    case Expr::Type::negation:
      return Value::boolean(!truthy(evaluate(*static_cast<const Negation&>(expr).operand)));
    case Expr::Type::chain:
      return evaluate_chain(static_cast<const Chain&>(expr));
    case Expr::Type::concat:
      return evaluate_concat(static_cast<const Concat&>(expr));
    case Expr::Type::logic:
      return evaluate_logic(static_cast<const Logic&>(expr));
    case Expr::Type::compare:
      return evaluate_compare(static_cast<const Compare&>(expr));
    case Expr::Type::cond:
      return evaluate_cond(static_cast<const Cond&>(expr));
    case Expr::Type::postfix: {
      const auto& postfix = static_cast<const Postfix&>(expr);
      return evaluate_postfix(postfix, evaluate(*postfix.base));
    }
  }
  return Value();
}

Value Interpreter::evaluate_list(const ListExpr& expr) {
  std::vector<Value> items;
  items.reserve(expr.items.size());
  for (const ExprPtr& item : expr.items) items.push_back(evaluate(*item));
  return expr.type == Expr::Type::list ? rt_.list(std::move(items)) : rt_.tuple(std::move(items));
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

Value Interpreter::evaluate_concat(const Concat& expr) {
  std::string text;
  std::vector<Value> parts;
  for (const ExprPtr& part : expr.parts) parts.push_back(evaluate(*part));
  for (const Value& part : parts) {
    const std::string piece = to_text(rt_, part);
    rt_.check_text(text.size() + piece.size());
    text += piece;
  }
  return rt_.str(std::move(text));
}

Value Interpreter::evaluate_logic(const Logic& expr) {
  Value value;
  for (const ExprPtr& part : expr.parts) {
    value = evaluate(*part);
    if (truthy(value) != expr.is_and) return value;
  }
  return value;
}

Value Interpreter::evaluate_compare(const Compare& expr) {
  Value left = evaluate(*expr.first);
  for (const auto& [relation, operand] : expr.rest) {
    Value right = evaluate(*operand);
    bool holds = false;
    switch (relation) {
      case Relation::eq:
        holds = equal(rt_, left, right);
        break;
      case Relation::ne:
        holds = !equal(rt_, left, right);
        break;
      case Relation::lt:
        holds = ordered(rt_, left, right, Order::less);
        break;
      case Relation::le:
        holds = ordered(rt_, left, right, Order::less_equal);
        break;
      case Relation::gt:
        holds = ordered(rt_, left, right, Order::greater);
        break;
      case Relation::ge:
        holds = ordered(rt_, left, right, Order::greater_equal);
        break;
      case Relation::in:
        holds = contains(rt_, right, left);
        break;
      case Relation::not_in:
        holds = !contains(rt_, right, left);
        break;
    }
    if (!holds) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

Value Interpreter::evaluate_cond(const Cond& expr) {
  if (truthy(evaluate(*expr.test))) return evaluate(*expr.then);
  if (expr.otherwise != nullptr) return evaluate(*expr.otherwise);
  return rt_.undefined("the inline if-expression was false and has no else part");
}

Value Interpreter::evaluate_postfix(const Postfix& expr, Value base) {
  for (const Link& link : expr.links) base = apply(link, base, nullptr);
  return base;
}

Args Interpreter::evaluate_args(const CallArgs& args) {
  Args given;
  given.positional.reserve(args.positional.size());
  for (const ExprPtr& arg : args.positional) given.positional.push_back(evaluate(*arg));
  for (const auto& [name, arg] : args.named) given.named.emplace_back(name, evaluate(*arg));
  if (args.star != nullptr) {
    for (const Value& arg : to_vector(rt_, evaluate(*args.star))) given.positional.push_back(arg);
  }
  if (args.star_star == nullptr) return given;
  const Value named = evaluate(*args.star_star);
  if (!named.is(Kind::dict)) Runtime::fail("the argument after ** must be a mapping");
  for (const auto& [key, value] : named.as<Dict>().items) {
    if (!key.is_string()) Runtime::fail("keywords must be strings");
    for (const auto& [name, old] : given.named) {
      if (name == key.text()) Runtime::fail("got two values for the keyword argument '" + name + "'");
    }
    given.named.emplace_back(key.text(), value);
  }
  return given;
}

// One step of a chain. `caller` goes with the call of a call block.
Value Interpreter::apply(const Link& link, const Value& value, const Value* caller) {
  rt_.step();
  line_ = link.line;
  switch (link.type) {
    case Link::Type::attribute:
      return get_attribute(rt_, value, link.name);
    case Link::Type::item: {
      const Value key = evaluate(*link.start);
      line_ = link.line;
      return get_item(rt_, value, key);
    }
    case Link::Type::slice: {
      const Value start = link.start ? evaluate(*link.start) : Value();
      const Value stop = link.stop ? evaluate(*link.stop) : Value();
      const Value step = link.step ? evaluate(*link.step) : Value();
      return slice(rt_, value, start, stop, step);
    }
    default:
      break;
  }
  Args args = evaluate_args(link.args);
  line_ = link.line;
  if (caller != nullptr) args.named.emplace_back("caller", *caller);
  if (link.type == Link::Type::call) return call(value, args);
  if (link.type == Link::Type::filter) return call_filter(rt_, link.name, value, args);
  return Value::boolean(call_test(rt_, link.name, value, args) != link.negated);
}

}  // namespace fovea::jinja
