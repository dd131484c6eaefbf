#include "tokenizer/jinja/value.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "tokenizer/jinja/limits.h"
#include "tokenizer/jinja/text.h"
#include "unsloth/core/error.h"

namespace unsloth::tokenizer::jinja {
namespace {

constexpr std::size_t linear_entries = 8;  // up to here comparing is faster than hashing
constexpr int deepest_value = 500;

thread_local int value_depth = 0;

/// Values on their way out. The outermost call drains the list, so nesting costs no stack.
struct Releasing {
    Items pending;
    bool draining = false;
};
thread_local Releasing releasing;

bool equal_items(const Items& a, const Items& b) {
    if (a.size() != b.size()) return false;
    charge(static_cast<int64_t>(a.size() / 4));
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), equal);
}

bool equal_dicts(const Dict& a, const Dict& b) {
    if (a.size() != b.size()) return false;
    charge(static_cast<int64_t>(a.size()));
    return std::all_of(a.entries().begin(), a.entries().end(), [&](const auto& entry) {
        const Value* found = b.find(entry.first);
        return found && equal(entry.second, *found);
    });
}

/// Exact: the 64 bits of a long double's significand hold any double, and 128-bit integers beyond it are
/// rare.
long double wide(const Value& number) {
    return number.is(Value::Kind::floating) ? static_cast<long double>(number.floating())
                                            : static_cast<long double>(number.integer());
}

int compare_numbers(const Value& a, const Value& b) {
    if (a.is_integral() && b.is_integral()) {
        return a.integer() < b.integer() ? -1 : a.integer() > b.integer();
    }
    return wide(a) < wide(b) ? -1 : wide(a) > wide(b);
}

std::size_t combine(std::size_t seed, std::size_t value) {
    return seed * 1000003u ^ value;
}

}  // namespace

void fail(const std::string& message) {
    throw Failure(message);
}

DepthGuard::DepthGuard() {
    charge(1);  // values may hold others many times over: few of them make walks without end
    if (++value_depth > deepest_value) {
        --value_depth;
        throw LimitReached(cat("values nest deeper than ", deepest_value, " levels"));
    }
}
DepthGuard::~DepthGuard() {
    --value_depth;
}

void release(Items&& values) {
    Releasing& r = releasing;
    for (Value& value : values) r.pending.push_back(std::move(value));
    if (r.draining) return;
    r.draining = true;
    while (!r.pending.empty()) {
        const Value last = std::move(r.pending.back());
        r.pending.pop_back();
    }
    r.draining = false;
}

Sequence::Sequence(Kind sequence_kind, Items values, const char* python_name)
    : kind(sequence_kind), items(std::move(values)), name(python_name) {}

Sequence::~Sequence() {
    release(std::move(items));
}

Dict::~Dict() {
    Items values;
    for (auto& [key, value] : entries_) {
        values.push_back(std::move(key));
        values.push_back(std::move(value));
    }
    release(std::move(values));
}

std::size_t Dict::position(const Value& key, std::size_t key_hash) const {
    if (entries_.size() <= linear_entries) {
        for (std::size_t i = 0; i < entries_.size(); ++i) {
            if (equal(entries_[i].first, key)) return i;
        }
        return entries_.size();
    }
    const auto [begin, end] = index_.equal_range(key_hash);
    for (auto it = begin; it != end; ++it) {
        if (equal(entries_[it->second].first, key)) return it->second;
    }
    return entries_.size();
}

const Value* Dict::find(const Value& key) const {
    const std::size_t at = position(key, hash(key));
    return at < entries_.size() ? &entries_[at].second : nullptr;
}

const Value* Dict::find(std::string_view key) const {
    if (entries_.size() > linear_entries) return find(Value(key));
    for (const auto& [name, value] : entries_) {
        if (name.is_string() && name.string() == key) return &value;
    }
    return nullptr;
}

void Dict::set(const Value& key, Value value) {
    const std::size_t key_hash = hash(key);
    const std::size_t at = position(key, key_hash);
    if (at < entries_.size()) {
        entries_[at].second = std::move(value);
        return;
    }
    entries_.emplace_back(key, std::move(value));
    if (entries_.size() == linear_entries + 1) {
        for (std::size_t i = 0; i < entries_.size(); ++i) index_.emplace(hash(entries_[i].first), i);
    } else if (entries_.size() > linear_entries) {
        index_.emplace(key_hash, at);
    }
}

Value Object::call(Evaluator&, Arguments&) {
    fail(cat("'", type_name(), "' object is not callable"));
}
std::optional<Value> Object::attribute(Evaluator&, std::string_view) {
    return std::nullopt;
}

