// jinja2 binds names when it compiles: a scope that assigns a name before it reads it owns the name from its
// start, so that a scope inside, run before the assignment, finds it undefined and not the context's value.
#include <set>
#include <utility>
#include <vector>

#include "text/jinja/parser.h"

namespace fovea::jinja {

namespace {

// The names of one scope: of its own statements with their branches. The scopes inside see all of them, so
// they are scanned after it.
class ScopeNames {
 public:
  explicit ScopeNames(const ScopeNames* around) : around_(around) {}
  void know(const Target& target);
  void know(const MacroDefinition& macro);
  void finish(Body* body);  // scans it and fills its list

 private:
  void scan(const Body& body);
  void scan(Statement* statement);
  void scan_branch(const Branch& branch);
  void scan_inside(Statement* statement) const;
  void read(const Expr* expr);
  void read(const Postfix& postfix);
  void read(const CallArgs& args);
  void write(int name);
  void write(const Target& target);
  bool is_known(int name) const {
    return known_.contains(name) || (around_ != nullptr && around_->is_known(name));
  }

  const ScopeNames* const around_;
  std::set<int> known_;  // read, assigned or a parameter
  std::set<int> late_;   // assigned, and not read before
  std::vector<Statement*> inside_;
  bool in_branch_ = false;
};

void ScopeNames::finish(Body* body) {
  scan(*body);
  for (const int name : late_) {
    if (around_ == nullptr || !around_->is_known(name)) body->late.push_back(name);
  }
  for (Statement* statement : inside_) scan_inside(statement);
}

void ScopeNames::scan(const Body& body) {
  for (const auto& statement : body.statements) scan(statement.get());
}

void ScopeNames::scan(Statement* statement) {
  switch (statement->type) {
    case Statement::Type::print:
      return read(static_cast<const Print*>(statement)->value.get());
    case Statement::Type::branch:
      return scan_branch(*static_cast<const Branch*>(statement));
    case Statement::Type::set:
      read(static_cast<const Set*>(statement)->value.get());
      return write(static_cast<const Set*>(statement)->target);
    case Statement::Type::for_loop:
      read(static_cast<const ForStatement*>(statement)->iterable.get());
      break;
    case Statement::Type::set_block:
      write(static_cast<const SetBlock*>(statement)->target);
      break;
    case Statement::Type::macro:
      write(static_cast<const MacroStatement*>(statement)->id);
      break;
    case Statement::Type::call_block:
      if (const auto& call = static_cast<const CallBlock*>(statement)->call) read(*call);
      break;
    case Statement::Type::filter_block:
      read(*static_cast<const FilterBlock*>(statement)->filters);
      break;
    case Statement::Type::with:
      for (const auto& [target, value] : static_cast<const With*>(statement)->variables) read(value.get());
      break;
    case Statement::Type::block:
      break;
    default:
      return;
  }
  inside_.push_back(statement);
}

// A branch may not run, so the names that are assigned there first are looked up outside, at the start.
void ScopeNames::scan_branch(const Branch& branch) {
  const bool outside = std::exchange(in_branch_, true);
  for (const auto& [test, body] : branch.cases) {
    read(test.get());
    scan(body);
  }
  scan(branch.otherwise);
  in_branch_ = outside;
}

void ScopeNames::scan_inside(Statement* statement) const {
  ScopeNames names(this);
  switch (statement->type) {
    case Statement::Type::for_loop: {
      auto* loop = static_cast<ForStatement*>(statement);
      names.know(loop->target);
      names.known_.insert(loop->loop_id);
      names.finish(&loop->body);
      return ScopeNames(this).finish(&loop->otherwise);
    }
    case Statement::Type::set_block:
      return names.finish(&static_cast<SetBlock*>(statement)->body);
    case Statement::Type::macro:
      names.know(static_cast<MacroStatement*>(statement)->definition);
      return names.finish(&static_cast<MacroStatement*>(statement)->definition.body);
    case Statement::Type::call_block:
      names.know(static_cast<CallBlock*>(statement)->definition);
      return names.finish(&static_cast<CallBlock*>(statement)->definition.body);
    case Statement::Type::filter_block:
      return names.finish(&static_cast<FilterBlock*>(statement)->body);
    case Statement::Type::with:
      for (const auto& [target, value] : static_cast<With*>(statement)->variables) names.know(target);
      return names.finish(&static_cast<With*>(statement)->body);
    default:  // a block stands alone
      return ScopeNames(nullptr).finish(&static_cast<Block*>(statement)->body);
  }
}

void ScopeNames::know(const Target& target) {
  if (target.type == Target::Type::name) known_.insert(target.id);
  for (const Target& part : target.parts) know(part);
}

void ScopeNames::know(const MacroDefinition& macro) {
  known_.insert(macro.parameters.begin(), macro.parameters.end());
  known_.insert({macro.caller_id, macro.kwargs_id, macro.varargs_id});
  for (const ExprPtr& value : macro.defaults) read(value.get());
}

void ScopeNames::write(int name) {
  if (known_.insert(name).second && !in_branch_) late_.insert(name);
}

void ScopeNames::write(const Target& target) {
  if (target.type == Target::Type::name) write(target.id);
  if (target.type == Target::Type::attribute) known_.insert(target.id);
  for (const Target& part : target.parts) write(part);
}

void ScopeNames::read(const CallArgs& args) {
  for (const ExprPtr& arg : args.positional) read(arg.get());
  for (const auto& [name, arg] : args.named) read(arg.get());
  read(args.star.get());
  read(args.star_star.get());
}

void ScopeNames::read(const Postfix& postfix) {
  read(postfix.base.get());
  for (const Link& link : postfix.links) {
    for (const ExprPtr* part : {&link.start, &link.stop, &link.step}) read(part->get());
    read(link.args);
  }
}

void ScopeNames::read(const Expr* expr) {
  if (expr == nullptr) return;
  switch (expr->type) {
    case Expr::Type::constant:
      return;
    case Expr::Type::name:
      known_.insert(static_cast<const Name*>(expr)->id);
      return;
    case Expr::Type::list:
    case Expr::Type::tuple:
      for (const ExprPtr& item : static_cast<const ListExpr*>(expr)->items) read(item.get());
      return;
    case Expr::Type::dict:
      for (const auto& [key, value] : static_cast<const DictExpr*>(expr)->items) {
        read(key.get());
        read(value.get());
      }
      return;
    case Expr::Type::unary:
      return read(static_cast<const Unary*>(expr)->operand.get());
    case Expr::Type::negation:
      return read(static_cast<const Negation*>(expr)->operand.get());
    case Expr::Type::chain:
      read(static_cast<const Chain*>(expr)->first.get());
      for (const auto& [op, part] : static_cast<const Chain*>(expr)->rest) read(part.get());
      return;
    case Expr::Type::concat:
      for (const ExprPtr& part : static_cast<const Concat*>(expr)->parts) read(part.get());
      return;
    case Expr::Type::logic:
      for (const ExprPtr& part : static_cast<const Logic*>(expr)->parts) read(part.get());
      return;
    case Expr::Type::compare:
      read(static_cast<const Compare*>(expr)->first.get());
      for (const auto& [relation, part] : static_cast<const Compare*>(expr)->rest) read(part.get());
      return;
    case Expr::Type::cond:
      for (const ExprPtr* part :
           {&static_cast<const Cond*>(expr)->test, &static_cast<const Cond*>(expr)->then,
            &static_cast<const Cond*>(expr)->otherwise}) {
        read(part->get());
      }
      return;
    case Expr::Type::postfix:
      return read(*static_cast<const Postfix*>(expr));
  }
}

}  // namespace

void find_late_names(Template* source) { ScopeNames(nullptr).finish(&source->body); }

}  // namespace fovea::jinja
