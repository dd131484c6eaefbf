#include "data/columns.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "unsloth/core/error.h"
#include "unsloth/data/reader.h"
#include "unsloth/tokenizer/ordered_row.h"

namespace unsloth::data {
namespace {

using Json = nlohmann::ordered_json;

/// Whether brackets are nested at most `limit` deep.
bool nested_within(const Json& value, int limit) {
    if (!value.is_structured()) return true;
    return limit > 0 &&
           std::all_of(value.begin(), value.end(), [&](const Json& part) { return nested_within(part, limit - 1); });
}

}  // namespace

Json unread(const std::string& what) {
    return Json::binary({what.begin(), what.end()});
}

void refuse_unread(const Json& row) {
    for (const auto& [column, value] : row.items())
        if (value.is_binary()) check_usable(value, cat("column \"", column, "\""));
}

void check_usable(const Json& value, const std::string& where) {
    constexpr int depth = 100;
    if (value.is_binary())
        throw BadRow{"data.column-type", cat(where, ": expected a value of JSON, found ", shown(value)), ""};
    if (!nested_within(value, depth))
        throw BadRow{"data.column-type", cat(where, ": nested more than ", depth, " deep"), ""};
}

Json copied(const Json& value, const std::string& where) {
    check_usable(value, where);
    return value;
}

bool present(const Json& row, const char* column) {
    const auto found = row.find(column);
    return found != row.end() && !found->is_null();
}

bool holds(const Json& row, const char* column) {
    return present(row, column) && row[column] != "";
}

bool says_something(const Json& row, const char* column) {
    return holds(row, column) && row[column] != "[]" && !(row[column].is_structured() && row[column].empty());
}

std::string column_list(const Json& row) {
    std::string names;
    for (const auto& [name, value] : row.items()) names += cat(names.empty() ? "" : ", ", name);
    return names.empty() ? "none" : names;
}

std::string shown(const Json& value) {
    if (value.is_array()) return cat("an array of ", value.size());
    if (value.is_object()) return "an object";
    if (value.is_binary()) return {value.get_binary().begin(), value.get_binary().end()};
    std::string text = value.dump();
    constexpr std::size_t limit = 40;
    return text.size() <= limit ? text
           : value.is_string()  ? cat("a string of ", text.size(), " bytes")
                                : text.substr(0, limit);
}

const Json& required(const Json& row, const char* column, config::DataFormat format) {
    const auto found = row.find(column);
    if (found == row.end())
        throw BadRow{"data.missing-column",
                     cat("column \"", column, "\" is missing; a row of format ", format_name(format),
                         " needs it (found: ", column_list(row), ")"),
                     "All rows of a source must have the format of the first, or the one that data.format names; "
                     "data.columns renames "
                     "columns."};
    return *found;
}

const std::string& as_string(const Json& value, const std::string& where) {
    if (!value.is_string())
        throw BadRow{"data.column-type", cat(where, ": expected a string, found ", shown(value)), ""};
    return value.get_ref<const std::string&>();
}

std::string optional_string(const Json& row, const char* column) {
    const auto found = row.find(column);
    if (found == row.end() || found->is_null()) return {};
    return as_string(*found, cat("column \"", column, "\""));
}

bool holds_messages(const Json& value) {
    if (!value.is_string() || !value.get_ref<const std::string&>().starts_with("[{")) return value.is_array();
    const Json parsed = tokenizer::try_parse_ordered(value.get_ref<const std::string&>());
    return parsed.is_array() && (parsed.front().contains("role") || parsed.front().contains("from"));
}

uint32_t unread_columns(const Json& row, std::initializer_list<std::string_view> read) {
    constexpr std::pair<const char*, RowDoubt> columns[] = {
        {"system", RowDoubt::unread_system}, {"history", RowDoubt::unread_history}, {"tools", RowDoubt::unread_tools},
        {"images", RowDoubt::unread_media},  {"videos", RowDoubt::unread_media},    {"audios", RowDoubt::unread_media}};
    uint32_t doubts = 0;
    for (const auto& [column, doubt] : columns)
        if (std::ranges::find(read, column) == read.end() && says_something(row, column))
            doubts |= static_cast<uint32_t>(doubt);
    return doubts;
}

}  // namespace unsloth::data
