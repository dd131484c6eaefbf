// Runs a program: statements write text, expressions give values.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/jinja/ast.h"
#include "tokenizer/jinja/value.h"

namespace unsloth::tokenizer::jinja {

/// Variables of one frame. Macros keep the frame that they were made in, so frames are shared.
struct Scope {
    explicit Scope(std::shared_ptr<Scope> outer) : parent(std::move(outer)) {}
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    void set(int id, Value value);
    const Value* find(int id) const;  ///< here or further out
    std::shared_ptr<Scope> parent;
    std::vector<std::pair<int, Value>> variables;
};
using ScopePtr = std::shared_ptr<Scope>;

class Evaluator {
  public:
    /// No rendering nests deeper.
    static constexpr int deepest_evaluation = 1200;

    /// A rendering may take `most_steps`.
    Evaluator(const Program& program, int64_t most_steps);
    ~Evaluator();
    Evaluator(const Evaluator&) = delete;
    Evaluator& operator=(const Evaluator&) = delete;

    /// Renders once. Failure with the line.
    std::string run(const std::vector<std::pair<std::string, Value>>& variables);
    /// Byte ranges of {% generation %} blocks; `generation_within_value` when one was rendered into a value
    /// (by a macro or a block set), where its place in the whole is unknown.
    const std::vector<std::pair<std::size_t, std::size_t>>& generations() const { return generations_; }
    bool generation_within_value() const { return generation_within_value_; }

    // For filters, tests and methods.
    Value call(const Value& callee, Arguments& arguments);
    Value apply_filter(const std::string& name, Arguments& arguments);
    bool apply_test(const std::string& name, Arguments& arguments);
    Value item(const Value& value, const Value& key);           ///< value[key], undefined without one
    Value member(const Value& value, const std::string& name);  ///< value.name, undefined without one
    Value call_macro(const Statement& macro, const ScopePtr& scope, Arguments& arguments);
    Value loop_again(const Statement& loop, const ScopePtr& scope, const Value& items, int depth);
    /// Whether the filter in a loop's head lets an item through.
    bool passes(const Statement& loop, const ScopePtr& scope, const Value& item);
    /// Counts work in proportion to what was made; Failure when all of it is used up.
    void charge(const Value& value);
    void charge(int64_t steps);
    /// Registers an object that can be part of a cycle of references.
    void keep(const std::shared_ptr<Object>& object);

  private:
    enum class Flow { normal, break_loop, continue_loop };
    class Depth;

    Flow run_body(const Body& body, const ScopePtr& scope);
    Flow run_statement(const Statement& statement, const ScopePtr& scope);
    Flow run_loop(const Statement& loop, const ScopePtr& scope, const Value& items, int depth);
    Flow run_condition(const Statement& statement, const ScopePtr& scope);
    void run_output(const Statement& statement, const ScopePtr& scope);
    Flow run_assign_block(const Statement& statement, const ScopePtr& scope);
    Flow run_filter_block(const Statement& statement, const ScopePtr& scope);
    Flow run_with(const Statement& statement, const ScopePtr& scope);
    void run_macro(const Statement& statement, const ScopePtr& scope);
    void run_call_block(const Statement& statement, const ScopePtr& scope);
    void run_generation(const Statement& statement, const ScopePtr& scope);
    /// Runs `body` with the output going into a string of its own.
    template <class Run>
    std::string captured(Run run);
    void write(std::string_view text);
    void assign(const Expression& target, const Value& value, const ScopePtr& scope);

    Value evaluate(const Expression& e, const ScopePtr& scope);
    Value evaluate_name(const Expression& e, const Scope& scope);
    Value evaluate_slice(const Expression& e, const ScopePtr& scope);
    Value evaluate_call(const Expression& e, const ScopePtr& scope, const Value* caller = nullptr);
    Value evaluate_filter(const Expression& e, const ScopePtr& scope, const Value* body = nullptr);
    Value evaluate_test(const Expression& e, const ScopePtr& scope);
    Value evaluate_compare(const Expression& e, const ScopePtr& scope);
    Value evaluate_concatenation(const Expression& e, const ScopePtr& scope);
    Value evaluate_items(const Expression& e, const ScopePtr& scope);
    Value evaluate_dict(const Expression& e, const ScopePtr& scope);
    Value evaluate_binary(const Expression& e, const ScopePtr& scope);
    Value evaluate_conditional(const Expression& e, const ScopePtr& scope);
    void evaluate_arguments(const Expression& e, const ScopePtr& scope, Arguments& out);

    const Program& program_;
    ScopePtr root_;
    std::string output_;
    int captures_ = 0;
    int line_ = 0;  ///< of what is being done, for error messages
    int depth_ = 0;
    int64_t steps_left_;
    int loop_id_, caller_id_, kwargs_id_, varargs_id_;
    std::vector<std::pair<std::size_t, std::size_t>> generations_;
    bool generation_within_value_ = false;
    std::vector<std::weak_ptr<Object>> kept_;
    std::size_t kept_limit_ = 1000;  ///< when those that are gone are swept out
};

}  // namespace unsloth::tokenizer::jinja
