#include "text/jinja/builtins.h"
#include "text/jinja/parser.h"

namespace fovea::jinja {

void Parser::fail(const std::string& what, int line) const {
  throw TemplateError(StatusCode::invalid_argument, what, line != 0 ? line : current().line);
}

void Parser::deeper() {
  if (++depth_ <= max_depth_) return;
  throw TemplateError(StatusCode::resource_exhausted, "the template is nested deeper than " + std::to_string(max_depth_),
                      current().line);
}

bool Parser::skip_op(std::string_view op) {
  if (!at_op(op)) return false;
  take();
  return true;
}

bool Parser::skip_name(std::string_view name) {
  if (!at_name(name)) return false;
  take();
  return true;
}

void Parser::expect_op(std::string_view op) {
  if (!skip_op(op)) fail("expected '" + std::string(op) + "', got '" + describe(current()) + "'");
}

std::string Parser::expect_any_name() {
  if (current().type != Type::name) fail("expected a name, got '" + describe(current()) + "'");
  return take().text;
}

void Parser::expect(Type type, const char* what) {
  if (current().type != type) fail(std::string("expected ") + what + ", got '" + describe(current()) + "'");
  take();
}

int Parser::name_id(const std::string& name) {
  const auto [found, added] = ids_.emplace(name, static_cast<int>(names_.size()));
  if (added) names_.push_back(name);
  return found->second;
}

bool Parser::tuple_ends(const TupleRules& rules) const {
  return current().type == Type::print_end || current().type == Type::block_end || at_op(")") ||
         (rules.end != nullptr && at_name(rules.end));
}

// One expression, or a tuple of them where there are commas.
ExprPtr Parser::tuple(const TupleRules& rules) {
  const int line = current().line;
  std::vector<ExprPtr> items;
  bool is_tuple = false;
  while (true) {
    if (!items.empty()) expect_op(",");
    if (tuple_ends(rules)) break;
    items.push_back(rules.primary_only ? primary() : expression(rules.with_condition));
    if (!at_op(",")) break;
    is_tuple = true;
  }
  if (!is_tuple && !items.empty()) return std::move(items[0]);
  if (!is_tuple && !rules.parenthesized) fail("expected an expression, got '" + describe(current()) + "'");
  auto node = std::make_unique<Operands>(Expr::Type::tuple, line);
  node->items = std::move(items);
  return node;
}

ExprPtr Parser::expression(bool with_condition) {
  const Nested level(this);
  return with_condition ? condition() : logic(false);
}

ExprPtr Parser::condition() {
  int line = current().line;
  const size_t unknown_before = unknown_.size();
  const int depth_before = depth_;
  ExprPtr value = logic(false);
  while (skip_name("if")) {
    deeper();  // what came before lies inside
    auto node = std::make_unique<Operands>(Expr::Type::cond, line);
    node->items.push_back(logic(false));
    node->items.push_back(std::move(value));
    if (skip_name("else")) node->items.push_back(expression());
    unknown_.resize(unknown_before);  // what a condition may leave out fails only when it runs
    value = std::move(node);
    line = current().line;
  }
  depth_ = depth_before;
  return value;
}

ExprPtr Parser::logic(bool is_and) {
  const int line = current().line;
  const auto part = [&] { return is_and ? negation() : logic(true); };
  ExprPtr first = part();
  const char* word = is_and ? "and" : "or";
  if (!at_name(word)) return first;
  auto node = std::make_unique<Operands>(is_and ? Expr::Type::logic_and : Expr::Type::logic_or, line);
  node->items.push_back(std::move(first));
  while (skip_name(word)) node->items.push_back(part());
  return node;
}

ExprPtr Parser::negation() {
  if (!at_name("not")) return comparison();
  auto node = std::make_unique<Operands>(Expr::Type::negation, take().line);
  const Nested level(this);
  node->items.push_back(negation());
  return node;
}

ExprPtr Parser::comparison() {
  const int line = current().line;
  ExprPtr first = sum();
  std::unique_ptr<Compare> node;
  while (true) {
    constexpr std::pair<std::string_view, Relation> kRelations[] = {{"==", Relation::eq}, {"!=", Relation::ne},
                                                                    {"<", Relation::lt},  {"<=", Relation::le},
                                                                    {">", Relation::gt},  {">=", Relation::ge}};
    std::optional<Relation> relation;
    for (const auto& [op, found] : kRelations) {
      if (at_op(op)) relation = found;
    }
    if (at_name("in")) relation = Relation::in;
    if (at_name("not") && ahead().type == Type::name && ahead().text == "in") {
      relation = Relation::not_in;
      take();
    }
    if (!relation) break;
    take();
    if (node == nullptr) node = std::make_unique<Compare>(std::move(first), line);
    node->rest.emplace_back(*relation, sum());
  }
  return node != nullptr ? ExprPtr(std::move(node)) : std::move(first);
}

ExprPtr Parser::sum() {
  const int line = current().line;
  ExprPtr first = concat();
  if (!at_op("+") && !at_op("-")) return first;
  auto node = std::make_unique<Chain>(std::move(first), line);
  while (at_op("+") || at_op("-")) {
    const Op op = take().text == "+" ? Op::add : Op::sub;
    node->rest.emplace_back(op, concat());
  }
  return node;
}

ExprPtr Parser::concat() {
  const int line = current().line;
  ExprPtr first = product();
  if (!at_op("~")) return first;
  auto node = std::make_unique<Operands>(Expr::Type::concat, line);
  node->items.push_back(std::move(first));
  while (skip_op("~")) node->items.push_back(product());
  return node;
}

ExprPtr Parser::product() {
  const int line = current().line;
  ExprPtr first = unary();
  std::unique_ptr<Chain> node;
  while (true) {
    if (!at_op("*") && !at_op("/") && !at_op("//") && !at_op("%")) break;
    const std::string op = take().text;
    if (node == nullptr) node = std::make_unique<Chain>(std::move(first), line);
    node->rest.emplace_back(op == "*" ? Op::mul : op == "/" ? Op::div : op == "//" ? Op::floor_div : Op::mod, unary());
  }
  return node != nullptr ? ExprPtr(std::move(node)) : std::move(first);
}

ExprPtr Parser::unary(bool with_filters) {
  const int line = current().line;
  ExprPtr node;
  if (skip_op("-")) {
    const Nested level(this);
    auto minus = std::make_unique<Operands>(Expr::Type::minus, line);
    minus->items.push_back(unary(false));
    node = std::move(minus);
  } else {
    node = primary();
  }
  return postfix(std::move(node), with_filters);
}

ExprPtr Parser::primary() {
  const int line = current().line;
  switch (current().type) {
    case Type::name:
      return name();
    case Type::text: {
      std::string text;
      while (current().type == Type::text) text += take().text;
      return std::make_unique<Constant>(Value(Kind::string, std::make_shared<Str>(nullptr, std::move(text), false)), line);
    }
    case Type::integer:
      return std::make_unique<Constant>(Value::integer(take().integer), line);
    case Type::floating:
      return std::make_unique<Constant>(Value::floating(take().floating), line);
    default:
      break;
  }
  if (skip_op("(")) {
    ExprPtr inside = tuple({.parenthesized = true});
    expect_op(")");
    return inside;
  }
  if (at_op("[")) return list();
  if (at_op("{")) return dict();
  fail("unexpected '" + describe(current()) + "'");
}

ExprPtr Parser::name() {
  const Token token = take();
  if (token.text == "true" || token.text == "True") return std::make_unique<Constant>(Value::boolean(true), token.line);
  if (token.text == "false" || token.text == "False") return std::make_unique<Constant>(Value::boolean(false), token.line);
  if (token.text == "none" || token.text == "None") return std::make_unique<Constant>(Value(), token.line);
  if (macros_ > 0 && (token.text == "caller" || token.text == "varargs" || token.text == "kwargs")) {
    fail("'" + token.text + "' in a macro is not supported", token.line);
  }
  return std::make_unique<Name>(name_id(token.text), token.line);
}

ExprPtr Parser::list() {
  auto node = std::make_unique<Operands>(Expr::Type::list, take().line);
  while (!at_op("]")) {
    if (!node->items.empty()) expect_op(",");
    if (at_op("]")) break;
    node->items.push_back(expression());
  }
  expect_op("]");
  return node;
}

ExprPtr Parser::dict() {
  auto node = std::make_unique<DictExpr>(take().line);
  while (!at_op("}")) {
    if (!node->items.empty()) expect_op(",");
    if (at_op("}")) break;
    ExprPtr key = expression();
    expect_op(":");
    node->items.emplace_back(std::move(key), expression());
  }
  expect_op("}");
  return node;
}

// What follows a value: .a [b] (c), and with filters also |d and `is e`.
ExprPtr Parser::postfix(ExprPtr base, bool with_filters) {
  const int line = current().line;
  std::unique_ptr<Postfix> node;
  const auto add = [&](Link link) {
    if (node == nullptr) node = std::make_unique<Postfix>(std::move(base), line);
    node->links.push_back(std::move(link));
  };
  const auto call = [&] {
    Link link;
    link.type = Link::Type::call;
    link.line = current().line;
    link.args = call_args();
    return link;
  };
  while (at_op(".") || at_op("[") || at_op("(")) add(at_op("(") ? call() : subscript());
  while (with_filters) {  // after the first filter only filters, tests and calls follow
    if (at_op("|")) {
      take();
      add(filter());
    } else if (at_name("is")) {
      take();
      add(test());
    } else if (at_op("(")) {
      add(call());
    } else {
      break;
    }
  }
  return node != nullptr ? ExprPtr(std::move(node)) : std::move(base);
}

Link Parser::subscript() {
  Link link;
  link.line = current().line;
  if (skip_op(".")) {
    if (current().type == Type::name) {
      link.name = take().text;
      return link;
    }
    if (current().type != Type::integer) fail("expected a name or a number after '.'");
    link.type = Link::Type::item;
    const Token number = take();
    link.start = std::make_unique<Constant>(Value::integer(number.integer), number.line);
    return link;
  }
  expect_op("[");
  if (!at_op(":")) link.start = expression();
  link.type = at_op(":") ? Link::Type::slice : Link::Type::item;
  if (skip_op(":")) {
    if (!at_op(":") && !at_op("]")) link.stop = expression();
    if (skip_op(":") && !at_op("]")) link.step = expression();
  }
  expect_op("]");
  return link;
}

void Parser::call_arg(CallArgs* args, int line) {
  const bool positional = args->named.empty() && !args->star;
  if (at_op("*") && positional) {
    take();
    args->star = expression();
  } else if (current().type == Type::name && ahead().type == Type::op && ahead().text == "=") {
    const std::string key = take().text;
    take();
    for (const auto& [name, value] : args->named) {
      if (name == key) fail("keyword argument repeated: " + key, line);
    }
    if (args->named.size() == kMaxParameters) {
      fail("a call has more than " + std::to_string(kMaxParameters) + " keyword arguments", line);
    }
    args->named.emplace_back(key, expression());
  } else if (positional) {
    args->positional.push_back(expression());
  } else {
    fail("invalid syntax for function call expression", line);
  }
}

CallArgs Parser::call_args() {
  const int line = current().line;
  expect_op("(");
  CallArgs args;
  bool first = true;
  while (!at_op(")")) {
    if (!first) {
      expect_op(",");
      if (at_op(")")) break;
    }
    call_arg(&args, line);
    first = false;
  }
  expect_op(")");
  return args;
}

void Parser::check_known(const Link& link, bool is_filter) {
  const bool known = is_filter ? find_filter(link.name) != nullptr : find_test(link.name) != nullptr;
  if (known || soft_) return;
  unknown_.emplace_back(std::string("no ") + (is_filter ? "filter" : "test") + " named '" + link.name + "'", link.line);
}

Link Parser::filter() {
  Link link;
  link.type = Link::Type::filter;
  link.line = current().line;
  link.name = expect_any_name();
  check_known(link, true);
  if (at_op("(")) link.args = call_args();
  return link;
}

Link Parser::test() {
  Link link;
  link.type = Link::Type::test;
  link.line = current().line;
  link.negated = skip_name("not");
  link.name = expect_any_name();
  check_known(link, false);
  if (at_op("(")) {
    link.args = call_args();
    return link;
  }
  // A test takes arguments in parentheses, or one value without them.
  const Type type = current().type;
  const bool value =
      type == Type::name || type == Type::text || type == Type::integer || type == Type::floating || at_op("[") || at_op("{");
  if (!value || at_name("else") || at_name("or") || at_name("and")) return link;
  if (at_name("is")) fail("you cannot chain multiple tests with is");
  const Nested level(this);
  link.args.positional.push_back(postfix(primary(), false));
  return link;
}

}  // namespace fovea::jinja
