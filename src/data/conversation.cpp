#include "data/conversation.h"

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "data/columns.h"
#include "unsloth/core/error.h"
#include "unsloth/data/reader.h"
#include "unsloth/tokenizer/ordered_row.h"

namespace unsloth::data {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* function_call = "function_call";  ///< ShareGPT's speaker of calls

/// ShareGPT's speakers, and the roles that they are.
const std::map<std::string, std::string>& speakers() {
    static const std::map<std::string, std::string> roles = {
        {"human", "user"},        {"user", "user"},       {"gpt", "assistant"},        {"assistant", "assistant"},
        {"chatgpt", "assistant"}, {"model", "assistant"}, {"system", "system"},        {"tool", "tool"},
        {"observation", "tool"},  {"function", "tool"},   {function_call, "assistant"}};
    return roles;
}

std::string in_small_letters(std::string name) {
    for (char& c : name)
        if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    return name;
}

/// The role of a speaker, whatever the case of its letters; nothing for others.
std::optional<std::string> known_speaker(const std::string& name) {
    const auto found = speakers().find(in_small_letters(name));
    return found == speakers().end() ? std::nullopt : std::optional(found->second);
}

/// An array that a table or a Parquet column may hold as its JSON text. The parsed text lives in `storage`.
const Json& array_column(const Json& row, const char* column, config::DataFormat format, const char* elements,
                         Json& storage) {
    const Json* value = &required(row, column, format);
    if (value->is_string() && value->get_ref<const std::string&>().starts_with('[')) {
        storage = tokenizer::try_parse_ordered(value->get_ref<const std::string&>());
        if (!storage.is_discarded()) value = &storage;
    }
    if (!value->is_array() || value->empty())
        throw BadRow{"data.column-type",
                     cat("column \"", column, "\": expected an array of ", elements, ", found ",
                         value->is_array() ? "an empty one" : shown(*value)),
                     ""};
    return *value;
}

/// The place of an image, as take_images() leaves it.
bool is_image_place(const Json& part) {
    return part.is_object() && part.size() == 1 && part.contains("type") && part["type"] == "image";
}

bool has_image_place(const Json& content) {
    return content.is_array() && std::any_of(content.begin(), content.end(), is_image_place);
}

/// A string, or the joined texts of an array of {"type": "text", "text"}; image placeholders are skipped.
std::string content_text(const Json& content, const std::string& where) {
    if (!content.is_array()) return as_string(content, where);
    std::string text;
    for (const Json& part : content) {
        if (is_image_place(part)) continue;
        const auto type = part.is_object() ? part.find("type") : part.end();
        if (type == part.end() || *type != "text" || !part.contains("text"))
            throw BadRow{"data.message-shape",
                         cat(where, ": expected a string or parts {\"type\": \"text\", \"text\"}, found ", shown(part)),
                         "Videos and sounds are not trained on."};
        text += as_string(part["text"], where + ".text");
    }
    return text;
}

/// Keys that say whether a message is trained, in OpenAI's rows and those of other programs.
constexpr const char* loss_flags[] = {"weight", "loss", "loss_mask", "trainable", "train", "training"};

/// Whether a template may read more of a message than role and content: reasoning, names, …
bool says_more(const Json& message) {
    for (const auto& [key, value] : message.items()) {
        const auto is_key = [&name = key](std::string_view known) { return name == known; };
        if (key != "role" && key != "content" && !value.is_null() && std::ranges::none_of(loss_flags, is_key))
            return true;
    }
    return false;
}

/// Whether a message is trained; nothing if no flag says so.
std::optional<bool> read_flags(const Json& message, const std::string& role, const std::string& where) {
    std::optional<bool> in_loss;
    const char* said_by = nullptr;
    for (const char* const flag : loss_flags) {
        const auto found = message.find(flag);
        if (found == message.end() || found->is_null()) continue;
        const bool is_flag = found->is_boolean() || (found->is_number() && (*found == 0 || *found == 1));
        if (!is_flag)
            throw BadRow{"data.message-shape",
                         cat(where, ".", flag, ": expected 0 or 1, true or false, found ", shown(*found)),
                         "The loss counts a message or leaves it out."};
        const bool value = found->is_boolean() ? found->get<bool>() : *found == 1;
        if (role != "assistant" && value)
            throw BadRow{"data.message-shape",
                         cat(where, ".", flag, ": only messages of the assistant are trained, found one of ", role),
                         "data.train_on_prompt: true trains on all messages."};
        if (in_loss && *in_loss != value)
            throw BadRow{"data.message-shape",
                         cat(where, ": ", said_by, " and ", flag, " say the opposite of each other"),
                         "Both say whether the loss counts the message: keep the one that is right."};
        in_loss = value;
        said_by = flag;
    }
    for (const char* const parts : {"train_detail", "training_detail"})
        if (message.contains(parts) && !message[parts].empty())
            throw BadRow{"data.message-shape",
                         cat(where, ".", parts, ": parts of a message cannot be excluded from the loss"),
                         "Give the message \"weight\": 0 or 1, or divide it into several."};
    return in_loss;
}

/// Whether a message calls tools: by tool_calls, or by OpenAI's older function_call.
bool calls_tools(const Json& message, const std::string& where) {
    const auto call = message.find("function_call");
    if (call != message.end() && call->is_object()) return true;
    const auto calls = message.find("tool_calls");
    if (calls == message.end() || calls->is_null()) return false;
    if (!calls->is_array())
        throw BadRow{"data.tool-calls", cat(where, ".tool_calls: expected an array of calls, found ", shown(*calls)),
                     ""};
    return !calls->empty();
}

/// Refuses a name for a role that the template calls by another name: ShareGPT's gpt, or User. A template that
/// writes every role as given would make an untrained turn of it.
void check_role(const std::string& role, const std::string& where, const ReadsColumn& reads) {
    for (const char* const usual : {"user", "assistant", "system", "tool"})
        if (role == usual) return;
    const std::optional<std::string> meant = known_speaker(role);
    if (!meant || reads(role)) return;
    throw BadRow{"data.unknown-role", cat(where, ".role: the chat template does not know \"", role, "\""),
                 cat("It may be \"", *meant,
                     "\". data.format sharegpt reads such names, with data.columns "
                     "{\"conversations\": \"messages\"} where the column has that name.")};
}

/// A row's tools, which a table has as JSON text; null for another text.
Json tools_of(const Json& tools) {
    if (!tools.is_string()) return copied(tools, "tools");
    Json parsed = tokenizer::try_parse_ordered(tools.get_ref<const std::string&>());
    return parsed.is_discarded() ? Json() : parsed;
}

class Builder {
  public:
    explicit Builder(const ReadsColumn& reads) : reads_(reads) {}

