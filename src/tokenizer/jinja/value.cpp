#include "tokenizer/jinja/value.h"

#include <algorithm>
#include <limits>

#include "tokenizer/jinja/text.h"
#include "unsloth/core/memory_budget.h"

namespace unsloth::tokenizer::jinja {
namespace {

constexpr std::size_t linear_entries = 8;  // up to here comparing is faster than hashing

/// Destroys values without recursion, however deep they nest: the outermost call drains what inner ones add.
void release(Items&& values) {
    thread_local Items pending;
    thread_local bool draining = false;
    const MemoryBound none = MemoryBound::none();  // destructors call this
    for (Value& value : values) pending.push_back(std::move(value));
    if (draining) return;
    draining = true;
    while (!pending.empty()) {
        const Value last = std::move(pending.back());
        pending.pop_back();
    }
    draining = false;
}

/// Exact: the 64 bits of a long double's significand hold any double, and 128-bit integers beyond it are rare.
long double wide(const Value& number) {
    return number.is(Value::Kind::floating) ? static_cast<long double>(number.floating())
                                            : static_cast<long double>(number.integer());
}

template <class Compare>
bool compare_numbers(const Value& a, const Value& b, Compare compare) {
    return a.is_integral() && b.is_integral() ? compare(a.integer(), b.integer()) : compare(wide(a), wide(b));
}

bool equal_items(const Items& a, const Items& b) {
    if (a.size() != b.size()) return false;
    charge(a.size() / 4);
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), equal);
}

bool equal_dicts(const Dict& a, const Dict& b) {
    if (a.size() != b.size()) return false;
    charge(a.size());
    return std::all_of(a.entries().begin(), a.entries().end(), [&](const auto& entry) {
        const Value* found = b.find(entry.first);
        return found && equal(entry.second, *found);
    });
}

}  // namespace

Level value_level() {
    thread_local int depth = 0;
    charge(1);  // values may hold others many times over: few of them make walks without end
    return {depth, 500, "values nest deeper than 500 levels"};
}

Sequence::Sequence(Kind sequence_kind, Items values) : kind(sequence_kind), items(std::move(values)) {}

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

const Value* Dict::find(const Value& key) const {
    if (key.is_string()) return find(std::string_view(key.string()));
    if (key.is(Value::Kind::dict) || key.is_sequence(Sequence::Kind::list))
        fail(cat("unhashable type: '", type_name(key), "'"));
    charge(entries_.size() / 4);
    const auto found =
        std::find_if(entries_.begin(), entries_.end(), [&](const auto& e) { return equal(e.first, key); });
    return found == entries_.end() ? nullptr : &found->second;
}

const Value* Dict::find(std::string_view key) const {
    charge_bytes(key.size());
    if (entries_.size() > linear_entries) {
        const auto place = places_.find(key);
        return place == places_.end() ? nullptr : &entries_[place->second].second;
    }
    for (const auto& [name, value] : entries_) {
        if (name.is_string() && name.string() == key) return &value;
    }
    return nullptr;
}

void Dict::set(const Value& key, Value value) {
    if (const Value* found = find(key)) {
        *const_cast<Value*>(found) = std::move(value);
        return;
    }
    entries_.emplace_back(key, std::move(value));
    if (entries_.size() <= linear_entries) return;
    const std::size_t first = entries_.size() == linear_entries + 1 ? 0 : entries_.size() - 1;
    for (std::size_t i = first; i < entries_.size(); ++i) {
        if (entries_[i].first.is_string()) places_.emplace(entries_[i].first.string(), i);
    }
}

Value Object::call(Rendering&, Arguments&) {
    fail(cat("'", type_name(), "' object is not callable"));
}

Value Value::undefined(std::string message) {
    Value value;
    value.data_ = std::make_shared<const Undefined>(Undefined{std::move(message)});
    return value;
}

