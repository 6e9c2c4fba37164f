// The parsed template. Chains (a + b + c, a.b|c) are one node with a list, so that the depth of the tree is
// the depth of nesting in the source, which the parser bounds.
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
    unary,
    chain,
    concat,
    logic,
    negation,
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

struct ListExpr : Expr {  // list or tuple
  ListExpr(Type type, int line) : Expr(type, line) {}
  std::vector<ExprPtr> items;
};

struct DictExpr : Expr {
  explicit DictExpr(int line) : Expr(Type::dict, line) {}
  std::vector<std::pair<ExprPtr, ExprPtr>> items;
};

struct Unary : Expr {  // + and -
  Unary(bool minus, ExprPtr operand, int line)
      : Expr(Type::unary, line), minus(minus), operand(std::move(operand)) {}
  const bool minus;
  const ExprPtr operand;
};

struct Negation : Expr {  // not
  Negation(ExprPtr operand, int line) : Expr(Type::negation, line), operand(std::move(operand)) {}
  const ExprPtr operand;
};

struct Chain : Expr {  // first op operand op operand ..., from the left
  Chain(ExprPtr first, int line) : Expr(Type::chain, line), first(std::move(first)) {}
  const ExprPtr first;
  std::vector<std::pair<Op, ExprPtr>> rest;
};

struct Concat : Expr {  // a ~ b ~ c
  explicit Concat(int line) : Expr(Type::concat, line) {}
  std::vector<ExprPtr> parts;
};

struct Logic : Expr {  // a and b and c, a or b or c
  Logic(bool is_and, int line) : Expr(Type::logic, line), is_and(is_and) {}
  const bool is_and;
  std::vector<ExprPtr> parts;
};

enum class Relation { eq, ne, lt, le, gt, ge, in, not_in };
struct Compare : Expr {
  Compare(ExprPtr first, int line) : Expr(Type::compare, line), first(std::move(first)) {}
  const ExprPtr first;
  std::vector<std::pair<Relation, ExprPtr>> rest;
};

struct Cond : Expr {  // then if test else otherwise
  explicit Cond(int line) : Expr(Type::cond, line) {}
  ExprPtr test, then, otherwise;  // otherwise: null when there is none
};

struct CallArgs {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr star, star_star;  // may be null
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
  int line = 0;
  int id = 0;             // the name, or the namespace
  std::string attribute;  // of a namespace
  std::vector<Target> parts;
};

struct Statement {
  enum class Type {
    text,
    print,
    for_loop,
    branch,
    set,
    set_block,
    macro,
    call_block,
    filter_block,
    with,
    block,
    break_loop,
    continue_loop,
    refuse
  };
  Statement(Type type, int line) : type(type), line(line) {}
  virtual ~Statement() = default;
  const Type type;
  const int line;
};
struct Body {
  std::vector<std::unique_ptr<Statement>> statements;
  std::vector<int> late;  // of a scope: the names that are undefined until a statement of it assigns them
};

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
  bool recursive = false;
  bool uses_loop = false;  // the body names `loop`
  int loop_id = 0;         // the number of that name
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

struct SetBlock : Statement {
  explicit SetBlock(int line) : Statement(Type::set_block, line) {}
  Target target;
  std::unique_ptr<Postfix> filters;  // null: none
  Body body;
};

struct MacroDefinition {
  std::string name;  // empty: the body of a call block
  std::vector<int> parameters;
  std::vector<std::string> parameter_names;
  std::vector<ExprPtr> defaults;  // of the last parameters
  bool uses_caller = false, uses_kwargs = false, uses_varargs = false;
  int caller_id = 0, kwargs_id = 0, varargs_id = 0;
  int line = 0;
  Body body;
};

struct MacroStatement : Statement {
  explicit MacroStatement(int line) : Statement(Type::macro, line) {}
  int id = 0;
  MacroDefinition definition;
};

struct CallBlock : Statement {
  explicit CallBlock(int line) : Statement(Type::call_block, line) {}
  MacroDefinition definition;
  std::unique_ptr<Postfix> call;  // ends in a call; null: a generation block, which prints its body
};

struct FilterBlock : Statement {
  explicit FilterBlock(int line) : Statement(Type::filter_block, line) {}
  std::unique_ptr<Postfix> filters;
  Body body;
};

struct With : Statement {
  explicit With(int line) : Statement(Type::with, line) {}
  std::vector<std::pair<Target, ExprPtr>> variables;
  Body body;
};

struct Block : Statement {  // {% block %}: a part that a child template could replace
  explicit Block(int line) : Statement(Type::block, line) {}
  bool scoped = false;
  Body body;
};

struct Jump : Statement {  // break, continue
  Jump(Type type, int line) : Statement(type, line) {}
};

struct Refuse
    : Statement {  // include, import, extends: fails when it is reached, as there are no other templates
  Refuse(std::string what, int line) : Statement(Type::refuse, line), what(std::move(what)) {}
  const std::string what;
};

struct Template {
  std::vector<std::string> names;  // of all variables, by their number
  Body body;
};

}  // namespace fovea::jinja