    /// `message`: {role, content, weight?, tool_calls?, ...}.
    void add(const Json& message, const std::string& where) {
        if (!message.is_object())
            throw BadRow{"data.message-shape",
                         cat(where, ": expected an object {role, content}, found ", shown(message)), ""};
        const bool calls = calls_tools(message, where);
        for (const char* key : {"role", "content"})
            if (!message.contains(key) && !(calls && key == std::string_view("content")))
                throw BadRow{"data.message-shape",
                             cat(where, ": \"", key, "\" is missing (found: ", column_list(message), ")"),
                             message.contains("from") && message.contains("value")
                                 ? "These are ShareGPT's turns: data.format sharegpt, and data.columns "
                                   "{\"conversations\": \"messages\"} where the column has that name."
                                 : ""};
        const bool silent = calls && (!message.contains("content") || message["content"].is_null());
        std::string content = silent ? std::string() : content_text(message["content"], where + ".content");
        const std::string& role = as_string(message["role"], where + ".role");
        check_role(role, where, reads_);
        const std::optional<bool> in_loss = read_flags(message, role, where);
        result_.names_weights |= in_loss.has_value();
        if (role == "assistant") result_.in_loss.push_back(in_loss.value_or(true) && !masked_);
        result_.conversation.uses_tools |= calls;
        says_more_ = says_more_ || says_more(message) || (!silent && has_image_place(message["content"]));
        result_.conversation.turns.push_back({role, std::move(content)});
    }

    void add_all(const Json& messages, const char* column) {
        for (const Json& message : messages) add(message, cat(column, "[", &message - &messages.front(), "]"));
    }

