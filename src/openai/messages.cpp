#include "openai/messages.h"

#include "openai/field_table.h"
#include "unsloth/spec/reasoning_names.h"

namespace unsloth::openai {
namespace {

constexpr std::string_view roles[] = {"system", "developer", "user", "assistant", "tool"};

/// What the URL holds is read later.
void check_url(const Json& url, const std::string& name) {
    if (!url.is_string()) refuse_type(name, "a string", url);
    if (!url.get_ref<const std::string&>().starts_with("data:"))
        throw unsupported(cat("'", name, "': only data: URLs with base64 are supported. Nothing is downloaded, and no ",
                              "file is read."),
                          name);
}

void check_detail(const Json& object, const std::string& name) {
    const Json detail = object.value("detail", Json("auto"));
    if (detail != "auto" && detail != "high")
        throw unsupported(cat("'", name, ".detail': only auto and high are supported, which are the same here."),
                          name + ".detail");
}

/// {type, image_url: {url, detail?}}.
void check_image(const Json& part, const std::string& name) {
    allow_only(part, {"type", "image_url"}, name);
    const std::string where = name + ".image_url";
    const Json image = part.value("image_url", Json());
    if (!image.is_object()) refuse_type(where, "an object with a url", image);
    allow_only(image, {"url", "detail"}, where);
    check_url(image.value("url", Json()), where + ".url");
    check_detail(image, where);
}

/// A part input_image, {type, image_url, detail?}, as chats have it.
Json chat_image(const Json& part, const std::string& name) {
    allow_only(part, {"type", "image_url", "detail", "file_id"}, name);
    if (!part.value("file_id", Json()).is_null())
        throw unsupported(cat("'", name, ".file_id': no files are stored. Send 'image_url' with a data: URL."),
                          name + ".file_id");
    const Json url = part.value("image_url", Json());
    check_url(url, name + ".image_url");
    check_detail(part, name);
    return {{"type", "image_url"}, {"image_url", {{"url", url}}}};
}

/// The text of a part input_text, output_text or text; `others`: what else there may be, for the refusal.
std::string text_of_part(const Json& part, const std::string& name, const ParseOptions& options,
                         const char* others = "") {
    if (!part.is_object() || !part.contains("type") || !part["type"].is_string())
        refuse_type(name, "an object with a type", part);
    const auto& type = part["type"].get_ref<const std::string&>();
    if (type != "input_text" && type != "output_text" && type != "text")
        throw unsupported(cat("'", name, ".type': only text", others, *others ? " are" : " is", " supported, found '",
                              type.substr(0, 40), "'."),
                          name + ".type");
    if (!part.contains("text") || !part["text"].is_string())
        refuse_type(name + ".text", "a string", part.value("text", Json()));
    allow_only(part, {"type", "text", "annotations", "logprobs"}, name, options);
    return part["text"].get<std::string>();
}

bool is_input_image(const Json& part) {
    return part.is_object() && part.value("type", Json()) == "input_image";
}

/// Parts of which some are images, as chats have them.
Json chat_parts(const Json& parts, const std::string& name, const ParseOptions& options) {
    Json all = Json::array();
    for (std::size_t i = 0; i < parts.size(); ++i) {
        const std::string where = cat(name, "[", i, "]");
        if (is_input_image(parts[i]))
            all.push_back(chat_image(parts[i], where));
        else
            all.push_back({{"type", "text"}, {"text", text_of_part(parts[i], where, options, " and input_image")}});
    }
    return all;
}

void check_content(const Json& content, const std::string& name, const ParseOptions& options) {
    const bool sees_images = options.sees_images;
    if (content.is_string() || content.is_null()) return;
    if (!content.is_array()) refuse_type(name, "a string or a list of parts", content);
    for (std::size_t i = 0; i < content.size(); ++i) {
        const std::string part = cat(name, "[", i, "]");
        if (!content[i].is_object() || !content[i].contains("type") || !content[i]["type"].is_string())
            refuse_type(part, "an object with a type", content[i]);
        const auto& type = content[i]["type"].get_ref<const std::string&>();
        if (type == "image_url" && sees_images) {
            check_image(content[i], part);
            continue;
        }
        if (type != "text")
            throw unsupported(cat("'", part, ".type': only text", sees_images ? " and image_url are" : " is",
                                  " supported, found '", type.substr(0, 40), "'."),
                              part + ".type");
        if (!content[i].contains("text") || !content[i]["text"].is_string())
            refuse_type(part + ".text", "a string", content[i].value("text", Json()));
        allow_only(content[i], {"type", "text"}, part, options);
    }
}

void check_texts(const Json& object, std::initializer_list<const char*> keys, const std::string& name) {
    for (const char* key : keys)
        if (const Json value = object.value(key, Json()); !value.is_null() && !value.is_string())
            refuse_type(cat(name, ".", key), "a string", value);
}

/// What an assistant's message called. Arguments are a JSON text, or an object.
void check_calls(const Json& calls, const std::string& name, const ParseOptions& options) {
    if (!calls.is_array()) refuse_type(name, "a list of calls", calls);
    for (std::size_t i = 0; i < calls.size(); ++i) {
        const std::string where = cat(name, "[", i, "]"), inner = where + ".function";
        allow_only(calls[i], {"id", "type", "function", "index"}, where, options);
        check_texts(calls[i], {"id"}, where);
        if (const Json type = calls[i].value("type", Json("function")); type != "function" && !type.is_null())
            throw unsupported(cat("'", where, ".type': only function is supported."), where + ".type");
        const Json function = calls[i].value("function", Json());
        allow_only(function, {"name", "arguments"}, inner, options);
        if (!function.contains("name") || !function["name"].is_string())
            refuse_type(inner + ".name", "a string", function.value("name", Json()));
        if (const Json arguments = function.value("arguments", Json());
            !arguments.is_null() && !arguments.is_string() && !arguments.is_object())
            refuse_type(inner + ".arguments", "a string", arguments);
    }
}

/// Checks the members other than role and content. Members that the API has and no template writes must be empty.
void check_members(const Json& message, const std::string& name, const ParseOptions& options) {
    const bool is_assistant = message["role"] == "assistant";
    if (const Json type = message.value("type", Json()); !type.is_null() && type != "text" && type != "message")
        throw invalid(cat("Invalid value for '", name, ".type': expected message."), name + ".type");
    const auto& [first, second, third] = spec::reasoning_names;
    if (is_assistant)
        allow_only(message,
                   {"type", "role", "content", "name", "tool_calls", first, second, third, "refusal", "audio",
                    "function_call", "annotations"},
                   name, options);
    else if (message["role"] == "tool")
        allow_only(message, {"type", "role", "content", "name", "tool_call_id"}, name, options);
    else
        allow_only(message, {"type", "role", "content", "name"}, name, options);
    check_texts(message, {"name", "tool_call_id", first, second, third}, name);
    if (!is_assistant) return;
    for (const char* key : {"refusal", "audio", "function_call", "annotations"})
        if (const Json value = message.value(key, Json()); !value.empty())
            throw unsupported(cat("'", name, ".", key, "': it is not supported. Leave it out."), cat(name, ".", key));
    if (const Json calls = message.value("tool_calls", Json()); !calls.is_null())
        check_calls(calls, name + ".tool_calls", options);
}

}  // namespace

Json read_messages(const Json& value, const std::string& name, const ParseOptions& options) {
    if (!value.is_array()) refuse_type(name, "a list of messages", value);
    if (value.empty()) refuse_range(name, "one message at least", value);
    Json messages = value;
    for (std::size_t i = 0; i < messages.size(); ++i) {
        const std::string where = cat(name, "[", i, "]");
        Json& message = messages[i];
        if (!message.is_object()) refuse_type(where, "an object", message);
        if (!message.contains("role") || !message["role"].is_string())
            refuse_type(where + ".role", "a string", message.value("role", Json()));
        const auto& role = message["role"].get_ref<const std::string&>();
        if (std::ranges::find(roles, role) == std::end(roles))
            throw invalid(cat("Invalid value for '", where, ".role': expected system, developer, user, assistant or ",
                              "tool, found '", role.substr(0, 40), "'."),
                          where + ".role");
        const bool calls = role == "assistant" && message.contains("tool_calls");
        if (!message.contains("content") && !calls)
            throw ApiError(400, cat("Missing required parameter: '", where, ".content'."), where + ".content",
                           "missing_required_parameter");
        if (message.contains("content")) check_content(message["content"], where + ".content", options);
        check_members(message, where, options);
        // Rows have texts and images there, too: what is read is what was checked.
        if (options.sees_images && message.contains("value"))
            throw invalid(cat("Unknown parameter: '", where, ".value'."), where + ".value");
        if (role == "developer") message["role"] = "system";  // the name that templates know
        message.erase("type");
    }
    return messages;
}

std::string joined_text(const Json& value, const std::string& name, const ParseOptions& options) {
    if (value.is_string()) return value.get<std::string>();
    if (!value.is_array()) refuse_type(name, "a string or a list of parts", value);
    std::string text;
    for (std::size_t i = 0; i < value.size(); ++i) text += text_of_part(value[i], cat(name, "[", i, "]"), options);
    return text;
}

Json input_messages(const Json& value, const std::string& name, const ParseOptions& options) {
    Json messages = Json::array();
    if (value.is_string()) {
        messages.push_back({{"role", "user"}, {"content", value}});
    } else if (value.is_array()) {
        for (std::size_t i = 0; i < value.size(); ++i) {
            const std::string where = cat(name, "[", i, "]");
            const Json& message = value[i];
            if (!message.is_object()) refuse_type(where, "an object", message);
            const Json type = message.value("type", Json("message"));
            if (type != "message")
                throw unsupported(cat("'", where, ".type': only messages are supported."), where + ".type");
            allow_only(message, {"type", "role", "content", "id", "status"}, where, options);
            messages.push_back({{"role", message.value("role", Json())}});
            if (!message.contains("content")) continue;
            const Json& content = message["content"];
            const bool shows =
                options.sees_images && content.is_array() && std::ranges::any_of(content, is_input_image);
            messages.back()["content"] = shows ? chat_parts(content, where + ".content", options)
                                               : Json(joined_text(content, where + ".content", options));
        }
    } else {
        refuse_type(name, "a string or a list of messages", value);
    }
    return read_messages(messages, name, options);
}

Json input_schema() {
    return any_schema(Json::array({{{"type", "string"}}, {{"type", "array"}, {"items", {{"type", "object"}}}}}));
}

Json messages_schema() {
    const Json text = {{"type", "string"}}, nothing = {{"type", "null"}};
    const Json part = {{"type", "object"},
                       {"required", Json::array({"type", "text"})},
                       {"properties", {{"type", {{"const", "text"}}}, {"text", text}}},
                       {"additionalProperties", false}};
    const Json url = {{"type", "object"},
                      {"required", Json::array({"url"})},
                      {"properties",
                       {{"url", {{"type", "string"}, {"pattern", "^data:"}}},
                        {"detail", {{"enum", Json::array({"auto", "high"})}}}}}};
    const Json image = {{"type", "object"},
                        {"required", Json::array({"type", "image_url"})},
                        {"properties", {{"type", {{"const", "image_url"}}}, {"image_url", url}}}};
    const Json content = any_schema({text, nothing, {{"type", "array"}, {"items", any_schema({part, image})}}});
    const Json perhaps = {{"type", Json::array({"string", "null"})}};
    const Json function = {{"type", "object"},
                           {"required", Json::array({"name"})},
                           {"properties", {{"name", text}, {"arguments", Json::object()}}},
                           {"additionalProperties", false}};
    const Json call = {
        {"type", "object"},
        {"required", Json::array({"function"})},
        {"properties",
         {{"id", perhaps}, {"type", {{"const", "function"}}}, {"index", Json::object()}, {"function", function}}},
        {"additionalProperties", false}};
    Json properties = {{"role", {{"enum", roles}}},
                       {"content", content},
                       {"type", {{"enum", Json::array({"message", "text", nullptr})}}},
                       {"tool_calls", any_schema({nothing, {{"type", "array"}, {"items", call}}})}};
    for (const char* key : {"name", "tool_call_id"}) properties[key] = perhaps;
    for (const char* key : spec::reasoning_names) properties[key] = perhaps;
    for (const char* key : {"refusal", "audio", "function_call"}) properties[key] = nothing;
    properties["annotations"] = {{"type", Json::array({"array", "null"})}, {"maxItems", 0}};
    const Json message = {{"type", "object"},
                          {"required", Json::array({"role"})},
                          {"properties", properties},
                          {"additionalProperties", false}};
    return {{"type", "array"}, {"items", message}, {"minItems", 1}};
}

void finish_row(Json& row, bool add_generation_prompt, bool continue_final_message) {
    row["add_generation_prompt"] = add_generation_prompt;
    if (!continue_final_message) return;
    if (add_generation_prompt)
        throw invalid("'continue_final_message' needs 'add_generation_prompt': false.", "continue_final_message");
    const Json& last = row["messages"].back();
    if (!last.contains("content") || !last["content"].is_string() || last["content"] == "")
        throw invalid("'continue_final_message' needs a last message whose content is a text.",
                      "continue_final_message");
}

}  // namespace unsloth::openai