const Value& Value::require_defined() const {
    if (is_undefined()) fail(std::get<std::shared_ptr<const Undefined>>(data_)->message);
    return *this;
}

std::string type_name(const Value& value) {
    static constexpr const char* names[] = {"NoneType", "Undefined", "bool", "int", "float", "str", "", "dict"};
    static constexpr const char* sequences[] = {"list", "tuple", "range", "dict view", "generator"};
    if (value.is(Value::Kind::sequence)) return sequences[static_cast<std::size_t>(value.sequence().kind)];
    if (value.is(Value::Kind::object)) return value.object()->type_name();
    return value.is_markup() ? "Markup" : names[static_cast<std::size_t>(value.kind())];
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
        default:
            return value.is_generator() || value.is(Value::Kind::object) || *length(value) > 0;
    }
}

bool equal(const Value& a, const Value& b) {
    if (a.is_number() && b.is_number()) return compare_numbers(a, b, std::equal_to<>());
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
            const Level level = value_level();
            return equal_items(x.items, y.items);
        }
        case Value::Kind::dict: {
            const Level level = value_level();
            return &a.dict() == &b.dict() || equal_dicts(a.dict(), b.dict());
        }
        case Value::Kind::object:
            return a.object() == b.object();
        default:
            return true;  // none with none, undefined with undefined
    }
}

bool less(const Value& a, const Value& b, bool or_equal, const char* symbol) {
    a.require_defined(), b.require_defined();
    const auto ordered = [&](const auto& x, const auto& y) { return or_equal ? x <= y : x < y; };
    if (a.is_number() && b.is_number()) return compare_numbers(a, b, ordered);
    if (a.is_string() && b.is_string()) {  // UTF-8 orders as code points do
        charge_bytes(std::min(a.string().size(), b.string().size()));
        return ordered(a.string(), b.string());
    }
    fail(
        cat("'", symbol, "' between '", type_name(a), "' and '", type_name(b), "' is not supported in chat templates"));
}

std::optional<std::size_t> length(const Value& value) {
    switch (value.kind()) {
        case Value::Kind::undefined:
            return 0;
        case Value::Kind::string:
            return text::length(value.string());
        case Value::Kind::sequence:
            return value.is_generator() ? std::nullopt : std::optional(value.items().size());
        case Value::Kind::dict:
            return value.dict().size();
        case Value::Kind::object:
            return value.object()->length();
        default:
            return std::nullopt;
    }
}

bool take(Sequence& generator, Value& out) {
    if (generator.position == generator.items.size()) return false;
    out = generator.items[generator.position++];
    return true;
}

Items iterate(const Value& value) {
    Items out;
    switch (value.kind()) {
        case Value::Kind::undefined:
            break;
        case Value::Kind::string:
            check_sequence(text::length(value.string()));
            for (const std::string_view c : text::characters(value.string())) out.emplace_back(c);
            break;
        case Value::Kind::sequence:
            if (!value.is_generator()) return value.items();
            for (Value item; take(value.sequence(), item);) out.push_back(std::move(item));
            break;
        case Value::Kind::dict:
            for (const auto& [key, ignored] : value.dict().entries()) out.push_back(key);
            break;
        default:
            fail(cat("'", type_name(value), "' object is not iterable"));
    }
    return out;
}

int64_t to_index(const Value& value, const char* what) {
    if (!value.require_defined().is_integral()) fail(cat(what, " must be an integer, not '", type_name(value), "'"));
    constexpr Integer low = std::numeric_limits<int64_t>::min(), high = std::numeric_limits<int64_t>::max();
    return static_cast<int64_t>(std::clamp(value.integer(), low, high));
}

void charge(const Value& value) {
    if (value.is_string()) charge_bytes(value.string().size());
    if (value.is(Value::Kind::sequence)) charge(value.items().size() / 4);
    if (value.is(Value::Kind::dict)) charge(value.dict().size() * 2);
}

}  // namespace unsloth::tokenizer::jinja
