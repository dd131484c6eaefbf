// The values that templates compute with: Python's, as far as a template can see them.
//
// Strings are UTF-8 and always valid; integers have 128 bits (Python's have any number: what does not fit is an error,
// never a wrong digit). Lists and dicts never change once a template can see them (the sandbox forbids it), so they are
// shared; only namespaces and iterators have state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "unsloth/core/error.h"

namespace unsloth::tokenizer::jinja {

/// In a template, from 1; 0: not known.
struct Place {
    Place(int line = 0, int column = 0) : line(line), column(column) {}
    int line;
    int column;  ///< in characters
};

/// What goes wrong while a template is parsed or rendered.
class Failure : public std::runtime_error {
  public:
    explicit Failure(const std::string& message, Place at = {})
        : std::runtime_error(message), line(at.line), column(at.column) {}
    int line;
    int column;
};
[[noreturn]] inline void fail(const std::string& message) {
    throw Failure(message);
}

/// One more level of recursion while it lives. Failure beyond `most`: an error in place of a stack overflow.
class Level {
  public:
    Level(int& depth, int most, const char* reason, Place at = {}) : depth_(depth) {
        if (++depth_ <= most) return;
        --depth_;
        throw Failure(reason, at);
    }
    ~Level() { --depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

  private:
    int& depth_;
};

// Limits on one value, so that a template cannot take all memory. A row has 64 MiB at most.
constexpr std::size_t longest_string = std::size_t{64} << 20, longest_sequence = 1'000'000;
inline void check_string(std::size_t size) {
    if (size > longest_string) fail("a string of more than 64 MiB");
}
inline void check_sequence(std::size_t size) {
    if (size > longest_sequence) fail(cat("a sequence of more than ", longest_sequence, " elements"));
}

/// While one lives, charge() takes from `steps` on this thread.
class Budget {
  public:
    explicit Budget(int64_t& steps) : outer_(std::exchange(current, &steps)) {}
    ~Budget() { current = outer_; }
    Budget(const Budget&) = delete;
    Budget& operator=(const Budget&) = delete;
    static inline thread_local int64_t* current = nullptr;

  private:
    int64_t* outer_;
};

/// Counts steps of the rendering that runs on this thread; Failure when all of them are used up. A step is worth
/// about 40 ns: eight characters looked at one by one, or 32 bytes copied or searched. Outside of a rendering nothing
/// is counted.
inline void charge(std::size_t steps) {
    if (Budget::current == nullptr) return;
    *Budget::current -= static_cast<int64_t>(steps);
    if (*Budget::current < 0) fail("the template takes too long: it loops without end, or over too much");
}
inline void charge_characters(std::size_t bytes) {
    charge(bytes / 8);
}
inline void charge_bytes(std::size_t bytes) {
    charge(bytes / 32);
}

__extension__ typedef __int128 Integer;

class Value;
class Dict;
class Object;
using Items = std::vector<Value>;

struct Text {
    std::string bytes;
    bool markup = false;  ///< result of `escape` or `safe`: what is added to it becomes escaped
};

/// Everything that Python iterates by position.
struct Sequence {
    enum class Kind : uint8_t { list, tuple, range, view, generator };
    Sequence(Kind sequence_kind, Items values);  // Value is not complete here
    ~Sequence();
    Kind kind;
    Items items;
    std::size_t position = 0;  ///< of a generator: how much has been taken
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
    Value(std::string text, bool markup = false) : data_(std::make_shared<const Text>(Text{std::move(text), markup})) {}
    Value(const char* text) : Value(std::string(text)) {}
    Value(std::string_view text) : Value(std::string(text)) {}
    Value(std::shared_ptr<Dict> d) : data_(std::move(d)) {}
    Value(std::shared_ptr<Object> o) : data_(std::move(o)) {}
    /// Using it is an error with this message.
    static Value undefined(std::string message);
    static Value list(Items items) { return {Sequence::Kind::list, std::move(items)}; }
    static Value tuple(Items items) { return {Sequence::Kind::tuple, std::move(items)}; }
    static Value range(Items items) { return {Sequence::Kind::range, std::move(items)}; }
    static Value view(Items items) { return {Sequence::Kind::view, std::move(items)}; }  ///< of a dict
    static Value generator(Items items) { return {Sequence::Kind::generator, std::move(items)}; }

