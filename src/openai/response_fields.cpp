// The fields of /v1/responses.
#include "openai/constraint_fields.h"
#include "openai/field_table.h"
#include "openai/messages.h"

namespace unsloth::openai {
namespace {

constexpr const char* rated = "message.output_text.logprobs";

struct Responding : AnswerRequest {
    Json messages = Json::array();
    std::string instructions;
    std::optional<int64_t> most_tokens, top_logprobs;
    Json format = {{"type", "text"}}, reasoning, metadata = Json::object();
    bool says_store = false;
};

void read_response_input(Responding& to, const Json& value, const std::string& name, const ParseOptions& options) {
    to.messages = input_messages(value, name, options);
}

void read_include(Responding& to, const Json& value, const std::string& name, const ParseOptions&) {
    if (!value.is_array()) refuse_type(name, "a list of strings", value);
    for (const Json& one : value) {
        if (one != rated) throw unsupported(cat("'", name, "': only ", rated, " is supported."), name);
        to.logprobs = 0;
    }
}
Json include_schema() {
    return {{"type", "array"}, {"items", {{"enum", Json::array({rated})}}}};
}

void read_format(Responding& to, const Json& value, const std::string& name, const ParseOptions&) {
    if (!value.is_object()) refuse_type(name, "an object", value);
    Json chat = value;  // chats have the schema's fields one level deeper
    if (value.value("type", Json()) == "json_schema") {
        Json inner = value;
        inner.erase("type");
        chat = {{"type", "json_schema"}, {"json_schema", std::move(inner)}};
    }
    read_response_format(to, chat, name);
    to.format = value;
}

const Field<Responding> text_fields[] = {
    {"format",
     Other<Responding>{read_format, [] { return Json{{"type", "object"}, {"required", Json::array({"type"})}}; }}},
    {"verbosity", Only{R"(["medium"])", "there is one verbosity, medium."}},
};
void read_text(Responding& to, const Json& value, const std::string& name, const ParseOptions& options) {
    if (!value.is_object()) refuse_type(name, "an object", value);
    read_fields<Responding>(value, {text_fields}, options, to, name + ".");
}

void read_reasoning(Responding& to, const Json& value, const std::string& name, const ParseOptions&) {
    if (!value.is_object()) refuse_type(name, "an object", value);
    for (const auto& [key, one] : value.items())
        if (key != "effort" && !one.is_null())
            throw unsupported(cat("'", name, ".", key.substr(0, 100), "': only effort is supported."),
                              cat(name, ".", key.substr(0, 100)));
    const Json effort = value.value("effort", Json());
    if (!effort.is_null() && !effort.is_string()) refuse_type(name + ".effort", "a string", effort);
    to.reasoning = value;
}

void read_store(Responding& to, const Json& value, const std::string& name, const ParseOptions&) {
    if (value != false) throw unsupported(cat("'", name, "': answers are not stored. Send false."), name);
    to.says_store = true;
}

void read_metadata(Responding& to, const Json& value, const std::string& name, const ParseOptions&) {
    if (!value.is_object()) refuse_type(name, "an object", value);
    to.metadata = value;
}

void read_event_options(Responding&, const Json& value, const std::string& name, const ParseOptions&) {
    if (!value.is_object()) refuse_type(name, "an object", value);
    for (const auto& [key, one] : value.items())
        if (key != "include_obfuscation")
            throw unsupported(cat("'", name, "': only include_obfuscation is supported."), name);
}

Json any_object() {
    return {{"type", "object"}};
}

const Field<Responding> response_fields[] = {
    {"model", Text<Responding>{&Responding::model}},
    {"input", Other<Responding>{read_response_input, input_schema}, /*required=*/true},
    {"instructions", Text<Responding>{&Responding::instructions}},
    {"max_output_tokens", Whole<Responding>{&Responding::most_tokens, 1}},
    {"temperature", Number<Responding>{&Responding::temperature, 0, 2}},
    {"top_p", Number<Responding>{&Responding::top_p, 0, 1, /*above=*/true}},
    {"include", Other<Responding>{read_include, include_schema}},
    {"top_logprobs", Whole<Responding>{&Responding::top_logprobs, 0, 20}},
    {"text", Other<Responding>{read_text, [] { return object_schema<Responding>({text_fields}); }}},
    {"reasoning", Other<Responding>{read_reasoning, any_object}},
    {"stream", Flag<Responding>{&Responding::stream}},
    {"stream_options", Other<Responding>{read_event_options, any_object}},
    {"store", Other<Responding>{read_store, [] { return Json{{"const", false}}; }}},
    {"metadata", Other<Responding>{read_metadata, any_object}},
    {"tools", Only{"[[]]", "use /v1/chat/completions."}},
    {"tool_choice", Only{R"(["none", "auto"])", "use /v1/chat/completions."}},
    {"truncation", Only{R"(["disabled"])", "a prompt that is too long is refused."}},
    {"background", Only{"[false]", "answers are not stored."}},
    {"service_tier", Only{R"(["auto", "default"])", "there is one tier."}},
    {"previous_response_id", Only{"[null]", "answers are not stored. Send the conversation as 'input'."}},
    {"conversation", Only{"[null]", "answers are not stored. Send the conversation as 'input'."}},
    {"parallel_tool_calls", NoEffect{}},
    {"max_tool_calls", NoEffect{}},
    {"user", NoEffect{}},
    {"prompt_cache_key", NoEffect{}},
    {"safety_identifier", NoEffect{}},
};

}  // namespace

Json response_schema() {
    return object_schema<Responding>({response_fields});
}

AnswerRequest parse_response(std::string_view body, const ParseOptions& options) {
    Responding request;
    request.is_chat = true;
    request.include_usage = true;
    read_fields<Responding>(parse_body(body), {response_fields}, options, request);
    if (!request.says_store)
        throw unsupported("'store' is true where it is absent, and answers are not stored. Send false.", "store");
    if (request.top_logprobs && !request.logprobs)
        throw invalid(cat("'top_logprobs' needs 'include': [\"", rated, "\"]."), "top_logprobs");
    if (request.logprobs) request.logprobs = request.top_logprobs.value_or(0);
    request.max_tokens = request.most_tokens;
    check_constraints(request, /*has_choice=*/false);
    request.response = std::make_shared<Json>(Json{{"instructions", request.instructions},
                                                   {"max_output_tokens", Json()},
                                                   {"metadata", request.metadata},
                                                   {"parallel_tool_calls", true},
                                                   {"previous_response_id", Json()},
                                                   {"reasoning", request.reasoning},
                                                   {"store", false},
                                                   {"temperature", request.temperature},
                                                   {"text", {{"format", request.format}}},
                                                   {"tool_choice", "auto"},
                                                   {"tools", Json::array()},
                                                   {"top_logprobs", request.logprobs.value_or(0)},
                                                   {"top_p", request.top_p},
                                                   {"truncation", "disabled"}});
    if (request.instructions.empty())
        (*request.response)["instructions"] = nullptr;
    else
        request.messages.insert(request.messages.begin(), Json{{"role", "system"}, {"content", request.instructions}});
    if (request.most_tokens) (*request.response)["max_output_tokens"] = *request.most_tokens;
    request.row = std::make_shared<Json>(Json{{"messages", request.messages}});
    if (request.reasoning.is_object() && !request.reasoning.value("effort", Json()).is_null())
        (*request.row)["reasoning_effort"] = request.reasoning["effort"];
    finish_row(*request.row, true, false);
    return request;
}

}  // namespace unsloth::openai