Value Value::undefined(std::string message) {
    Value value;
    value.data_ = std::make_shared<const Undefined>(Undefined{std::move(message)});
    return value;
}
Value Value::markup(std::string text) {
    Value value;
    value.data_ = std::make_shared<const Text>(Text{std::move(text), true});
    return value;
}
Value Value::list(Items items) {
    return std::make_shared<Sequence>(Sequence::Kind::list, std::move(items));
}
Value Value::tuple(Items items) {
    return std::make_shared<Sequence>(Sequence::Kind::tuple, std::move(items));
}
Value Value::generator(Items items, const char* name) {
    return std::make_shared<Sequence>(Sequence::Kind::generator, std::move(items), name);
}

Value::Kind Value::kind() const {
    static_assert(std::variant_size_v<decltype(data_)> == 9);
    return static_cast<Kind>(data_.index());
}

bool Value::is_sequence(Sequence::Kind k) const {
    return is(Kind::sequence) && sequence().kind == k;
}

Integer Value::integer() const {
    return is(Kind::boolean) ? Integer{boolean()} : std::get<Integer>(data_);
}

double Value::floating() const {
    return is(Kind::floating) ? std::get<double>(data_) : static_cast<double>(integer());
}

bool Value::same_as(const Value& other) const {
    if (kind() != other.kind()) return false;
    switch (kind()) {
        case Kind::sequence:
            return &sequence() == &other.sequence();
        case Kind::dict:
            return &dict() == &other.dict();
        case Kind::object:
            return object() == other.object();
        default:
            return equal(*this, other);  // Python shares small values; others are compared nowhere
    }
}

std::string type_name(const Value& value) {
    switch (value.kind()) {
        case Value::Kind::none:
            return "NoneType";
        case Value::Kind::undefined:
            return "Undefined";
        case Value::Kind::boolean:
            return "bool";
        case Value::Kind::integer:
            return "int";
        case Value::Kind::floating:
            return "float";
        case Value::Kind::string:
            return value.is_markup() ? "Markup" : "str";
        case Value::Kind::sequence:
            switch (value.sequence().kind) {
                case Sequence::Kind::list:
                    return "list";
                case Sequence::Kind::tuple:
                    return "tuple";
                case Sequence::Kind::range:
                    return "range";
                default:
                    return value.sequence().name;
            }
        case Value::Kind::dict:
            return "dict";
        case Value::Kind::object:
            return value.object()->type_name();
    }
    UNSLOTH_CHECK(false, "kind of value");
}

bool truthy(const Value& value) {
    switch (value.kind()) {
        case Value::Kind::none:
        case Value::Kind::undefined:
            return false;
        case Value::Kind::boolean:
        case Value::Kind::integer:
            return value.integer() != 0;
        case Value::Kind::floating:
            return value.floating() != 0;
        case Value::Kind::string:
            return !value.string().empty();
        case Value::Kind::sequence:
            return value.is_sequence(Sequence::Kind::generator) || !value.sequence().items.empty();
        case Value::Kind::dict:
            return value.dict().size() != 0;
        case Value::Kind::object:
            return true;
    }
    UNSLOTH_CHECK(false, "kind of value");
}

bool equal(const Value& a, const Value& b) {
    if (a.is_number() && b.is_number()) return compare_numbers(a, b) == 0 && wide(a) == wide(b);
    if (a.kind() != b.kind()) return false;
    switch (a.kind()) {
        case Value::Kind::string:
            if (a.string().size() != b.string().size()) return false;
            charge_bytes(a.string().size());
            return a.string() == b.string();
        case Value::Kind::sequence: {
            const Sequence &x = a.sequence(), &y = b.sequence();
            if (&x == &y) return true;
            if (x.kind != y.kind || x.kind == Sequence::Kind::generator) return false;
            const DepthGuard guard;
            return equal_items(x.items, y.items);
        }
        case Value::Kind::dict: {
            const DepthGuard guard;
            return &a.dict() == &b.dict() || equal_dicts(a.dict(), b.dict());
        }
        case Value::Kind::object:
            return a.object() == b.object();
        default:
            return true;  // none with none, undefined with undefined
    }
}

