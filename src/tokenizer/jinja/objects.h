// Objects that templates can hold: functions, macros, namespaces, the loop variable.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tokenizer/jinja/evaluator.h"

namespace unsloth::tokenizer::jinja {

class NativeFunction : public Object {
  public:
    using Function = std::function<Value(Evaluator&, Arguments&)>;
    NativeFunction(const char* type, Function function) : type_(type), function_(std::move(function)) {}
    const char* type_name() const override { return type_; }
    bool callable() const override { return true; }
    Value call(Evaluator& evaluator, Arguments& arguments) override { return function_(evaluator, arguments); }

  private:
    const char* type_;
    Function function_;
};

class Macro : public Object {
  public:
    Macro(const Statement& statement, ScopePtr scope) : statement_(statement), scope_(std::move(scope)) {}
    const char* type_name() const override { return "Macro"; }
    bool callable() const override { return true; }
    Value call(Evaluator& evaluator, Arguments& arguments) override {
        return evaluator.call_macro(statement_, scope_, arguments);
    }
    std::optional<Value> attribute(Evaluator& evaluator, std::string_view name) override;
    void clear() override { scope_.reset(); }

  private:
    const Statement& statement_;
    ScopePtr scope_;
};

class Namespace : public Object {
  public:
    ~Namespace() override;
    const char* type_name() const override { return "Namespace"; }
    std::optional<Value> attribute(Evaluator& evaluator, std::string_view name) override;
    void set(std::string_view name, Value value);
    void clear() override { attributes_.clear(); }

  private:
    std::vector<std::pair<std::string, Value>> attributes_;
};

/// The items of one run of a loop, drawn one by one: the loop's filter may depend on what the body did
/// before.
class LoopItems {
  public:
    LoopItems(Evaluator& evaluator, const Statement& loop, ScopePtr scope, const Value& source);
    /// The next item that the filter lets through; false at the end.
    bool next(Value& out);
    /// Like len() of what is iterated; draws all that is left where that has none.
    std::size_t drain(std::vector<Value>& rest);
    bool sized() const { return sized_; }
    std::size_t size() const { return items_.size(); }
    void forget_scope() { scope_.reset(); }

  private:
    Evaluator& evaluator_;
    const Statement& loop_;
    ScopePtr scope_;
    Value source_;
    Items items_;
    std::size_t position_ = 0;
    bool generator_ = false, sized_ = false;
};

class LoopVariable : public Object, public std::enable_shared_from_this<LoopVariable> {
  public:
    LoopVariable(const Statement& loop, ScopePtr scope, LoopItems items, int depth)
        : loop_(loop), scope_(std::move(scope)), items_(std::move(items)), depth_(depth) {}
    const char* type_name() const override { return "LoopContext"; }
    bool callable() const override { return true; }
    Value call(Evaluator& evaluator, Arguments& arguments) override;
    std::optional<Value> attribute(Evaluator& evaluator, std::string_view name) override;
    std::optional<std::size_t> length() override;
    void clear() override;
    /// Moves on; false at the end.
    bool advance();
    const Value& current() const { return current_; }

  private:
    bool peek();
    Value cycle(const Arguments& arguments) const;
    Value changed(const Arguments& arguments);

    const Statement& loop_;
    ScopePtr scope_;
    LoopItems items_;
    int depth_;
    int64_t index_ = -1;  ///< from 0
    Value before_, current_;
    std::vector<Value> ahead_;  ///< drawn already; the last one comes next
    std::optional<std::size_t> length_;
    std::optional<Value> last_changed_;
};

/// Global functions (range, namespace, raise_exception, …); nullopt for another name.
std::optional<Value> find_global(std::string_view name);

}  // namespace unsloth::tokenizer::jinja
