// A parsed template as functions, and what one rendering of it needs.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/jinja/value.h"

namespace unsloth::tokenizer::jinja {

/// Variables of one frame. Names are numbers into Program::names, so that looking one up compares integers.
struct Scope {
    explicit Scope(std::shared_ptr<Scope> outer) : parent(std::move(outer)) {}
    void set(int id, Value value);
    const Value* find(int id) const;  ///< here or further out
    std::shared_ptr<Scope> parent;
    std::vector<std::pair<int, Value>> variables;
};

class Namespace;

/// The state of one rendering.
struct Rendering {
    std::string output;
    int captures = 0;                 ///< how many texts are being written into values
    int depth = 0;                    ///< of statements and expressions that are running
    const Value* caller = nullptr;    ///< of the {% call %} whose call is evaluated next
    const Value* filtered = nullptr;  ///< text of the {% filter %} whose filters are evaluated
    std::vector<std::pair<std::size_t, std::size_t>> generations;
    bool generation_within_value = false;
    std::vector<std::shared_ptr<Namespace>> namespaces;  ///< they may hold each other

    void write(std::string_view text);
    /// What `run` writes.
    template <class Run>
    std::string captured(Run run) {
        std::string outer = std::exchange(output, {});
        ++captures;
        run();
        --captures;
        return std::exchange(output, std::move(outer));
    }
};

struct Frame {
    Rendering& rendering;
    std::shared_ptr<Scope> scope;
    Frame inner() const { return {rendering, std::make_shared<Scope>(scope)}; }
};

/// Runs a part of a template; what fails in it and has no place yet is at `at`.
template <class Run>
auto run_at(Place at, const Frame& frame, const Run& run) {
    try {
        charge(1);
        const Level level(frame.rendering.depth, 1200, "the template calls itself without end, or nests too deep");
        return run(frame);
    } catch (Failure& failure) {
        if (failure.line == 0) failure.line = at.line, failure.column = at.column;
        throw;
    }
}

struct Expression {
    std::function<Value(const Frame&)> evaluate;
    int height;            ///< of the tree below, this one counted
    bool is_call = false;  ///< of something by ( )
};
using ExpressionPtr = std::shared_ptr<const Expression>;

/// The text between the parentheses of a call.
struct CallArguments {
    std::vector<ExpressionPtr> positional;
    std::vector<std::pair<std::string, ExpressionPtr>> named;
    ExpressionPtr more;  ///< *expression, may be null

    std::vector<ExpressionPtr> children(ExpressionPtr first) const {
        std::vector<ExpressionPtr> all = positional;
        for (const auto& [name, value] : named) all.push_back(value);
        all.insert(all.end(), {std::move(first), more});
        return all;
    }
    void evaluate(const Frame& frame, Arguments& out) const {
        for (const ExpressionPtr& value : positional) out.positional.push_back(value->evaluate(frame));
        for (const auto& [name, value] : named) out.named.emplace_back(name, value->evaluate(frame));
        if (!more) return;
        for (Value& value : iterate(more->evaluate(frame))) out.positional.push_back(std::move(value));
    }
};

enum class Flow { normal, break_loop, continue_loop };
using Statement = std::function<Flow(const Frame&)>;
using Body = std::vector<Statement>;
Flow run(const Body& body, const Frame& frame);

/// The target before = or after `for`: a name, a namespace's member, or several of them.
struct Target {
    Place at;
    int id = -1;
    std::string name, member;
    std::vector<Target> parts;  ///< of a tuple
};
void assign(const Target& target, const Value& value, const Frame& frame);

struct Macro {
    struct Parameter {
        int id;
        std::string name;
        ExpressionPtr otherwise;  ///< default, may be null
    };
    std::string name;
    int caller_id;
    std::vector<Parameter> parameters;
    Body body;
};

struct Loop {
    Place at;
    int loop_id;
    Target target;
    ExpressionPtr source, condition;  ///< the latter may be null
    Body body, otherwise;
};
Flow run_loop(const Loop& loop, const Frame& frame);
/// The function that a macro is in a frame.
Value make_macro(std::shared_ptr<const Macro> macro, const Frame& frame);

/// What {% set name.member = … %} changes.
class Namespace : public Object {
  public:
    const char* type_name() const override { return "Namespace"; }
    std::optional<Value> attribute(std::string_view name) override {
        const Value* found = members_->find(name);
        return found ? std::optional(*found) : std::nullopt;
    }
    void set(std::string_view name, Value value) {
        if (name.starts_with("_")) fail(cat("chat templates cannot store the underscore-prefixed attribute ", name));
        members_->set(Value(name), std::move(value));
    }
    void clear() { members_ = std::make_unique<Dict>(); }

  private:
    std::unique_ptr<Dict> members_ = std::make_unique<Dict>();
};

struct Program {
    std::vector<std::string> names;
    Body body;
    bool has_generation = false;
};
/// Failure with the line for what Jinja's parser refuses, and for what is not used in chat templates.
Program parse(std::string_view source);

// What operators, dots and brackets do.
enum class Operation { add, subtract, multiply, modulo, eq, ne, lt, le, gt, ge, in, not_in };
Value arithmetic(Operation operation, const Value& a, const Value& b);
Value negate(const Value& value);
bool compare(Operation operation, const Value& a, const Value& b);
/// value[start:stop:step]; none where a part is absent.
Value slice(const Value& value, const Value& start, const Value& stop, const Value& step);
Value item(const Value& value, const Value& key);           ///< value[key], undefined without one
Value member(const Value& value, const std::string& name);  ///< value.name, undefined without one
Value call(Rendering& rendering, const Value& callee, Arguments& arguments);

}  // namespace unsloth::tokenizer::jinja
