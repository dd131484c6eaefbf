// JSON as the readers of this module need it: duplicate keys are refused, and values are taken with their kind checked.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "unsloth/core/error.h"

namespace unsloth::formats {

using Json = nlohmann::json;
/// Keeps the keys of an object in file order (PEFT's patterns are tried in it).
using OrderedJson = nlohmann::ordered_json;

/// Deeper nesting than any file we read has; a parser that recurses on its input needs a bound.
inline constexpr int max_json_depth = 64;

/// Finding a key of an ordered object compares all: one of very many would take forever.
inline constexpr std::size_t most_ordered_keys = 10000;

/// Refuses a text that nests too deep, is no JSON or UTF-8, names a key twice in an object, or (in file order) has an
/// object of more than most_ordered_keys keys. `source` stands in
/// messages.
template <class AnyJson>
AnyJson parse_json(std::string_view text, const std::string& source);

extern template Json parse_json<Json>(std::string_view, const std::string&);
extern template OrderedJson parse_json<OrderedJson>(std::string_view, const std::string&);

/// A JSON object whose values are read by key, with messages that name the source and the key.
class ObjectReader {
  public:
    ObjectReader(const OrderedJson& object, std::string source, std::string prefix = {})
        : object_(object), source_(std::move(source)), prefix_(std::move(prefix)) {
        if (!object_.is_object())
            throw input_error(cat(source_, ": ", prefix_.empty() ? "the file" : prefix_, " must be a JSON object"));
    }

    const std::string& source() const { return source_; }
    std::string name(std::string_view key) const { return prefix_ + std::string(key); }
    /// nullptr when the key is absent or null: transformers treats both alike.
    const OrderedJson* find(const std::string& key) const {
        const auto it = object_.find(key);
        return it == object_.end() || it->is_null() ? nullptr : &*it;
    }
    bool has(const std::string& key) const { return find(key) != nullptr; }

    [[noreturn]] void fail(const std::string& key, const std::string& expected) const {
        const OrderedJson* value = find(key);
        std::string found =
            value == nullptr ? "nothing" : value->dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
        if (found.size() > 80) found = found.substr(0, 77) + "...";
        throw input_error(cat(source_, ": ", name(key), ": expected ", expected, ", found ", found));
    }

    std::optional<int64_t> integer(const std::string& key) const {
        const OrderedJson* value = find(key);
        if (value == nullptr) return std::nullopt;
        return integer_of(*value, key);
    }
    int64_t required_integer(const std::string& key) const {
        const auto value = integer(key);
        if (!value) fail(key, "an integer");
        return *value;
    }
    std::optional<double> number(const std::string& key) const {
        const OrderedJson* value = find(key);
        if (value == nullptr) return std::nullopt;
        if (!value->is_number() || !std::isfinite(value->get<double>())) fail(key, "a finite number");
        return value->get<double>();
    }
    bool boolean(const std::string& key, bool otherwise) const {
        const OrderedJson* value = find(key);
        if (value == nullptr) return otherwise;
        if (!value->is_boolean()) fail(key, "true or false");
        return value->get<bool>();
    }
    std::optional<std::string> text(const std::string& key) const {
        const OrderedJson* value = find(key);
        if (value == nullptr) return std::nullopt;
        if (!value->is_string()) fail(key, "a string");
        return value->get<std::string>();
    }
    /// An absent list is empty.
    std::vector<std::string> texts(const std::string& key) const {
        std::vector<std::string> result;
        const OrderedJson* value = find(key);
        if (value == nullptr) return result;
        if (!value->is_array()) fail(key, "a list of strings");
        for (const auto& item : *value) {
            if (!item.is_string()) fail(key, "a list of strings");
            result.push_back(item.get<std::string>());
        }
        return result;
    }
    /// A list, or a single value as a list of one; absent: empty.
    std::vector<int64_t> integers(const std::string& key) const {
        std::vector<int64_t> result;
        const OrderedJson* value = find(key);
        if (value == nullptr) return result;
        if (!value->is_array()) return {integer_of(*value, key)};
        for (const auto& item : *value) result.push_back(integer_of(item, key));
        return result;
    }
    std::optional<ObjectReader> object(const std::string& key) const {
        const OrderedJson* value = find(key);
        if (value == nullptr) return std::nullopt;
        if (!value->is_object()) fail(key, "an object");
        return ObjectReader(*value, source_, name(key) + ".");
    }
    const OrderedJson& json() const { return object_; }

  private:
    int64_t integer_of(const OrderedJson& value, const std::string& key) const {
        constexpr auto largest = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
        if (value.is_number_unsigned() && value.get<uint64_t>() <= largest)
            return static_cast<int64_t>(value.get<uint64_t>());
        if (value.is_number_integer() && !value.is_number_unsigned()) return value.get<int64_t>();
        // Python writes 1e4 as 10000.0: a float that is a small whole number means the integer.
        if (value.is_number_float()) {
            const double number = value.get<double>();
            if (number == std::floor(number) && std::abs(number) < 9e15) return static_cast<int64_t>(number);
        }
        fail(key, "an integer below 2^63");
    }

    const OrderedJson& object_;
    std::string source_, prefix_;
};

}  // namespace unsloth::formats
