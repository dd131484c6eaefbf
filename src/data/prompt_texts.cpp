#include "data/prompt_texts.h"

#include <algorithm>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "data/columns.h"
#include "data/conversation.h"
#include "unsloth/core/error.h"
#include "unsloth/tokenizer/ordered_row.h"

namespace unsloth::data {
namespace {

using Json = nlohmann::ordered_json;

/// Called with each text's name and the text itself.
using Visit = std::function<void(const std::string& name, std::string& text)>;

struct FieldNames {
    std::vector<std::string> known, usual;
};

FieldNames names_of(config::DataFormat format) {
    switch (format) {
        case config::DataFormat::alpaca:
            return {{"instruction", "input", "system", "output"}, {"instruction", "input"}};
        case config::DataFormat::prompt_completion:
            return {{"prompt", "completion"}, {"prompt"}};
        case config::DataFormat::messages:
        case config::DataFormat::sharegpt:
            return {{"user", "system", "assistant", "tool"}, {"user"}};
        case config::DataFormat::text:
            return {{"text"}, {}};
        default:
            return {};
    }
}

std::string& string_in(Json& value, const std::string& where) {
    (void)as_string(value, where);
    return value.get_ref<std::string&>();
}

/// A text, or the texts of parts {"type": "text", "text"}.
void visit_content(Json& content, const std::string& name, const Visit& visit) {
    if (content.is_null()) return;  // of a message that calls tools
    if (!content.is_array()) return visit(name, string_in(content, name));
    for (std::size_t i = 0; i < content.size(); ++i) {
        const std::string part = cat(name, "[", i, "].text");
        if (content[i].is_object() && content[i].contains("text")) visit(part, string_in(content[i]["text"], part));
    }
}

void visit_messages(Json& messages, const std::string& column, const TextFields& fields, const Visit& visit,
                    const std::string& only_role = {}) {
    for (std::size_t i = 0; i < messages.size(); ++i) {
        Json& message = messages[i];
        const std::string where = cat(column, "[", i, "]");
        if (!message.is_object())
            throw BadRow{"data.message-shape", cat(where, ": expected an object, found ", shown(message)), ""};
        const bool sharegpt = !message.contains("role") && message.contains("from");
        const char* const speaker = sharegpt ? "from" : "role";
        const char* const content = sharegpt ? "value" : "content";
        if (!message.contains(speaker))
            throw BadRow{"data.message-shape", cat(where, ": \"role\" is missing (found: ", column_list(message), ")"),
                         ""};
        const std::string& written = as_string(message[speaker], cat(where, ".", speaker));
        const std::string role =
            fields.format == config::DataFormat::sharegpt ? sharegpt_role(written, cat(where, ".", speaker)) : written;
        if (written == "function_call") continue;  // its value is the JSON of a call
        const bool wanted = only_role.empty() ? fields.names.contains(role) : role == only_role;
        if (wanted && message.contains(content)) visit_content(message[content], cat(where, ".", content), visit);
    }
}

/// Runs `use` on a column that holds an array, or an array's JSON text (as in tables), which is written again if `use`
/// changed it. False: it holds something else.
bool with_array(Json& value, const std::string& column, const std::function<void(Json&)>& use) {
    if (value.is_array()) return use(value), true;
    if (!value.is_string() || !value.get_ref<const std::string&>().starts_with('[')) return false;
    Json array = tokenizer::try_parse_ordered(value.get_ref<const std::string&>());
    if (!array.is_array()) return false;
    const Json before = array;
    use(array);
    if (array == before) return true;
    check_usable(array, column);
    value = array.dump();
    return true;
}

void visit_column(Json& row, const TextFields& fields, const std::string& name, const Visit& visit) {
    const std::string column = fields.column(name);
    const auto found = row.find(column);
    if (found == row.end() || found->is_null()) return;
    const bool prompt_or_completion = fields.format == config::DataFormat::prompt_completion;
    const std::string role = name == "prompt" ? "user" : "assistant";
    const auto messages = [&](Json& array) { visit_messages(array, name, fields, visit, role); };
    if (prompt_or_completion && with_array(*found, column, messages)) return;
    visit(name, string_in(*found, cat("column \"", column, "\"")));
}

void visit_texts(Json& row, const TextFields& fields, const Visit& visit) {
    if (fields.format != config::DataFormat::messages && fields.format != config::DataFormat::sharegpt) {
        for (const std::string& name : names_of(fields.format).known)
            if (fields.names.contains(name)) visit_column(row, fields, name, visit);
        return;
    }
    if (fields.names.contains("system")) visit_column(row, fields, "system", visit);
    const std::string name = fields.format == config::DataFormat::messages ? "messages" : "conversations";
    const std::string column = fields.column(name);
    const auto found = row.find(column);
    if (found == row.end() || found->is_null()) return;
    if (!with_array(*found, column, [&](Json& array) { visit_messages(array, name, fields, visit); }))
        throw BadRow{"data.column-type",
                     cat("column \"", column, "\": expected an array of messages, found ", shown(*found)), ""};
}

}  // namespace

std::string TextFields::column(const std::string& name) const {
    const auto found =
        std::find_if(columns.begin(), columns.end(), [&](const auto& entry) { return entry.first == name; });
    return found == columns.end() ? name : found->second;
}

TextFields text_fields(config::DataFormat format, const ColumnNames& columns, const std::vector<std::string>& asked) {
    const FieldNames names = names_of(format);
    if (names.known.empty())
        throw Error("data.not-augmentable",
                    cat("rows of format ", format_name(format), " hold no texts that could be changed"),
                    "Augment the rows that they were made of.");
    std::string known;
    for (const std::string& name : names.known) known += cat(known.empty() ? "" : ", ", name);
    for (const std::string& name : asked)
        if (std::find(names.known.begin(), names.known.end(), name) == names.known.end())
            throw Error("option.invalid-value",
                        cat("--fields: rows of format ", format_name(format), " have no '", name, "'"),
                        cat("They have: ", known, "."));
    const std::vector<std::string>& chosen = asked.empty() ? names.usual : asked;
    if (chosen.empty())
        throw Error("option.missing",
                    cat("rows of format ", format_name(format), " have no prompt: all of their text is trained on"),
                    "--fields text changes it all the same.");
    return {format, columns, {chosen.begin(), chosen.end()}};
}

NamedTexts texts_of(const Json& row, const TextFields& fields) {
    NamedTexts texts;
    Json copy = row;
    visit_texts(copy, fields, [&](const std::string& name, std::string& text) { texts.emplace_back(name, text); });
    return texts;
}

void set_texts(Json& row, const TextFields& fields, const NamedTexts& texts) {
    std::map<std::string, const std::string*> left;
    for (const auto& [name, text] : texts) left.emplace(name, &text);
    visit_texts(row, fields, [&](const std::string& name, std::string& text) {
        const auto found = left.find(name);
        if (found == left.end()) return;
        text = *found->second;
        left.erase(found);
    });
    if (!left.empty())
        throw BadRow{"data.missing-column", cat("the row it belongs to has no ", left.begin()->first),
                     "Both must have the same columns and the same messages."};
}

}  // namespace unsloth::data