    /// What a template needs in addition to roles and contents. `messages` is an array of all added messages, `own` the
    /// columns that they came from.
    void keep_row(const Json& row, const Json& messages, const std::vector<std::string_view>& own) {
        Conversation& conversation = result_.conversation;
        if (says_something(row, "functions") && row["functions"].is_array() && !reads_("functions"))
            throw BadRow{"data.tool-calls",
                         "column \"functions\": the chat template does not read OpenAI's older form of tools",
                         "Write them as tools: [{\"type\": \"function\", \"function\": {...}}]."};
        const bool has_tools = says_something(row, "tools");
        Json tools = has_tools ? tools_of(row["tools"]) : Json();
        conversation.uses_tools |= has_tools;
        Json whole = Json::object();
        for (const auto& [column, value] : row.items())
            if (column != "tools" && !value.is_null() && reads_(column) &&
                std::find(own.begin(), own.end(), column) == own.end())
                whole[column] = copied(value, cat("column \"", column, "\""));
        if (!conversation.uses_tools && !says_more_ && whole.empty()) return;
        Json& own_messages = whole["messages"] = copied(messages, "messages");
        for (std::size_t i = 0; i < own_messages.size(); ++i) {
            Json& content = own_messages[i]["content"];
            if (!has_image_place(content)) content = conversation.turns[i].content;  // parts are joined
        }
        if (has_tools) whole["tools"] = std::move(tools);
        conversation.row = std::make_shared<const Json>(std::move(whole));
    }

    void mask_what_follows(bool masked) { masked_ = masked; }
    WeightedConversation& result() { return result_; }

  private:
    const ReadsColumn& reads_;
    WeightedConversation result_;
    bool masked_ = false, says_more_ = false;
};

/// The calls that a turn of the speaker function_call has as its value: {name, arguments} or a list of them, or the
/// JSON text of either.
Json calls_of(const Json& value, const std::string& where) {
    Json calls =
        value.is_string() ? tokenizer::try_parse_ordered(value.get_ref<const std::string&>()) : copied(value, where);
    if (calls.is_object()) calls = Json::array({std::move(calls)});
    const auto is_call = [](const Json& call) {
        return call.is_object() && call.contains("name") && call["name"].is_string() && call.contains("arguments");
    };
    if (!calls.is_array() || calls.empty() || !std::all_of(calls.begin(), calls.end(), is_call))
        throw BadRow{
            "data.tool-calls",
            cat(where, ": expected a call {\"name\", \"arguments\"} or a list of calls as JSON, found ", shown(value)),
            "The speaker function_call calls tools; what an assistant says otherwise is from gpt."};
    for (Json& call : calls) call = Json{{"type", "function"}, {"function", std::move(call)}};
    return calls;
}

}  // namespace

std::string sharegpt_role(const std::string& name, const std::string& where) {
    if (auto role = known_speaker(name)) return *std::move(role);
    std::string known;
    for (const auto& [from, role] : speakers()) known += cat(known.empty() ? "" : ", ", from);
    throw BadRow{"data.unknown-role", cat(where, ": unknown speaker \"", name.substr(0, 40), "\""),
                 cat("Known are ", known, ".")};
}

/// What else the turn has stays as it is.
Json message_of(const Json& turn, const std::string& where) {
    if (!turn.is_object())
        throw BadRow{"data.message-shape", cat(where, ": expected an object {from, value}, found ", shown(turn)), ""};
    const bool openai = turn.contains("role");
    const std::string from = openai ? "role" : "from", value = openai ? "content" : "value";
    const bool calls = calls_tools(turn, where);
    for (const std::string& key : {from, value})
        if (!turn.contains(key) && !(calls && key == value))
            throw BadRow{"data.message-shape",
                         cat(where, ": \"", key, "\" is missing (found: ", column_list(turn), ")"), ""};
    const std::string& speaker = as_string(turn[from], cat(where, ".", from));
    const std::string place = cat(where, ".", value);
    Json message{{"role", sharegpt_role(speaker, where)}, {"content", ""}};
    if (in_small_letters(speaker) == function_call)
        message["tool_calls"] = calls_of(turn[value], place);
    else if (turn.contains(value) && !(calls && turn[value].is_null()))
        message["content"] = has_image_place(turn[value]) ? turn[value] : Json(content_text(turn[value], place));
    for (const auto& [key, other] : turn.items())
        if (key != from && key != value && !message.contains(key)) message[key] = copied(other, where);
    return message;
}

