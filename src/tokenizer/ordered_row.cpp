#include "unsloth/tokenizer/ordered_row.h"

#include <nlohmann/json.hpp>

#include "unsloth/core/error.h"

namespace unsloth::tokenizer {
namespace {

using Json = nlohmann::ordered_json;

/// Whether a content is this text, or parts of one.
bool says(const Json& content, const std::string& text) {
    if (!content.is_array()) return content == text;
    std::string joined;
    for (const Json& part : content)
        if (part.is_object() && part.contains("text") && part["text"].is_string())
            joined += part["text"].get_ref<const std::string&>();
    return joined == text;
}

}  // namespace

Json parse_ordered(std::string_view text) {
    return read_json<Json>(text, row_rules);
}

Json try_parse_ordered(std::string_view text) {
    return try_parse_json<Json>(text, row_rules);
}

std::optional<Json> system_message(const Json& row, const Json& first) {
    const auto system = row.find("system");
    if (system == row.end() || system->is_null() || *system == "") return std::nullopt;
    if (!system->is_string())
        throw Error("data.message-shape",
                    cat("column \"system\": expected a text, found a value of type ", system->type_name()),
                    "It is the system's message; data.columns gives a column that is not another name.");
    const auto member = [&](const char* name) {
        return first.is_object() && first.contains(name) ? first[name] : Json();
    };
    if (member("role") != "system") return Json{{"role", "system"}, {"content", *system}};
    if (says(member("content"), system->get_ref<const std::string&>())) return std::nullopt;
    throw Error("data.message-shape",
                "column \"system\" and the conversation's own system message are not the same text",
                "Leave one of them out: the model gets one system message at the beginning.");
}

void put_system_first(Json& row) {
    const auto messages = row.find("messages");
    if (messages == row.end() || !messages->is_array() || messages->empty()) return;
    if (auto system = system_message(row, messages->front())) messages->insert(messages->begin(), *std::move(system));
    row.erase("system");
}

}  // namespace unsloth::tokenizer
