#include "openai/field_table.h"

#include "unsloth/core/json_reader.h"
#include "unsloth/core/syntax.h"
#include "unsloth/tokenizer/ordered_row.h"

namespace unsloth::openai {

std::string found(const Json& value) {
    if (value.is_string()) return "a string";  // which may be a part of a prompt
    return shown(value);
}

void refuse_type(const std::string& name, const char* expected, const Json& value) {
    throw ApiError(400, cat("Invalid type for '", name, "': expected ", expected, ", found ", found(value), "."), name,
                   "invalid_type");
}

void refuse_range(const std::string& name, const std::string& range, const Json& value) {
    throw invalid(cat("Invalid value for '", name, "': expected ", range, ", found ", found(value), "."), name);
}

double number_of(const Json& value, const std::string& name) {
    if (!value.is_number() || !std::isfinite(value.get<double>())) refuse_type(name, "a number", value);
    return value.get<double>();
}

int64_t whole_of(const Json& value, const std::string& name) {
    constexpr double exact = 9007199254740992;  // 2^53: clients without integers write 16.0
    if (value.is_number_float() && std::floor(value.get<double>()) == value.get<double>() &&
        std::abs(value.get<double>()) < exact)
        return static_cast<int64_t>(value.get<double>());
    if (!value.is_number_integer()) refuse_type(name, "an integer", value);
    if (value.is_number_unsigned() &&
        value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
        refuse_range(name, "an integer below 2^63", value);
    return value.get<int64_t>();
}

std::vector<int32_t> ids_of(const Json& value, const std::string& name, int64_t vocab_size) {
    if (!value.is_array()) refuse_type(name, "a list of token ids", value);
    std::vector<int32_t> ids;
    ids.reserve(value.size());
    for (const Json& one : value) {
        const int64_t id = whole_of(one, name);
        if (id < 0 || id >= vocab_size) refuse_range(name, cat("token ids from 0 to ", vocab_size - 1), one);
        ids.push_back(static_cast<int32_t>(id));
    }
    return ids;
}

void allow_only(const Json& object, std::initializer_list<std::string_view> keys, const std::string& name,
                const ParseOptions& options) {
    if (!object.is_object()) refuse_type(name, "an object", object);
    if (options.accept_unknown) return;
    for (const auto& [key, value] : object.items())
        if (!value.is_null() && std::ranges::find(keys, key) == keys.end())
            throw ApiError(400, cat("Unknown parameter: '", name, ".", key.substr(0, 100), "'."),
                           cat(name, ".", key.substr(0, 100)), "unknown_parameter");
}

Json any_schema(Json schemas) {
    return {{"anyOf", std::move(schemas)}};
}
Json list_schema(Json items, std::size_t most) {
    return {{"type", "array"}, {"items", std::move(items)}, {"maxItems", most}};
}
Json ids_schema() {
    return {{"type", "array"}, {"items", {{"type", "integer"}, {"minimum", 0}}}};
}

Json parse_body(std::string_view body) {
    try {
        Json parsed = tokenizer::parse_ordered(body);
        if (!parsed.is_object()) throw ApiError(400, cat("The body is ", found(parsed), ", expected a JSON object."));
        return parsed;
    } catch (const JsonRefusal& refused) {
        if (refused.cause != JsonRefusal::Cause::syntax) throw ApiError(400, refused.words, "", "invalid_json");
        const SyntaxError error = find_json_error(body);
        throw ApiError(400, cat("The body is not valid JSON: byte ", error.at, ": ", error.words), "", "invalid_json");
    }
}

}  // namespace unsloth::openai
