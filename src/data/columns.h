// Looking into a row's columns, with errors that say what was found.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "unsloth/data/format.h"

namespace unsloth::data {

/// "id, text", or "none".
std::string column_list(const nlohmann::ordered_json& row);
/// The place of a value that its file's format holds and JSON does not; `what` it is, as a noun. No check on a value's
/// type accepts it, and shown() says what it is.
nlohmann::ordered_json unread(const std::string& what);
/// BadRow when a column of the row is such a place: for callers that use all columns.
void refuse_unread(const nlohmann::ordered_json& row);
/// A value as it may stand in an error message: short, whatever the row holds.
std::string shown(const nlohmann::ordered_json& value);
/// BadRow when the column is missing.
const nlohmann::ordered_json& required(const nlohmann::ordered_json& row, const char* column,
                                       config::DataFormat format);
/// BadRow unless it is a string; `where` names the place.
const std::string& as_string(const nlohmann::ordered_json& value, const std::string& where);
/// A column that may be absent or null.
std::string optional_string(const nlohmann::ordered_json& row, const char* column);

/// Whether the row has the column, and it is not null.
bool present(const nlohmann::ordered_json& row, const char* column);
/// Whether the row has the column, with something other than null and an empty text in it (as the cells of tables are).
bool holds(const nlohmann::ordered_json& row, const char* column);

/// The same, and other than an empty list or object, or the JSON text of an empty list.
bool says_something(const nlohmann::ordered_json& row, const char* column);

/// Whether a column's value is a list (of messages), be it as the JSON text that a table has.
bool holds_messages(const nlohmann::ordered_json& value);

/// RowDoubts of columns that rows of other forms are read with, or none: of system, history, tools and media those that
/// are not among `read`.
uint32_t unread_columns(const nlohmann::ordered_json& row, std::initializer_list<std::string_view> read);

/// BadRow for a value that is nested so deeply that using it could exhaust the stack, and for an unread() one. `where`
/// names the place.
void check_usable(const nlohmann::ordered_json& value, const std::string& where);
/// The value, once it is checked.
nlohmann::ordered_json copied(const nlohmann::ordered_json& value, const std::string& where);

}  // namespace unsloth::data
