#include "data/conversation.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "data/columns.h"
#include "unsloth/core/error.h"
#include "unsloth/data/reader.h"
#include "unsloth/tokenizer/ordered_row.h"

namespace unsloth {
namespace {

using Json = nlohmann::ordered_json;

/// An array that a table or a Parquet column may hold as its JSON text. The parsed text lives in `storage`.
const Json& array_column(const Json& row, const char* column, DataFormat format, const char* elements, Json& storage) {
    const Json* value = &required(row, column, format);
    if (value->is_string() && value->get_ref<const std::string&>().starts_with('[')) {
        storage = try_parse_ordered(value->get_ref<const std::string&>());
        if (!storage.is_discarded()) value = &storage;
    }
    if (!value->is_array() || value->empty())
        throw BadRow{cat("column \"", column, "\": expected an array of ", elements, ", found ",
                         value->is_array() ? "an empty one" : shown(*value)),
                     ""};
    return *value;
}

/// A string, or the texts of an array of {"type": "text", "text"} joined.
std::string content_text(const Json& content, const std::string& where) {
    if (!content.is_array()) return as_string(content, where);
    std::string text;
    for (const Json& part : content) {
        const auto type = part.is_object() ? part.find("type") : part.end();
        if (type == part.end() || *type != "text" || !part.contains("text"))
            throw BadRow{cat(where, ": expected a string or parts {\"type\": \"text\", \"text\"}, found ", shown(part)),
                         "Images and other media are not trained on."};
        text += as_string(part["text"], where + ".text");
    }
    return text;
}

/// Whether a template may read more of a message than role and content: reasoning, names, …
bool says_more(const Json& message) {
    for (const auto& [key, value] : message.items())
        if (key != "role" && key != "content" && key != "weight" && !value.is_null()) return true;
    return false;
}

/// Whether a message is learnt; absent: yes.
bool read_weight(const Json& message, const std::string& role, const std::string& where) {
    const auto found = message.find("weight");
    if (found == message.end() || found->is_null()) return true;
    if (!found->is_number() || (*found != 0 && *found != 1))
        throw BadRow{cat(where, ".weight: expected 0 or 1, found ", shown(*found)),
                     "The loss counts a message or leaves it out."};
    if (role != "assistant" && *found != 0)
        throw BadRow{cat(where, ".weight: only messages of the assistant are learnt, found one of ", role),
                     "data.train_on_prompt: true trains on all messages."};
    return *found == 1;
}

class Builder {
  public:
    void add(const Json& message, const std::string& role, std::string content, const std::string& where) {
        result_.names_weights |= message.contains("weight");
        const bool learnt = read_weight(message, role, where);
        if (role == "assistant") result_.learnt.push_back(learnt && !masked_);
        result_.conversation.turns.push_back({role, std::move(content)});
    }

    void add_openai(const Json& messages, const char* column) {
        for (const Json& message : messages) {
            const std::string where = cat(column, "[", &message - &messages.front(), "]");
            if (!message.is_object())
                throw BadRow{cat(where, ": expected an object {role, content}, found ", shown(message)), ""};
            const bool calls = message.contains("tool_calls") && !message["tool_calls"].is_null();
            for (const char* key : {"role", "content"})
                if (!message.contains(key) && !(calls && key == std::string_view("content")))
                    throw BadRow{cat(where, ": \"", key, "\" is missing (found: ", column_list(message), ")"), ""};
            const bool silent = calls && (!message.contains("content") || message["content"].is_null());
            std::string content = silent ? std::string() : content_text(message["content"], where + ".content");
            const std::string& role = as_string(message["role"], where + ".role");
            if (calls) result_.conversation.uses_tools = true;
            says_more_ = says_more_ || says_more(message);
            add(message, role, std::move(content), where);
        }
    }

