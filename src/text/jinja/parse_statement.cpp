#include <algorithm>

#include "text/jinja/parser.h"

namespace fovea::jinja {

namespace {

// Sets a variable for as long as this lives.
template <typename T>
class Scoped {
 public:
  Scoped(T* variable, T value) : variable_(variable), old_(*variable) { *variable = value; }
  ~Scoped() { *variable_ = old_; }
  Scoped(const Scoped&) = delete;
  Scoped& operator=(const Scoped&) = delete;

 private:
  T* const variable_;
  const T old_;
};

}  // namespace

Template parse_template(std::string_view source, int max_depth) { return Parser(source, max_depth).run(); }

Template Parser::run() {
  Template result;
  result.body = until({});
  if (!unknown_.empty()) fail(unknown_[0].first, unknown_[0].second);
  result.names = std::move(names_);
  find_late_names(&result);
  return result;
}

// The rest of a tag, then a body.
Body Parser::statements(std::initializer_list<const char*> ends) {
  skip_op(":");
  expect(Type::block_end, "end of statement block");
  return until(ends);
}

void Parser::skip_end() { take(); }

Body Parser::until(std::initializer_list<const char*> ends) {
  const Nested level(this);
  Body body;
  while (current().type != Type::end) {
    if (current().type == Type::data) {
      const Token token = take();
      body.statements.push_back(std::make_unique<Text>(token.text, token.line));
    } else if (current().type == Type::print_begin) {
      const int line = take().line;
      body.statements.push_back(std::make_unique<Print>(tuple(), line));
      expect(Type::print_end, "end of print statement");
    } else {
      expect(Type::block_begin, "a tag");
      if (std::any_of(ends.begin(), ends.end(), [&](const char* end) { return at_name(end); })) return body;
      if (at_name("print")) {
        print(&body);
      } else {
        body.statements.push_back(statement());
      }
      expect(Type::block_end, "end of statement block");
    }
  }
  if (ends.size() != 0) {
    fail("unexpected end of template: the innermost open block is '" + open_tags_.back() + "'");
  }
  return body;
}

std::unique_ptr<Statement> Parser::statement() {
  if (current().type != Type::name) fail("a tag name is expected");
  const std::string tag = current().text;
  open_tags_.push_back(tag);
  struct Row {
    std::string_view tag;
    std::unique_ptr<Statement> (Parser::*parse)();
  };
  constexpr Row kRows[] = {
      {"for", &Parser::for_loop},        {"if", &Parser::branch},       {"set", &Parser::set},
      {"macro", &Parser::macro},         {"call", &Parser::call_block}, {"generation", &Parser::generation},
      {"filter", &Parser::filter_block}, {"with", &Parser::with},       {"block", &Parser::block},
      {"break", &Parser::jump},          {"continue", &Parser::jump},   {"autoescape", &Parser::autoescape},
      {"include", &Parser::refused},     {"import", &Parser::refused},  {"from", &Parser::refused},
      {"extends", &Parser::refused}};
  for (const Row& row : kRows) {
    if (row.tag != tag) continue;
    auto node = (this->*row.parse)();
    open_tags_.pop_back();
    return node;
  }
  open_tags_.pop_back();
  fail("unknown tag '" + tag + "'" +
       (open_tags_.empty() ? ""
                           : "; the innermost block that needs to be closed is '" + open_tags_.back() + "'"));
}

void Parser::print(Body* body) {
  const int line = take().line;
  for (bool first = true; current().type != Type::block_end; first = false) {
    if (!first) expect_op(",");
    body->statements.push_back(std::make_unique<Print>(expression(), line));
  }
}

Target Parser::target_of(const Expr& expr) {
  Target target;
  target.line = expr.line;
  if (expr.type == Expr::Type::name) {
    target.id = static_cast<const Name&>(expr).id;
    if (names_[static_cast<size_t>(target.id)] == "loop" && !open_loops_.empty()) {
      fail("cannot assign to the special variable 'loop' in a for loop", expr.line);
    }
    return target;
  }
  if (expr.type != Expr::Type::tuple) fail("cannot assign to an expression", expr.line);
  target.type = Target::Type::tuple;
  for (const ExprPtr& part : static_cast<const ListExpr&>(expr).items)
    target.parts.push_back(target_of(*part));
  return target;
}

Target Parser::single_target(bool with_namespace) {
  if (with_namespace && current().type == Type::name && ahead().type == Type::op && ahead().text == ".") {
    Target target;
    target.type = Target::Type::attribute;
    const Token token = take();
    target.line = token.line;
    target.id = name_id(token.text);
    take();
    target.attribute = expect_any_name();
    return target;
  }
  return target_of(*primary());
}

// a, or a, b with nested (c, d); ns.a where with_namespace.
Target Parser::target(bool with_namespace, const char* end) {
  const Nested level(this);
  Target all;
  all.type = Target::Type::tuple;
  all.line = current().line;
  bool is_tuple = false;
  const TupleRules rules{.end = end};
  while (true) {
    if (!all.parts.empty()) expect_op(",");
    if (tuple_ends(rules)) break;
    all.parts.push_back(single_target(with_namespace));
    if (!at_op(",")) break;
    is_tuple = true;
  }
  if (is_tuple) return all;
  if (all.parts.empty()) fail("expected a name to assign to, got '" + describe(current()) + "'");
  Target only = std::move(all.parts[0]);
  return only;
}

std::unique_ptr<Statement> Parser::for_loop() {
  auto node = std::make_unique<ForStatement>(take().line);
  node->loop_id = name_id("loop");
  node->target = target(false, "in");
  const auto check_target = [&](const auto& self, const Target& part) -> void {
    if (part.type == Target::Type::name && names_[static_cast<size_t>(part.id)] == "loop") {
      fail("cannot assign to the special variable 'loop' in a for loop", part.line);
    }
    for (const Target& inner : part.parts) self(self, inner);
  };
  check_target(check_target, node->target);
  expect_name("in");
  const Scoped<bool> hard(&soft_, soft_);
  node->iterable = tuple({.with_condition = false, .end = "recursive"});
  soft_ = false;
  if (skip_name("if")) node->test = expression();
  node->recursive = skip_name("recursive");
  node->uses_loop = node->recursive;
  open_loops_.push_back(node.get());
  {
    // A recursive loop is a function of its own: an outer loop cannot be left from it.
    const Scoped<int> inside(&loops_, node->recursive ? 1 : loops_ + 1);
    node->body = statements({"endfor", "else"});
  }
  const bool has_else = at_name("else");
  skip_end();
  if (has_else) {
    const bool body_uses_loop = node->uses_loop;
    const Scoped<int> inside(&loops_, node->recursive ? 0 : loops_);
    node->otherwise = statements({"endfor"});
    skip_end();
    node->uses_loop = body_uses_loop;
  }
  open_loops_.pop_back();
  return node;
}

std::unique_ptr<Statement> Parser::branch() {
  auto node = std::make_unique<Branch>(take().line);
  const Scoped<bool> soft(&soft_, true);
  while (true) {
    ExprPtr test = tuple({.with_condition = false});
    node->cases.emplace_back(std::move(test), statements({"elif", "else", "endif"}));
    if (skip_name("elif")) continue;
    const bool has_else = at_name("else");
    skip_end();
    if (has_else) {
      node->otherwise = statements({"endif"});
      skip_end();
    }
    return node;
  }
}

std::unique_ptr<Postfix> Parser::filters() {
  auto node = std::make_unique<Postfix>(nullptr, current().line);
  while (skip_op("|")) node->links.push_back(filter());
  return node;
}

std::unique_ptr<Statement> Parser::set() {
  const int line = take().line;
  Target to = target(true);
  if (skip_op("=")) {
    auto node = std::make_unique<Set>(line);
    node->target = std::move(to);
    node->value = tuple();
    return node;
  }
  auto node = std::make_unique<SetBlock>(line);
  node->target = std::move(to);
  if (at_op("|")) node->filters = filters();
  const Scoped<bool> hard(&soft_, false);
  node->body = statements({"endset"});
  skip_end();
  return node;
}

void Parser::signature(MacroDefinition* definition) {
  expect_op("(");
  while (!at_op(")")) {
    if (!definition->parameters.empty()) expect_op(",");
    const std::string name = expect_any_name();
    for (const char* constant : {"true", "false", "none", "True", "False", "None"}) {
      if (name == constant) fail("cannot assign to '" + name + "'");
    }
    if (std::find(definition->parameter_names.begin(), definition->parameter_names.end(), name) !=
        definition->parameter_names.end()) {
      fail("the parameter '" + name + "' comes twice");
    }
    if (skip_op("=")) {
      definition->defaults.push_back(expression());
    } else if (!definition->defaults.empty()) {
      fail("a parameter without a default follows one with a default");
    }
    definition->parameters.push_back(name_id(name));
    definition->parameter_names.push_back(name);
  }
  expect_op(")");
}

void Parser::macro_body(MacroDefinition* definition, const char* end) {
  definition->caller_id = name_id("caller");
  definition->kwargs_id = name_id("kwargs");
  definition->varargs_id = name_id("varargs");
  const Scoped<bool> hard(&soft_, false);
  const Scoped<int> loops(&loops_, 0);
  open_macros_.push_back(definition);
  definition->body = statements({end});
  open_macros_.pop_back();
  skip_end();
  // A parameter of such a name is an ordinary one, except `caller`, which then needs a default.
  const auto position = [&](const char* name) {
    return static_cast<size_t>(
        std::find(definition->parameter_names.begin(), definition->parameter_names.end(), name) -
        definition->parameter_names.begin());
  };
  const size_t count = definition->parameters.size();
  if (position("kwargs") < count) definition->uses_kwargs = false;
  if (position("varargs") < count) definition->uses_varargs = false;
  if (definition->uses_caller && position("caller") < count - definition->defaults.size()) {
    fail("the special parameter 'caller' must be omitted or have a default", definition->line);
  }
}

std::unique_ptr<Statement> Parser::macro() {
  auto node = std::make_unique<MacroStatement>(take().line);
  node->definition.line = node->line;
  node->definition.name = expect_any_name();
  node->id = name_id(node->definition.name);
  {
    const Scoped<bool> hard(&soft_, false);
    signature(&node->definition);
  }
  macro_body(&node->definition, "endmacro");
  return node;
}

std::unique_ptr<Statement> Parser::call_block() {
  auto node = std::make_unique<CallBlock>(take().line);
  node->definition.line = node->line;
  if (at_op("(")) signature(&node->definition);
  ExprPtr call = expression();
  const bool is_call =
      call->type == Expr::Type::postfix && static_cast<Postfix&>(*call).links.back().type == Link::Type::call;
  if (!is_call) fail("expected a call", node->line);
  node->call.reset(static_cast<Postfix*>(call.release()));
  macro_body(&node->definition, "endcall");
  return node;
}

std::unique_ptr<Statement> Parser::generation() {
  auto node = std::make_unique<CallBlock>(take().line);
  node->definition.line = node->line;
  macro_body(&node->definition, "endgeneration");
  return node;
}

std::unique_ptr<Statement> Parser::filter_block() {
  auto node = std::make_unique<FilterBlock>(take().line);
  const Scoped<bool> hard(&soft_, false);
  node->filters = std::make_unique<Postfix>(nullptr, node->line);
  node->filters->links.push_back(filter());
  while (skip_op("|")) node->filters->links.push_back(filter());
  node->body = statements({"endfilter"});
  skip_end();
  return node;
}

std::unique_ptr<Statement> Parser::with() {
  auto node = std::make_unique<With>(take().line);
  while (current().type != Type::block_end) {
    if (!node->variables.empty()) expect_op(",");
    Target to = target(false);
    expect_op("=");
    node->variables.emplace_back(std::move(to), expression());
  }
  const Scoped<bool> hard(&soft_, false);
  node->body = statements({"endwith"});
  skip_end();
  return node;
}

std::unique_ptr<Statement> Parser::block() {
  auto node = std::make_unique<Block>(take().line);
  const std::string name = expect_any_name();
  if (!blocks_.insert(name).second) fail("the block '" + name + "' is defined twice", node->line);
  node->scoped = skip_name("scoped");
  skip_name("required");
  const Scoped<bool> hard(&soft_, false);
  const Scoped<int> loops(&loops_, 0);
  node->body = statements({"endblock"});
  skip_end();
  skip_name(name);
  return node;
}

std::unique_ptr<Statement> Parser::jump() {
  const Token token = take();
  if (loops_ == 0) fail("'" + token.text + "' outside a loop", token.line);
  return std::make_unique<Jump>(
      token.text == "break" ? Statement::Type::break_loop : Statement::Type::continue_loop, token.line);
}

// Only switching it off is of use here: templates print plain text.
std::unique_ptr<Statement> Parser::autoescape() {
  auto node = std::make_unique<With>(take().line);
  if (!skip_name("false") && !skip_name("False")) fail("autoescape is not supported");
  const Scoped<bool> hard(&soft_, false);
  node->body = statements({"endautoescape"});
  skip_end();
  return node;
}

std::unique_ptr<Statement> Parser::refused() {
  const Token token = take();
  while (current().type != Type::block_end && current().type != Type::end) take();
  return std::make_unique<Refuse>("'" + token.text + "' needs another template, and a chat template has none",
                                  token.line);
}

}  // namespace fovea::jinja
