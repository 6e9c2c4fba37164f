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

// A JSON value as a value of a run. Fails when it is nested deeper than kMaxValueDepth.
Value from_json(Runtime& rt, const nlohmann::ordered_json& json, int depth = 0);

class Interpreter {
 public:
  // The template and the context outlive the run.
  Interpreter(const Template& source, const nlohmann::ordered_json& context, const RunLimits& limits,
              std::time_t now);

  std::string run();                  // once; fails with a TemplateError
  int line() const { return line_; }  // where the run is, or where it failed

 private:
  enum class Flow { next, break_loop, continue_loop };
  class Level;  // one level of the interpreter's recursion

  // Statements (interpreter.cpp).
  Flow run_body(const Body& body);
  Flow run_statement(const Statement& statement);
  Flow run_for(const ForStatement& statement);
  Flow run_loop(const ForStatement& statement, const Value& items, int depth0);
  Flow run_branch(const Branch& statement);
  void run_set(const Set& statement);
  void run_set_block(const SetBlock& statement);
  Flow run_with(const With& statement);
  void run_block(const Block& statement);
  Flow run_filter_block(const FilterBlock& statement);
  void run_call_block(const CallBlock& statement);
  void make_macro(const MacroStatement& statement);
  void write(std::string_view text);
  void write_result(const Value& value);
  void assign(const Target& target, const Value& value);
  void check_namespaces(const Target& target);
  Value held(const Target& target);
  Value filtered_source(const ForStatement& statement, const Value& items);

  // Scopes.
  Scope* push_scope(Scope* parent);
  void pop_scope();
  Value lookup(int name);
  const Value& context_value(int name);

  // Expressions (evaluate.cpp).
  Value evaluate(const Expr& expr);
  Value evaluate_list(const ListExpr& expr);
  Value evaluate_dict(const DictExpr& expr);
  Value evaluate_chain(const Chain& expr);
  Value evaluate_concat(const Concat& expr);
  Value evaluate_logic(const Logic& expr);
  Value evaluate_compare(const Compare& expr);
  Value evaluate_cond(const Cond& expr);
  Value evaluate_postfix(const Postfix& expr, Value base);
  Value apply(const Link& link, const Value& value, const Value* caller);
  Args evaluate_args(const CallArgs& args);

  // Calls (call.cpp).
  Value call(const Value& callee, const Args& args);
  Value call_macro(const Macro& macro, const Args& args);
  Value call_loop(const Value& loop, const Args& args);
  void bind_parameters(const MacroDefinition& definition, const Args& args, Scope* scope);
  void bind_specials(const MacroDefinition& definition, std::vector<std::pair<std::string, Value>> named,
                     const Args& args, bool found_caller, Scope* scope);

  const Template& source_;
  const nlohmann::ordered_json& context_;
  const RunLimits limits_;
  Runtime rt_;
  std::vector<std::unique_ptr<Value>> context_values_;  // by name, made when first used
  std::vector<std::unique_ptr<Scope>> scopes_;          // those in use, in the order they were entered
  std::vector<std::unique_ptr<Scope>> captured_;        // left, but macros still see them
  Scope* scope_ = nullptr;
  Scope* root_ = nullptr;
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
