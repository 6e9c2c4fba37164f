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
  return result;
}

// The rest of a tag, then a body.
Body Parser::statements(std::initializer_list<const char*> ends) {
  skip_op(":");
  expect(Type::block_end, "end of statement block");
  return until(ends);
}

Body Parser::until(std::initializer_list<const char*> ends) {
  const Nested level(this);
  Body body;
  while (current().type != Type::end) {
    if (current().type == Type::data) {
      const Token token = take();
      body.push_back(std::make_unique<Text>(token.text, token.line));
    } else if (current().type == Type::print_begin) {
      const int line = take().line;
      body.push_back(std::make_unique<Print>(tuple(), line));
      expect(Type::print_end, "end of print statement");
    } else {
      expect(Type::block_begin, "a tag");
      if (std::any_of(ends.begin(), ends.end(), [&](const char* end) { return at_name(end); })) return body;
      body.push_back(statement());
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
  struct Row {
    std::string_view tag;
    std::unique_ptr<Statement> (Parser::*parse)();
  };
  constexpr Row kRows[] = {{"for", &Parser::for_loop}, {"if", &Parser::branch},           {"set", &Parser::set},
                           {"macro", &Parser::macro},  {"filter", &Parser::filter_block}, {"generation", &Parser::generation},
                           {"break", &Parser::jump},   {"continue", &Parser::jump}};
  for (const Row& row : kRows) {
    if (row.tag != tag) continue;
    open_tags_.push_back(tag);
    auto node = (this->*row.parse)();
    open_tags_.pop_back();
    return node;
  }
  for (const char* known : {"autoescape", "block", "call", "do", "extends", "from", "import", "include", "print", "with"}) {
    if (tag == known) throw TemplateError(StatusCode::unsupported, "the tag '" + tag + "' is not supported", current().line);
  }
  fail("unknown tag '" + tag + "'" +
       (open_tags_.empty() ? "" : "; the innermost block that needs to be closed is '" + open_tags_.back() + "'"));
}

Target Parser::target_of(const Expr& expr) {
  Target target;
  if (expr.type == Expr::Type::name) {
    target.id = static_cast<const Name&>(expr).id;
    if (loops_ > 0 && names_[static_cast<size_t>(target.id)] == "loop") {
      fail("cannot assign to the special variable 'loop' in a for loop", expr.line);
    }
    return target;
  }
  if (expr.type != Expr::Type::tuple) fail("cannot assign to an expression", expr.line);
  target.type = Target::Type::tuple;
  for (const ExprPtr& part : static_cast<const Operands&>(expr).items) target.parts.push_back(target_of(*part));
  return target;
}

Target Parser::single_target(bool with_namespace) {
  if (with_namespace && current().type == Type::name && ahead().type == Type::op && ahead().text == ".") {
    Target target;
    target.type = Target::Type::attribute;
    target.id = name_id(take().text);
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
  const Scoped<bool> soft(&soft_, soft_);
  {
    const Scoped<int> inside(&loops_, loops_ + 1);
    node->target = target(false, "in");
    if (!skip_name("in")) fail("expected 'in', got '" + describe(current()) + "'");
    node->iterable = tuple({.with_condition = false, .end = "recursive"});
    soft_ = false;
    if (skip_name("if")) node->test = expression();
    if (at_name("recursive")) fail("'recursive' of a for loop is not supported");
    node->body = statements({"endfor", "else"});
  }
  if (skip_name("else")) node->otherwise = statements({"endfor"});
  take();
  return node;
}

std::unique_ptr<Statement> Parser::branch() {
  auto node = std::make_unique<Branch>(take().line);
  const Scoped<bool> soft(&soft_, true);
  do {
    ExprPtr test = tuple({.with_condition = false});
    node->cases.emplace_back(std::move(test), statements({"elif", "else", "endif"}));
  } while (skip_name("elif"));
  if (skip_name("else")) node->otherwise = statements({"endif"});
  take();
  return node;
}

std::unique_ptr<Postfix> Parser::filters() {
  auto node = std::make_unique<Postfix>(nullptr, current().line);
  do node->links.push_back(filter());
  while (skip_op("|"));
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
  auto node = std::make_unique<Enclosed>(Statement::Type::set_block, line);
  node->target = std::move(to);
  if (skip_op("|")) node->filters = filters();
  const Scoped<bool> hard(&soft_, false);
  node->body = statements({"endset"});
  take();
  return node;
}

void Parser::signature(MacroStatement* macro) {
  expect_op("(");
  while (!at_op(")")) {
    if (!macro->parameters.empty()) expect_op(",");
    const std::string name = expect_any_name();
    const std::vector<std::string>& names = macro->parameter_names;
    if (std::find(names.begin(), names.end(), name) != names.end()) fail("the parameter '" + name + "' comes twice");
    if (names.size() == kMaxParameters) fail("a macro has more than " + std::to_string(kMaxParameters) + " parameters");
    if (skip_op("=")) {
      macro->defaults.push_back(expression());
    } else if (!macro->defaults.empty()) {
      fail("a parameter without a default follows one with a default");
    }
    macro->parameters.push_back(name_id(name));
    macro->parameter_names.push_back(name);
  }
  expect_op(")");
}

std::unique_ptr<Statement> Parser::macro() {
  auto node = std::make_unique<MacroStatement>(take().line);
  node->name = expect_any_name();
  node->id = name_id(node->name);
  const Scoped<bool> hard(&soft_, false);
  signature(node.get());
  const Scoped<int> loops(&loops_, 0), inside(&macros_, macros_ + 1);
  node->body = statements({"endmacro"});
  take();
  return node;
}

std::unique_ptr<Statement> Parser::generation() {
  auto node = std::make_unique<Enclosed>(Statement::Type::scope, take().line);
  const Scoped<bool> hard(&soft_, false);
  const Scoped<int> loops(&loops_, 0);
  node->body = statements({"endgeneration"});
  take();
  return node;
}

std::unique_ptr<Statement> Parser::filter_block() {
  auto node = std::make_unique<Enclosed>(Statement::Type::filter_block, take().line);
  const Scoped<bool> hard(&soft_, false);
  node->filters = filters();
  node->body = statements({"endfilter"});
  take();
  return node;
}

std::unique_ptr<Statement> Parser::jump() {
  const Token token = take();
  if (loops_ == 0) fail("'" + token.text + "' outside a loop", token.line);
  return std::make_unique<Statement>(token.text == "break" ? Statement::Type::break_loop : Statement::Type::continue_loop,
                                     token.line);
}

}  // namespace fovea::jinja
