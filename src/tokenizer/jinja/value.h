// The values that templates compute with: Python's, as far as a template can see them.
//
// Strings are UTF-8 and always valid; integers have 128 bits (Python's have any number: what does not fit is
// an error, never a wrong digit). Lists and dicts never change once a template can see them (the sandbox
// forbids it), so they are shared; only namespaces and iterators have state.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

namespace unsloth::tokenizer::jinja {

__extension__ typedef __int128 Integer;

/// What goes wrong while a template is parsed or rendered; `line` is the template's (0: not known yet).
class Failure : public std::runtime_error {
  public:
    explicit Failure(const std::string& message, int at_line = 0) : std::runtime_error(message), line(at_line) {}
    int line;
};
/// A limit of this program: unlike other failures it ends the rendering wherever it arises.
class LimitReached : public Failure {
  public:
    using Failure::Failure;
};
[[noreturn]] void fail(const std::string& message);

class Value;
class Dict;
class Evaluator;
struct Arguments;

struct Undefined {
    std::string message;  ///< of the error that using it raises
};

struct Text {
    std::string bytes;
    bool markup = false;  ///< result of `escape` or `safe`: what is added to it becomes escaped
};

using Items = std::vector<Value>;

/// Everything that Python iterates by position.
struct Sequence {
    enum class Kind : uint8_t { list, tuple, range, view, generator };
    Sequence(Kind sequence_kind, Items values, const char* python_name = "generator");
    ~Sequence();
    Kind kind;
    Items items;
    const char* name;          ///< type of a view or generator, as Python prints it
    std::size_t position = 0;  ///< of a generator: how much has been taken
    std::string failure;       ///< of a generator: raised where its items end, as if they were made one by one
    int64_t start = 0, stop = 0, step = 1;  ///< of a range, to print it
};

/// Macros, functions, bound methods, namespaces, loop variables.
class Object {
  public:
    virtual ~Object() = default;
    virtual const char* type_name() const = 0;
    virtual bool callable() const { return false; }
    virtual std::optional<std::size_t> length() { return std::nullopt; }
    virtual Value call(Evaluator& evaluator, Arguments& arguments);
    virtual std::optional<Value> attribute(Evaluator& evaluator, std::string_view name);
    /// Drops what it refers to: macros and namespaces may form cycles, which end with the rendering.
    virtual void clear() {}
};

class Value {
  public:
    enum class Kind : uint8_t { none, undefined, boolean, integer, floating, string, sequence, dict, object };

    Value() = default;  // none
    Value(bool b) : data_(b) {}
    Value(Integer i) : data_(i) {}
    Value(int i) : data_(Integer{i}) {}
    Value(std::size_t i) : data_(static_cast<Integer>(i)) {}
    Value(double f) : data_(f) {}
    Value(std::string text) : data_(std::make_shared<const Text>(Text{std::move(text)})) {}
    Value(const char* text) : Value(std::string(text)) {}
    Value(std::string_view text) : Value(std::string(text)) {}
    Value(std::shared_ptr<Sequence> s) : data_(std::move(s)) {}
    Value(std::shared_ptr<Dict> d) : data_(std::move(d)) {}
    Value(std::shared_ptr<Object> o) : data_(std::move(o)) {}
    static Value undefined(std::string message);
    static Value markup(std::string text);
    static Value list(Items items);
    static Value tuple(Items items);
    static Value generator(Items items, const char* name = "generator");
    /// A generator of what `make` appends to its argument up to the first failure.
    template <class Make>
    static Value generator_of(Make make);

    Kind kind() const;
    bool is(Kind k) const { return kind() == k; }
    bool is_none() const { return is(Kind::none); }
    bool is_undefined() const { return is(Kind::undefined); }
    bool is_string() const { return is(Kind::string); }
    /// An integer or a boolean, which Python counts as one.
    bool is_integral() const { return is(Kind::integer) || is(Kind::boolean); }
    bool is_number() const { return is_integral() || is(Kind::floating); }
    bool is_sequence(Sequence::Kind k) const;

    bool boolean() const { return std::get<bool>(data_); }
    Integer integer() const;  ///< of an integral value
    double floating() const;  ///< of a number
    const std::string& string() const { return std::get<std::shared_ptr<const Text>>(data_)->bytes; }
    bool is_markup() const { return is_string() && std::get<std::shared_ptr<const Text>>(data_)->markup; }
    Sequence& sequence() const { return *std::get<std::shared_ptr<Sequence>>(data_); }
    Dict& dict() const { return *std::get<std::shared_ptr<Dict>>(data_); }
    const std::shared_ptr<Object>& object() const { return std::get<std::shared_ptr<Object>>(data_); }
    const std::string& undefined_message() const { return std::get<std::shared_ptr<const Undefined>>(data_)->message; }
    /// Python's `is`.
    bool same_as(const Value& other) const;

  private:
    std::variant<std::monostate, std::shared_ptr<const Undefined>, bool, Integer, double, std::shared_ptr<const Text>,
                 std::shared_ptr<Sequence>, std::shared_ptr<Dict>, std::shared_ptr<Object>>
        data_;
};

/// In insertion order; keys are unique by Python's equality (1, 1.0 and true are one key).
class Dict {
  public:
    Dict() = default;
    Dict(const Dict& other) : entries_(other.entries_), index_(other.index_) {}
    Dict& operator=(const Dict&) = delete;
    ~Dict();
    const Value* find(const Value& key) const;
    const Value* find(std::string_view key) const;
    void set(const Value& key, Value value);
    const std::vector<std::pair<Value, Value>>& entries() const { return entries_; }
    std::size_t size() const { return entries_.size(); }

  private:
    std::size_t position(const Value& key, std::size_t hash) const;
    std::vector<std::pair<Value, Value>> entries_;
    std::unordered_multimap<std::size_t, std::size_t> index_;  ///< hash to position, for more than a few
};

struct Arguments {
    Items positional;
    std::vector<std::pair<std::string, Value>> named;
};

/// Takes the next item of a generator; false at its end.
bool take(Sequence& generator, Value& out);

template <class Make>
Value Value::generator_of(Make make) {
    Items items;
    std::string failure;
    try {
        make(items);
    } catch (const LimitReached&) {
        throw;
    } catch (const Failure& error) {
        failure = error.what();
    }
    Value made = generator(std::move(items));
    made.sequence().failure = std::move(failure);
    return made;
}

/// Python's name of the type: "str", "NoneType", …
std::string type_name(const Value& value);
bool truthy(const Value& value);
bool equal(const Value& a, const Value& b);
/// a < b (`or_equal`: a <= b); Failure for types that Python does not order.
bool less(const Value& a, const Value& b, bool or_equal, const char* symbol);
/// Failure for an unhashable value.
std::size_t hash(const Value& value);
/// Length as `len` gives it (code points of a string); nullopt where there is none.
std::optional<std::size_t> length(const Value& value);
/// All that iterating yields (a generator is used up); Failure where Python cannot iterate.
Items iterate(const Value& value);
/// An integer that fits, or a Failure that says what for.
int64_t to_index(const Value& value, const char* what);
std::string to_decimal(Integer value);

/// Guards recursive walks over nested values: templates can nest them deeper than the stack is.
class DepthGuard {
  public:
    DepthGuard();
    ~DepthGuard();
    DepthGuard(const DepthGuard&) = delete;
    DepthGuard& operator=(const DepthGuard&) = delete;
};

/// Destroys values without recursion, however deep they nest.
void release(Items&& values);

}  // namespace unsloth::tokenizer::jinja