    /// What a template needs beside roles and contents: the messages as they are. `messages` is an array of all that
    /// were added.
    void keep_json(const Json& row, const Json& messages) {
        Conversation& conversation = result_.conversation;
        if (const auto tools = row.find("tools"); tools != row.end() && !tools->is_null() && !tools->empty()) {
            conversation.uses_tools = true;
            conversation.tools_json = tools->is_string() ? tools->get<std::string>() : dumped(*tools, "tools");
        }
        if (conversation.uses_tools) {
            conversation.messages_json = dumped(messages, "messages");
        } else if (says_more_) {
            Json whole = messages;
            for (std::size_t i = 0; i < whole.size(); ++i)
                whole[i]["content"] = conversation.turns[i].content;  // parts are joined
            conversation.messages_json = dumped(whole, "messages");
        }
    }

    bool needs_json() const { return result_.conversation.uses_tools || says_more_; }
    void mask_what_follows(bool masked) { masked_ = masked; }
    WeightedConversation& result() { return result_; }

  private:
    WeightedConversation result_;
    bool masked_ = false, says_more_ = false;
};

}  // namespace

std::string sharegpt_role(const std::string& name, const std::string& where) {
    static const std::map<std::string, std::string> roles = {
        {"human", "user"},        {"user", "user"},       {"gpt", "assistant"}, {"assistant", "assistant"},
        {"chatgpt", "assistant"}, {"model", "assistant"}, {"system", "system"}, {"tool", "tool"},
        {"observation", "tool"},  {"function", "tool"}};
    const auto found = roles.find(name);
    if (found != roles.end()) return found->second;
    std::string known;
    for (const auto& [from, role] : roles) known += cat(known.empty() ? "" : ", ", from);
    throw BadRow{cat(where, ": unknown speaker \"", name.substr(0, 40), "\""), cat("Known are ", known, ".")};
}

WeightedConversation openai_conversation(const Json& row) {
    Json storage;
    const Json& messages = array_column(row, "messages", DataFormat::messages, "{role, content}", storage);
    Builder builder;
    builder.add_openai(messages, "messages");
    builder.keep_json(row, messages);
    return std::move(builder.result());
}

WeightedConversation sharegpt_conversation(const Json& row) {
    Json storage;
    const Json& turns = array_column(row, "conversations", DataFormat::sharegpt, "{from, value}", storage);
    Builder builder;
    if (std::string system = optional_string(row, "system"); !system.empty())
        builder.add(Json::object(), "system", std::move(system), "system");
    for (const Json& turn : turns) {
        const std::string where = cat("conversations[", &turn - &turns.front(), "]");
        if (!turn.is_object()) throw BadRow{cat(where, ": expected an object {from, value}, found ", shown(turn)), ""};
        const bool openai = turn.contains("role");
        const char* const from = openai ? "role" : "from";
        const char* const value = openai ? "content" : "value";
        for (const char* key : {from, value})
            if (!turn.contains(key))
                throw BadRow{cat(where, ": \"", key, "\" is missing (found: ", column_list(turn), ")"), ""};
        const std::string role = sharegpt_role(as_string(turn[from], cat(where, ".", from)), where);
        builder.add(turn, role, content_text(turn[value], cat(where, ".", value)), where);
    }
    if (row.contains("tools")) {
        Json messages = Json::array();
        for (const Message& turn : builder.result().conversation.turns)
            messages.push_back(Json{{"role", turn.role}, {"content", turn.content}});
        builder.keep_json(row, messages);
    }
    return std::move(builder.result());
}

WeightedConversation prompt_completion_conversation(const Json& row) {
    Json prompt_storage, completion_storage;
    const Json& prompt = array_column(row, "prompt", DataFormat::prompt_completion, "{role, content}", prompt_storage);
    const Json& completion =
        array_column(row, "completion", DataFormat::prompt_completion, "{role, content}", completion_storage);
    Builder builder;
    builder.mask_what_follows(true);
    builder.add_openai(prompt, "prompt");
    builder.mask_what_follows(false);
    builder.add_openai(completion, "completion");
    builder.result().names_weights |= std::find(builder.result().learnt.begin(), builder.result().learnt.end(),
                                                false) != builder.result().learnt.end();
    if (builder.needs_json() || row.contains("tools")) {
        Json messages = Json::array();
        for (const Json* part : {&prompt, &completion})
            for (const Json& message : *part) messages.push_back(Json::parse(dumped(message, "prompt")));
        builder.keep_json(row, messages);
    }
    return std::move(builder.result());
}

}  // namespace unsloth
