#pragma once
// Arrow's values as JSON texts.
#include <arrow/api.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace unsloth::data::arrow_json {

/// Throws std::runtime_error with Arrow's message.
inline void require(const arrow::Status& status) {
    if (!status.ok()) throw std::runtime_error(status.message());
}

/// The value of a result. Throws as require().
template <class Value>
Value require_value(arrow::Result<Value> result) {
    require(result.status());
    return std::move(result).ValueUnsafe();
}

/// The row's JSON text, which grows.
struct Out {
    std::string text;
    bool bytes_as_text = false;  ///< bytes that are not UTF-8 are written as they are

    template <class Part>
    Out& operator+=(Part part) {
        text += part;
        return *this;
    }
};

/// A value that JSON has no words for: what it is, as a noun.
struct Unread {
    std::string what;
};

/// Appends a JSON string.
void write_string(std::string_view text, Out& out);

/// Appends element i of the array. Throws Unread for a type that JSON rows do not take.
void write_value(const arrow::Array& array, int64_t i, Out& out);

}  // namespace unsloth::data::arrow_json
