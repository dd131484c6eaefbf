// The fields of a request as a table: name, type, range and where the value goes.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "unsloth/core/error.h"
#include "unsloth/openai/error.h"
#include "unsloth/openai/request.h"

namespace unsloth::openai {

using Json = nlohmann::ordered_json;

/// What was found, without long texts and without walking into it.
std::string found(const Json& value);
[[noreturn]] void refuse_type(const std::string& name, const char* expected, const Json& value);
[[noreturn]] void refuse_range(const std::string& name, const std::string& range, const Json& value);
/// Values of a JSON type; 400 with the name otherwise.
double number_of(const Json& value, const std::string& name);
int64_t whole_of(const Json& value, const std::string& name);
std::vector<int32_t> ids_of(const Json& value, const std::string& name, int64_t vocab_size);
/// Refuses what is no object, and members not in `keys` unless they are null or options.accept_unknown says so.
void allow_only(const Json& object, std::initializer_list<std::string_view> keys, const std::string& name,
                const ParseOptions& options = {});
/// The parsed body, an object. 400 for what is no JSON, nests too deep or is another type.
Json parse_body(std::string_view body);

template <class T>
struct Number {
    double T::* to;
    double least, most;
    bool above = false;  ///< `least` itself is out of range
};
template <class T>
struct Whole {
    std::variant<int64_t T::*, std::optional<int64_t> T::*> to;
    int64_t least = std::numeric_limits<int64_t>::min(), most = std::numeric_limits<int64_t>::max();
};
template <class T>
struct Flag {
    bool T::* to;
};
template <class T>
struct Text {
    std::string T::* to;
};
/// Accepted, and without effect.
struct NoEffect {};
/// Values that ask for nothing are accepted; others are refused with `why`.
struct Only {
    const char* accepted;  ///< a JSON list
    const char* why;
    Json values() const { return Json::parse(accepted); }
};
template <class T>
struct Other {
    void (*read)(T& to, const Json& value, const std::string& name, const ParseOptions& options);
    Json (*schema)();  ///< JSON Schema that allows at least what `read` accepts
};

template <class T>
struct Field {
    const char* name;
    std::variant<Number<T>, Whole<T>, Flag<T>, Text<T>, NoEffect, Only, Other<T>> kind;
    bool required = false;
};

template <class T>
void read_field(const Field<T>& field, const std::string& name, const Json& value, const ParseOptions& options, T& to) {
    const auto read = [&](const auto& kind) {
        using Kind = std::decay_t<decltype(kind)>;
        if constexpr (std::is_same_v<Kind, Number<T>>) {
            const double number = number_of(value, name);
            if (!(kind.above ? number > kind.least : number >= kind.least) || !(number <= kind.most))
                refuse_range(name, cat(kind.above ? "above " : "from ", kind.least, " to ", kind.most), value);
            to.*kind.to = number;
        } else if constexpr (std::is_same_v<Kind, Whole<T>>) {
            const int64_t number = whole_of(value, name);
            if (number < kind.least || number > kind.most)
                refuse_range(name,
                             kind.most == std::numeric_limits<int64_t>::max()
                                 ? cat("at least ", kind.least)
                                 : cat("from ", kind.least, " to ", kind.most),
                             value);
            std::visit([&](auto member) { to.*member = number; }, kind.to);
        } else if constexpr (std::is_same_v<Kind, Flag<T>>) {
            if (!value.is_boolean()) refuse_type(name, "a boolean", value);
            to.*kind.to = value.get<bool>();
        } else if constexpr (std::is_same_v<Kind, Text<T>>) {
            if (!value.is_string()) refuse_type(name, "a string", value);
            to.*kind.to = value.get<std::string>();
        } else if constexpr (std::is_same_v<Kind, Only>) {
            const Json accepted = kind.values();
            if (std::ranges::find(accepted, value) == accepted.end())
                throw unsupported(cat("'", name, "': ", kind.why), name);
        } else if constexpr (std::is_same_v<Kind, Other<T>>) {
            kind.read(to, value, name, options);
        }
    };
    std::visit(read, field.kind);
}

/// Reads an object by tables. A null counts as absent. `within`: what the object's own name is, with a dot.
template <class T>
void read_fields(const Json& object, std::initializer_list<std::span<const Field<T>>> tables,
                 const ParseOptions& options, T& to, const std::string& within = {}) {
    std::set<std::string_view> known;
    for (const std::span<const Field<T>> table : tables) {
        for (const Field<T>& field : table) {
            known.insert(field.name);
            const auto value = object.find(field.name);
            const bool absent = value == object.end() || value->is_null();
            if (absent && field.required)
                throw ApiError(400, cat("Missing required parameter: '", within, field.name, "'."), within + field.name,
                               "missing_required_parameter");
            if (!absent) read_field(field, within + field.name, *value, options, to);
        }
    }
    if (options.accept_unknown) return;
    for (const auto& [key, value] : object.items())
        if (!known.contains(key))
            throw ApiError(400, cat("Unknown parameter: '", within, key.substr(0, 100), "'."),
                           within + key.substr(0, 100), "unknown_parameter");
}

/// JSON Schema of a value, but for null.
template <class T>
Json value_schema(const Field<T>& field) {
    const auto schema = [](const auto& kind) -> Json {
        using Kind = std::decay_t<decltype(kind)>;
        if constexpr (std::is_same_v<Kind, Number<T>>)
            return {
                {"type", "number"}, {kind.above ? "exclusiveMinimum" : "minimum", kind.least}, {"maximum", kind.most}};
        else if constexpr (std::is_same_v<Kind, Whole<T>>)
            return {{"type", "integer"}, {"minimum", kind.least}, {"maximum", kind.most}};
        else if constexpr (std::is_same_v<Kind, Flag<T>>)
            return {{"type", "boolean"}};
        else if constexpr (std::is_same_v<Kind, Text<T>>)
            return {{"type", "string"}};
        else if constexpr (std::is_same_v<Kind, Only>)
            return {{"enum", kind.values()}, {"description", kind.why}};
        else if constexpr (std::is_same_v<Kind, Other<T>>)
            return kind.schema();
        else
            return {{"description", "Accepted, and without effect."}};
    };
    return std::visit(schema, field.kind);
}

/// JSON Schema of the objects that read_fields reads by the same tables.
template <class T>
Json object_schema(std::initializer_list<std::span<const Field<T>>> tables) {
    Json properties = Json::object(), required = Json::array();
    for (const std::span<const Field<T>> table : tables) {
        for (const Field<T>& field : table) {
            Json schema = value_schema(field);
            if (field.required)
                required.push_back(field.name);
            else
                schema = {{"anyOf", Json::array({std::move(schema), {{"type", "null"}}})}};
            properties[field.name] = std::move(schema);
        }
    }
    return {{"type", "object"},
            {"properties", std::move(properties)},
            {"required", std::move(required)},
            {"additionalProperties", false}};
}

/// JSON Schemas of values that several tables have.
Json any_schema(Json schemas);
Json list_schema(Json items, std::size_t most);
Json ids_schema();

}  // namespace unsloth::openai