bool less(const Value& a, const Value& b, bool or_equal, const char* symbol) {
    for (const Value* value : {&a, &b}) {
        if (value->is_undefined()) fail(value->undefined_message());
    }
    if (a.is_number() && b.is_number()) {
        const int order = compare_numbers(a, b);
        if (order == 0) return or_equal && wide(a) == wide(b);  // no order with NaN
        return order < 0;
    }
    if (a.is_string() && b.is_string()) {  // UTF-8 orders as code points do
        charge_bytes(std::min(a.string().size(), b.string().size()));
        return or_equal ? a.string() <= b.string() : a.string() < b.string();
    }
    const bool lists = a.is_sequence(Sequence::Kind::list) && b.is_sequence(Sequence::Kind::list);
    const bool tuples = a.is_sequence(Sequence::Kind::tuple) && b.is_sequence(Sequence::Kind::tuple);
    if (lists || tuples) {
        const DepthGuard guard;
        const Items &x = a.sequence().items, &y = b.sequence().items;
        charge(static_cast<int64_t>(std::min(x.size(), y.size()) / 4));
        const auto [i, j] = std::mismatch(x.begin(), x.end(), y.begin(), y.end(), equal);
        if (i == x.end() || j == y.end()) return or_equal ? x.size() <= y.size() : x.size() < y.size();
        return less(*i, *j, or_equal, symbol);
    }
    fail(cat("'", symbol, "' not supported between instances of '", type_name(a), "' and '", type_name(b), "'"));
}

std::size_t hash(const Value& value) {
    switch (value.kind()) {
        case Value::Kind::boolean:
        case Value::Kind::integer:
        case Value::Kind::floating:
            return std::hash<double>()(value.floating());
        case Value::Kind::string:
            charge_bytes(value.string().size());
            return std::hash<std::string>()(value.string());
        case Value::Kind::sequence: {
            if (value.is_sequence(Sequence::Kind::list)) break;
            if (!value.is_sequence(Sequence::Kind::tuple)) return 7;
            const DepthGuard guard;
            charge(static_cast<int64_t>(value.sequence().items.size() / 4));
            std::size_t seed = 5;
            for (const Value& item : value.sequence().items) seed = combine(seed, hash(item));
            return seed;
        }
        case Value::Kind::dict:
            break;
        case Value::Kind::object:
            return std::hash<const void*>()(value.object().get());
        default:
            return static_cast<std::size_t>(value.kind());
    }
    fail(cat("unhashable type: '", type_name(value), "'"));
}

std::optional<std::size_t> length(const Value& value) {
    switch (value.kind()) {
        case Value::Kind::undefined:
            return 0;
        case Value::Kind::string:
            return text::length(value.string());
        case Value::Kind::sequence:
            if (value.is_sequence(Sequence::Kind::generator)) return std::nullopt;
            return value.sequence().items.size();
        case Value::Kind::dict:
            return value.dict().size();
        case Value::Kind::object:
            return value.object()->length();
        default:
            return std::nullopt;
    }
}

bool take(Sequence& generator, Value& out) {
    if (generator.position < generator.items.size()) {
        out = generator.items[generator.position++];
        return true;
    }
    if (!generator.failure.empty()) fail(std::exchange(generator.failure, {}));
    return false;
}

Items iterate(const Value& value) {
    switch (value.kind()) {
        case Value::Kind::undefined:
            return {};
        case Value::Kind::string: {
            Items characters;
            check_sequence(text::length(value.string()));
            for (const std::string_view c : text::characters(value.string())) characters.emplace_back(c);
            return characters;
        }
        case Value::Kind::sequence: {
            Sequence& sequence = value.sequence();
            if (sequence.kind != Sequence::Kind::generator) return sequence.items;
            Items rest;
            for (Value item; take(sequence, item);) rest.push_back(std::move(item));
            return rest;
        }
        case Value::Kind::dict: {
            Items keys;
            for (const auto& [key, ignored] : value.dict().entries()) keys.push_back(key);
            return keys;
        }
        default:
            fail(cat("'", type_name(value), "' object is not iterable"));
    }
}

int64_t to_index(const Value& value, const char* what) {
    if (value.is_undefined()) fail(value.undefined_message());
    if (!value.is_integral()) fail(cat(what, " must be an integer, not '", type_name(value), "'"));
    constexpr Integer low = std::numeric_limits<int64_t>::min(), high = std::numeric_limits<int64_t>::max();
    return static_cast<int64_t>(std::clamp(value.integer(), low, high));
}

std::string to_decimal(Integer value) {
    if (value == 0) return "0";
    const bool negative = value < 0;
    std::string digits;
    for (; value != 0; value /= 10) {
        const int digit = static_cast<int>(value % 10);
        digits += static_cast<char>('0' + (digit < 0 ? -digit : digit));
    }
    if (negative) digits += '-';
    std::reverse(digits.begin(), digits.end());
    return digits;
}

}  // namespace unsloth::tokenizer::jinja
