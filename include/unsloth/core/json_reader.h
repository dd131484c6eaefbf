// Typed access to JSON documents, whose errors name the file, the key and what was expected.
#pragma once

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "unsloth/core/error.h"

namespace unsloth {

/// A value for a message. Lists and objects are not written out: the writer recurses, and a file may nest them without
/// end.
template <class Json>
std::string shown(const Json& value) {
    if (value.is_array()) return cat("a list of ", value.size());
    if (value.is_object()) return cat("an object of ", value.size());
    const std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
    return text.size() > 80 ? text.substr(0, 77) + "..." : text;
}

/// A value within a document, which outlives the reader; its users include nlohmann/json.hpp. A member that is
/// null counts as absent, as it does for Python's readers of these files. Whatever is not as expected is an input
/// Error.
template <class Json>
class JsonReader {
  public:
    /// `source`: the file, or where else the document comes from. `path`: the value's place in it.
    JsonReader(const Json& value, std::string source, std::string path = {})
        : value_(&value), source_(std::move(source)), path_(std::move(path)) {}

    const Json& value() const { return *value_; }
    bool null() const { return value_->is_null(); }
    /// "FILE: key a.b[2]"
    std::string where() const { return path_.empty() ? source_ : cat(source_, ": key ", path_); }
    [[noreturn]] void refuse(const std::string& expected) const {
        throw Error("json.wrong-value",
                    cat(where(), ": expected ", expected, ", found ", null() ? "nothing" : shown(*value_)));
    }
    void require(bool holds, const char* expected) const {
        if (!holds) refuse(expected);
    }

    // Members and elements.

    bool has(std::string_view key) const { return !null() && !(*this)[key].null(); }
    /// Of an absent member a reader of null.
    JsonReader operator[](std::string_view key) const {
        static const Json absent;
        require(value_->is_object(), "an object");
        const auto found = value_->find(key);
        return {found == value_->end() ? absent : *found, source_, path_of(key)};
    }
    JsonReader at(std::string_view key) const {
        JsonReader found = (*this)[key];
        if (found.null()) throw Error("json.missing-key", cat(where(), ": '", key, "' is missing"));
        return found;
    }
    JsonReader at(std::size_t i) const { return {value_->at(i), source_, cat(path_, "[", i, "]")}; }
    std::size_t size() const {
        require(value_->is_array(), "a list");
        return value_->size();
    }
    std::vector<JsonReader> elements() const {
        std::vector<JsonReader> all;
        for (std::size_t i = 0; i < size(); ++i) all.push_back(at(i));
        return all;
    }
    /// Refuses an object with a key that is not listed.
    void only_keys(std::initializer_list<std::string_view> known) const {
        require(value_->is_object(), "an object");
        for (const auto& [key, ignored] : value_->items()) {
            if (std::ranges::find(known, key) == known.end())
                throw Error("json.unknown-key", cat(where(), ": this program does not know the key '", key, "'"));
        }
    }

    // The value.

    const std::string& string() const {
        require(value_->is_string(), "a string");
        return value_->template get_ref<const std::string&>();
    }
    bool boolean() const {
        require(value_->is_boolean(), "true or false");
        return value_->template get<bool>();
    }
    double number() const {
        require(value_->is_number() && std::isfinite(value_->template get<double>()), "a finite number");
        return value_->template get<double>();
    }
    /// Python writes 1e4 as 10000.0: a float that is a small whole number means the integer.
    int64_t integer() const {
        constexpr auto largest = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
        const bool too_large = value_->is_number_unsigned() && value_->template get<uint64_t>() > largest;
        const double real = value_->is_number_float() ? value_->template get<double>() : 0;
        const bool whole = value_->is_number_integer() || (value_->is_number_float() && real == std::floor(real));
        require(whole && !too_large && std::abs(real) < 9e15, "an integer below 2^63");
        return value_->template get<int64_t>();
    }
    /// A token id: an integer from 0 that fits 31 bits.
    int32_t id() const {
        const bool fits = value_->is_number_unsigned() && value_->template get<uint64_t>() < 0x7FFFFFFF;
        require(fits, "an integer from 0 to 2147483646");
        return value_->template get<int32_t>();
    }

    // Members that may be absent.

    std::optional<std::string> string(std::string_view key) const {
        return read(key, [](auto v) { return v.string(); });
    }
    std::optional<bool> boolean(std::string_view key) const {
        return read(key, [](auto v) { return v.boolean(); });
    }
    std::optional<double> number(std::string_view key) const {
        return read(key, [](auto v) { return v.number(); });
    }
    std::optional<int64_t> integer(std::string_view key) const {
        return read(key, [](auto v) { return v.integer(); });
    }
    std::optional<JsonReader> object(std::string_view key) const {
        return read(key, [](auto v) { return v.require(v.value().is_object(), "an object"), v; });
    }
    /// Empty of an absent list.
    std::vector<std::string> strings(std::string_view key) const {
        std::vector<std::string> all;
        if (!has(key)) return all;
        for (const JsonReader& item : (*this)[key].elements()) all.push_back(item.string());
        return all;
    }
    /// A list, or a single value as a list of one; absent: empty.
    std::vector<int64_t> integers(std::string_view key) const {
        std::vector<int64_t> all;
        if (!has(key)) return all;
        const JsonReader list = (*this)[key];
        if (!list.value().is_array()) return {list.integer()};
        for (const JsonReader& item : list.elements()) all.push_back(item.integer());
        return all;
    }

  private:
    /// Keys may be any text: those of vocabularies are tokens.
    std::string path_of(std::string_view key) const {
        const bool word = std::ranges::all_of(key, [](unsigned char c) { return std::isalnum(c) || c == '_'; });
        if (!word) return cat(path_, "['", key, "']");
        return path_.empty() ? std::string(key) : cat(path_, ".", key);
    }
    template <class Read>
    auto read(std::string_view key, Read as) const {
        const JsonReader found = null() ? *this : (*this)[key];
        return found.null() ? std::nullopt : std::optional(as(found));
    }

    const Json* value_;
    std::string source_, path_;
};

}  // namespace unsloth