    Kind kind() const { return static_cast<Kind>(data_.index()); }
    bool is(Kind k) const { return kind() == k; }
    bool is_none() const { return is(Kind::none); }
    bool is_undefined() const { return is(Kind::undefined); }
    bool is_string() const { return is(Kind::string); }
    /// An integer or a boolean, which Python counts as one.
    bool is_integral() const { return is(Kind::integer) || is(Kind::boolean); }
    bool is_number() const { return is_integral() || is(Kind::floating); }
    bool is_sequence(Sequence::Kind k) const { return is(Kind::sequence) && sequence().kind == k; }
    bool is_generator() const { return is_sequence(Sequence::Kind::generator); }
    /// A string, list, tuple or range.
    bool has_subscripts() const {
        return is_string() || (is(Kind::sequence) && sequence().kind <= Sequence::Kind::range);
    }

    bool boolean() const { return std::get<bool>(data_); }
    Integer integer() const { return is(Kind::boolean) ? Integer{boolean()} : std::get<Integer>(data_); }
    double floating() const { return std::get<double>(data_); }
    const std::string& string() const { return std::get<std::shared_ptr<const Text>>(data_)->bytes; }
    bool is_markup() const { return is_string() && std::get<std::shared_ptr<const Text>>(data_)->markup; }
    Sequence& sequence() const { return *std::get<std::shared_ptr<Sequence>>(data_); }
    const Items& items() const { return sequence().items; }
    Dict& dict() const { return *std::get<std::shared_ptr<Dict>>(data_); }
    const std::shared_ptr<Object>& object() const { return std::get<std::shared_ptr<Object>>(data_); }
    /// Failure where it is undefined.
    const Value& require_defined() const;

  private:
    struct Undefined {
        std::string message;
    };
    Value(Sequence::Kind kind, Items items) : data_(std::make_shared<Sequence>(kind, std::move(items))) {}

    std::variant<std::monostate, std::shared_ptr<const Undefined>, bool, Integer, double, std::shared_ptr<const Text>,
                 std::shared_ptr<Sequence>, std::shared_ptr<Dict>, std::shared_ptr<Object>>
        data_;
};

/// In insertion order; keys are unique by Python's equality (1, 1.0 and true are one key).
class Dict {
  public:
    Dict() = default;
    Dict(const Dict& other) = default;
    Dict& operator=(const Dict&) = delete;
    ~Dict();
    /// Failure for a key that Python cannot hash.
    const Value* find(const Value& key) const;
    const Value* find(std::string_view key) const;
    void set(const Value& key, Value value);
    const std::vector<std::pair<Value, Value>>& entries() const { return entries_; }
    std::size_t size() const { return entries_.size(); }

  private:
    std::vector<std::pair<Value, Value>> entries_;
    std::unordered_map<std::string_view, std::size_t> places_;  ///< of keys that are strings, where there are many
};

struct Arguments {
    Items positional;
    std::vector<std::pair<std::string, Value>> named;
};

struct Rendering;

/// Macros, functions, bound methods, namespaces, loop variables.
class Object {
  public:
    virtual ~Object() = default;
    virtual const char* type_name() const = 0;
    virtual std::optional<std::size_t> length() { return std::nullopt; }
    virtual Value call(Rendering& rendering, Arguments& arguments);
    virtual std::optional<Value> attribute(std::string_view) { return std::nullopt; }
};

/// Takes the next item of a generator; false at its end.
bool take(Sequence& generator, Value& out);

/// Python's name of the type: "str", "NoneType", …
std::string type_name(const Value& value);
bool truthy(const Value& value);
bool equal(const Value& a, const Value& b);
/// a < b (`or_equal`: a <= b); Failure for types that Python does not order.
bool less(const Value& a, const Value& b, bool or_equal, const char* symbol);
/// Length as `len` gives it (code points of a string); nullopt where there is none.
std::optional<std::size_t> length(const Value& value);
/// All that iterating yields (a generator is used up); Failure where Python cannot iterate.
Items iterate(const Value& value);
/// An integer that fits, or a Failure that says what for.
int64_t to_index(const Value& value, const char* what);
/// Counts work in proportion to what was made.
void charge(const Value& value);

// Values as text: Python's str and repr, and JSON as transformers' tojson filter writes it.
std::string to_string(const Value& value);
std::string repr(const Value& value);

struct JsonStyle {
    bool ensure_ascii = false;
    std::optional<std::string> indent;  ///< of one level; without it everything is on one line
    std::string item_separator = ", ", key_separator = ": ";
};
/// json.dumps; Failure for values that JSON does not have.
std::string to_json(const Value& value, const JsonStyle& style);
/// Objects keep the order of their keys. Failure for a document that nests too deep.
Value from_json(const nlohmann::ordered_json& json);

/// Of a walk over nested values, on this thread: templates can nest them deeper than the stack is.
Level value_level();

}  // namespace unsloth::tokenizer::jinja