WeightedConversation openai_conversation(const Json& row, const ReadsColumn& reads) {
    Json storage, with_system;
    const Json* messages = &array_column(row, "messages", config::DataFormat::messages, "{role, content}", storage);
    Builder builder(reads);
    if (auto system = tokenizer::system_message(row, messages->front())) {
        builder.add(*system, "system");
        with_system = Json::array({*std::move(system)});
    }
    builder.add_all(*messages, "messages");
    if (!with_system.is_null()) {
        for (const Json& message : *messages) with_system.push_back(copied(message, "messages"));
        messages = &with_system;
    }
    builder.keep_row(row, *messages, {"messages", "system"});
    return std::move(builder.result());
}

WeightedConversation sharegpt_conversation(const Json& row, const ReadsColumn& reads) {
    Json storage;
    const Json& turns = array_column(row, "conversations", config::DataFormat::sharegpt, "{from, value}", storage);
    Json messages = Json::array();
    Builder builder(reads);
    const auto add = [&](Json message, const std::string& where) {
        builder.add(message, where);
        messages.push_back(std::move(message));
    };
    for (const Json& turn : turns) {
        const std::string where = cat("conversations[", &turn - &turns.front(), "]");
        Json message = message_of(turn, where);
        if (messages.empty())
            if (auto system = tokenizer::system_message(row, message)) add(*std::move(system), "system");
        add(std::move(message), where);
    }
    builder.keep_row(row, messages, {"conversations", "system"});
    return std::move(builder.result());
}

WeightedConversation prompt_completion_conversation(const Json& row, const ReadsColumn& reads) {
    Json prompt_storage, completion_storage;
    const Json& prompt =
        array_column(row, "prompt", config::DataFormat::prompt_completion, "{role, content}", prompt_storage);
    const Json& completion =
        array_column(row, "completion", config::DataFormat::prompt_completion, "{role, content}", completion_storage);
    Json messages = Json::array();
    Builder builder(reads);
    builder.mask_what_follows(true);
    if (auto system = tokenizer::system_message(row, prompt.front())) {
        builder.add(*system, "system");
        messages.push_back(*std::move(system));
    }
    builder.add_all(prompt, "prompt");
    builder.mask_what_follows(false);
    builder.add_all(completion, "completion");
    builder.result().names_weights |= std::find(builder.result().in_loss.begin(), builder.result().in_loss.end(),
                                                false) != builder.result().in_loss.end();
    for (const Json* part : {&prompt, &completion})
        for (const Json& message : *part) messages.push_back(copied(message, "prompt"));
    builder.keep_row(row, messages, {"prompt", "completion", "system"});
    return std::move(builder.result());
}

Json instruction_messages(const Json& row, const char* column) {
    Json messages = Json::array();
    const auto say = [&](const char* role, const std::string& content) {
        messages.push_back({{"role", role}, {"content", content}});
    };
    Json storage;
    if (says_something(row, "history")) {
        const Json& history = array_column(row, "history", config::DataFormat::alpaca, "[question, answer]", storage);
        for (const Json& turn : history) {
            const std::string where = cat("history[", &turn - &history.front(), "]");
            if (!turn.is_array() || turn.size() != 2)
                throw BadRow{"data.message-shape",
                             cat(where, ": expected a pair of question and answer, found ", shown(turn)), ""};
            say("user", as_string(turn[0], where + "[0]"));
            say("assistant", as_string(turn[1], where + "[1]"));
        }
    }
    const std::string instruction = optional_string(row, column), input = optional_string(row, "input");
    say("user", cat(instruction, instruction.empty() || input.empty() ? "" : "\n", input));
    return messages;
}

WeightedConversation alpaca_conversation(const Json& row, const ReadsColumn& reads) {
    (void)required(row, "instruction", config::DataFormat::alpaca);
    const std::string& output = as_string(required(row, "output", config::DataFormat::alpaca), "column \"output\"");
    Json messages = instruction_messages(row, "instruction");
    messages.push_back({{"role", "assistant"}, {"content", output}});
    if (auto system = tokenizer::system_message(row, messages.front()))
        messages.insert(messages.begin(), *std::move(system));
    Builder builder(reads);
    builder.add_all(messages, "messages");
    builder.keep_row(row, messages, {"instruction", "input", "output", "history", "system"});
    return std::move(builder.result());
}

}  // namespace unsloth::data
