// One run of a parsed template: statements write to the output, expressions give values.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "text/jinja/ast.h"
#include "text/jinja/loop.h"
#include "text/jinja/macro.h"
#include "text/jinja/runtime.h"

namespace fovea::jinja {

struct RunLimits {
  int64_t max_steps;
  int max_depth;
  size_t max_output_bytes;
  size_t max_value_bytes;
};

class Interpreter {
 public:
  // The template and the context outlive the run.
  Interpreter(const Template& source, const nlohmann::ordered_json& context, const RunLimits& limits, std::time_t now);

  std::string run();                  // once; fails with a TemplateError
  int line() const { return line_; }  // where the run is, or where it failed

 private:
  enum class Flow { next, break_loop, continue_loop };
  class Level;  // one level of the interpreter's recursion

  // Statements (interpreter.cpp).
  Flow run_body(const Body& body);
  Flow run_statement(const Statement& statement);
  Flow run_for(const ForStatement& statement);
  Flow run_branch(const Branch& statement);
  Flow run_enclosed(const Enclosed& statement);
  Flow run_in_scope(const Body& body, Scope* outer, std::string* out);
  void run_set(const Set& statement);
  void make_macro(const MacroStatement& statement);
  void write(std::string_view text);
  void assign(const Target& target, const Value& value);
  Namespace& namespace_of(const Target& target);

  // Scopes.
  Scope* push_scope(Scope* parent);
  void pop_scope(Scope* outer);
  Value lookup(int name);
  void assign(Scope* scope, int name, Value value);
  const Value& context_value(int name);

  // Expressions (evaluate.cpp).
  Value evaluate(const Expr& expr);
  std::vector<Value> evaluate_all(const std::vector<ExprPtr>& items);
  Value evaluate_dict(const DictExpr& expr);
  Value evaluate_chain(const Chain& expr);
  Value evaluate_concat(const Operands& expr);
  Value evaluate_logic(const Operands& expr);
  Value evaluate_compare(const Compare& expr);
  Value evaluate_cond(const Operands& expr);
  Value apply(const std::vector<Link>& links, Value value);
  Value apply(const Link& link, const Value& value);
  Args evaluate_args(const CallArgs& args);
  Value call(const Value& callee, const Args& args);
  Value call_macro(const Macro& macro, const Args& args);
  void bind_parameters(const MacroStatement& definition, const Args& args, Scope* scope);

  const Template& source_;
  const nlohmann::ordered_json& context_;
  const RunLimits limits_;
  Runtime rt_;
  std::vector<std::unique_ptr<Value>> context_values_;  // by name, made when first used
  std::vector<std::unique_ptr<Scope>> scopes_;          // those in use, in the order they were entered
  std::vector<std::unique_ptr<Scope>> captured_;        // left, but macros still see them
  Scope* scope_ = nullptr;
  std::string* out_ = nullptr;
  int line_ = 1;
  int level_ = 0;
  int calls_ = 0;
};

class Interpreter::Level {
 public:
  explicit Level(Interpreter* interpreter) : interpreter_(interpreter) {
    // Ten levels of the interpreter for each level of nesting: a macro that calls itself takes about eight.
    if (++interpreter_->level_ > interpreter_->limits_.max_depth * 10) {
      Runtime::fail("the template calls itself too deeply", StatusCode::resource_exhausted);
    }
  }
  ~Level() { --interpreter_->level_; }
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;

 private:
  Interpreter* const interpreter_;
};

}  // namespace fovea::jinja
