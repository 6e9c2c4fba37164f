// Tokens to the tree of ast.h, by the grammar of jinja2 with the tags break, continue and generation. What no published
// template uses is refused by name.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/lexer.h"

namespace fovea::jinja {

// Of a macro, and named arguments of a call, which are found by going through them. More than any published template has.
inline constexpr size_t kMaxParameters = 255;

// Fails with a TemplateError that has its line. max_depth bounds the nesting of expressions and blocks.
Template parse_template(std::string_view source, int max_depth);

// The recursive descent over one template. Expressions in parse_expr.cpp, statements in parse_statement.cpp.
class Parser {
 public:
  Parser(std::string_view source, int max_depth) : tokens_(tokenize(source)), max_depth_(max_depth) {}
  Template run();

 private:
  using Type = Token::Type;
  class Nested;   // one level of nesting, for as long as it lives
  void deeper();  // one level more; fails where there are too many

  // The token stream.
  const Token& current() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token take() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool at_op(std::string_view op) const { return current().type == Type::op && current().text == op; }
  bool at_name(std::string_view name) const { return current().type == Type::name && current().text == name; }
  bool skip_op(std::string_view op);
  bool skip_name(std::string_view name);
  void expect_op(std::string_view op);
  std::string expect_any_name();
  void expect(Type type, const char* what);
  [[noreturn]] void fail(const std::string& what, int line = 0) const;

  // Expressions.
  struct TupleRules {
    bool with_condition = true;
    bool primary_only = false;   // only names and literals: assignment targets
    bool parenthesized = false;  // () may be empty
    const char* end = nullptr;   // a name that ends the tuple
  };
  ExprPtr tuple(const TupleRules& rules);
  ExprPtr tuple() { return tuple(TupleRules{}); }
  bool tuple_ends(const TupleRules& rules) const;
  ExprPtr expression(bool with_condition = true);
  ExprPtr condition();
  ExprPtr logic(bool is_and);
  ExprPtr negation();
  ExprPtr comparison();
  ExprPtr sum();
  ExprPtr concat();
  ExprPtr product();
  ExprPtr unary(bool with_filters = true);
  ExprPtr primary();
  ExprPtr name();
  ExprPtr list();
  ExprPtr dict();
  ExprPtr postfix(ExprPtr base, bool with_filters);
  Link subscript();
  CallArgs call_args();
  void call_arg(CallArgs* args, int line);
  Link filter();
  Link test();
  void check_known(const Link& link, bool is_filter);

  // Statements.
  Body statements(std::initializer_list<const char*> ends);  // up to, not over, the name of an end tag
  Body until(std::initializer_list<const char*> ends);
  std::unique_ptr<Statement> statement();
  std::unique_ptr<Statement> for_loop();
  std::unique_ptr<Statement> branch();
  std::unique_ptr<Statement> set();
  std::unique_ptr<Statement> macro();
  std::unique_ptr<Statement> generation();
  std::unique_ptr<Statement> filter_block();
  std::unique_ptr<Statement> jump();
  std::unique_ptr<Postfix> filters();
  void signature(MacroStatement* macro);
  Target target(bool with_namespace, const char* end = nullptr);
  Target single_target(bool with_namespace);
  Target target_of(const Expr& expr);

  int name_id(const std::string& name);

  const std::vector<Token> tokens_;
  const int max_depth_;
  size_t at_ = 0;
  int depth_ = 0;
  int loops_ = 0;                                     // for bodies around, within the same macro
  bool soft_ = false;                                 // in a branch: an unknown filter fails only when it runs
  std::vector<std::pair<std::string, int>> unknown_;  // filters and tests that nobody knows, with their lines
  int macros_ = 0;                                    // macro bodies around
  std::vector<std::string> open_tags_;
  std::unordered_map<std::string, int> ids_;
  std::vector<std::string> names_;
};

class Parser::Nested {
 public:
  explicit Nested(Parser* parser) : parser_(parser) { parser_->deeper(); }
  ~Nested() { --parser_->depth_; }
  Nested(const Nested&) = delete;
  Nested& operator=(const Nested&) = delete;

 private:
  Parser* const parser_;
};

}  // namespace fovea::jinja
