// The parsed template. Chains (a + b + c, a.b|c) are one node with a list, so that the depth of the tree is the depth of nesting
// in the source, which the parser bounds.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/python.h"

namespace fovea::jinja {

struct Expr {
  enum class Type {
    constant,
    name,
    list,
    tuple,
    dict,
    minus,
    negation,
    chain,
    concat,
    logic_and,
    logic_or,
    compare,
    cond,
    postfix
  };
  Expr(Type type, int line) : type(type), line(line) {}
  virtual ~Expr() = default;
  const Type type;
  const int line;
};
using ExprPtr = std::unique_ptr<Expr>;

struct Constant : Expr {
  Constant(Value value, int line) : Expr(Type::constant, line), value(std::move(value)) {}
  const Value value;
};

struct Name : Expr {
  Name(int id, int line) : Expr(Type::name, line), id(id) {}
  const int id;  // place in Template::names
};

// Operands only: list, tuple, minus and negation (one), concat (a ~ b ~ c), logic_and, logic_or, cond (test, then, else or not).
struct Operands : Expr {
  using Expr::Expr;
  std::vector<ExprPtr> items;
};

struct DictExpr : Expr {
  explicit DictExpr(int line) : Expr(Type::dict, line) {}
  std::vector<std::pair<ExprPtr, ExprPtr>> items;
};

struct Chain : Expr {  // first op operand op operand ..., from the left
  Chain(ExprPtr first, int line) : Expr(Type::chain, line), first(std::move(first)) {}
  const ExprPtr first;
  std::vector<std::pair<Op, ExprPtr>> rest;
};

enum class Relation { eq, ne, lt, le, gt, ge, in, not_in };
struct Compare : Expr {
  Compare(ExprPtr first, int line) : Expr(Type::compare, line), first(std::move(first)) {}
  const ExprPtr first;
  std::vector<std::pair<Relation, ExprPtr>> rest;
};

struct CallArgs {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr star;  // *args, may be null
};

struct Link {  // one step of a postfix chain
  enum class Type { attribute, item, slice, call, filter, test };
  Type type = Type::attribute;
  int line = 0;
  std::string name;           // of an attribute, filter or test
  bool negated = false;       // `is not`
  ExprPtr start, stop, step;  // of a slice, may be null; start alone: the key of an item
  CallArgs args;              // of a call, filter or test
};

struct Postfix : Expr {
  Postfix(ExprPtr base, int line) : Expr(Type::postfix, line), base(std::move(base)) {}
  ExprPtr base;  // null: the filters of a filter block or set block, applied to its text
  std::vector<Link> links;
};

struct Target {  // of an assignment
  enum class Type { name, attribute, tuple };
  Type type = Type::name;
  int id = 0;             // the name, or the namespace
  std::string attribute;  // of a namespace
  std::vector<Target> parts;
};

struct Statement {
  enum class Type { text, print, for_loop, branch, set, set_block, macro, filter_block, scope, break_loop, continue_loop };
  Statement(Type type, int line) : type(type), line(line) {}
  virtual ~Statement() = default;
  const Type type;
  const int line;
};
using Body = std::vector<std::unique_ptr<Statement>>;

struct Text : Statement {
  Text(std::string text, int line) : Statement(Type::text, line), text(std::move(text)) {}
  const std::string text;
};

struct Print : Statement {
  Print(ExprPtr value, int line) : Statement(Type::print, line), value(std::move(value)) {}
  const ExprPtr value;
};

struct ForStatement : Statement {
  explicit ForStatement(int line) : Statement(Type::for_loop, line) {}
  Target target;
  ExprPtr iterable, test;  // test: null when there is none
  int loop_id = 0;         // the number of the name `loop`
  Body body, otherwise;
};

struct Branch : Statement {  // if, elif, else
  explicit Branch(int line) : Statement(Type::branch, line) {}
  std::vector<std::pair<ExprPtr, Body>> cases;
  Body otherwise;
};

struct Set : Statement {
  explicit Set(int line) : Statement(Type::set, line) {}
  Target target;
  ExprPtr value;
};

// {% set x %}, {% filter f %} and {% generation %}: a body in a scope of its own.
struct Enclosed : Statement {
  using Statement::Statement;
  Target target;                     // of a set block
  std::unique_ptr<Postfix> filters;  // null: none
  Body body;
};

struct MacroStatement : Statement {
  explicit MacroStatement(int line) : Statement(Type::macro, line) {}
  int id = 0;
  std::string name;
  std::vector<int> parameters;
  std::vector<std::string> parameter_names;
  std::vector<ExprPtr> defaults;  // of the last parameters
  Body body;
};

struct Template {
  std::vector<std::string> names;  // of all variables, by their number
  Body body;
};

}  // namespace fovea::jinja
