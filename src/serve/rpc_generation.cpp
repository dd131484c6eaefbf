// unsloth.v1.Generation: the HTTP routes' requests and answers as messages.
#include <array>

#include "serve/prepared.h"
#include "serve/rpc.h"
#include "unsloth/core/error.h"
#include "unsloth/core/utf8.h"

namespace unsloth::serve {
namespace {

using Json = nlohmann::ordered_json;
using openai::ApiError;

/// What OpenAI's fields are called in proto/.
constexpr std::array<std::pair<const char*, const char*>, 5> renamed = {{
    {"structured_outputs.json_object", "json_object"},
    {"structured_outputs.json", "json_schema"},
    {"structured_outputs.", ""},
    {"top_logprobs", "logprobs"},
    {"'messages", "'conversation.messages"},
}};

void rename_field(std::string& text) {
    for (const auto& [from, to] : renamed)
        if (const std::size_t at = text.find(from); at != std::string::npos)
            return void(text.replace(at, std::string_view(from).size(), to));
}

Json parsed(const Json& text, const std::string& field) {
    Json value = Json::parse(text.get<std::string>(), nullptr, /*allow_exceptions=*/false);
    if (value.is_discarded()) throw openai::invalid(cat("'", field, "' is not valid JSON."), field);
    return value;
}

/// Moves a key's value out of an object; null where there is none.
Json taken(Json& object, const char* key) {
    Json value = object.value(key, Json());
    object.erase(key);
    return value;
}

Json message_fields(Json message) {
    if (Json calls = taken(message, "tool_calls"); !calls.is_null()) {
        Json& list = message["tool_calls"] = Json::array();
        for (const Json& call : calls)
            list.push_back(
                {{"id", call.value("id", "")},
                 {"type", "function"},
                 {"function", {{"name", call.value("name", "")}, {"arguments", call.value("arguments", "")}}}});
    }
    if (!message.contains("content")) message["content"] = nullptr;
    return message;
}

Json tool_fields(const Json& tool) {
    Json function = {{"name", tool.value("name", "")}};
    if (tool.contains("description")) function["description"] = tool["description"];
    if (tool.contains("parameters")) function["parameters"] = parsed(tool["parameters"], "tools.parameters");
    return {{"type", "function"}, {"function", std::move(function)}};
}

/// The fields of a chat that a Conversation has.
void add_conversation(Json& fields, Json conversation) {
    fields["messages"] = Json::array();
    for (Json& message : taken(conversation, "messages"))
        fields["messages"].push_back(message_fields(std::move(message)));
    if (const Json tools = taken(conversation, "tools"); !tools.is_null()) {
        fields["tools"] = Json::array();
        for (const Json& tool : tools) fields["tools"].push_back(tool_fields(tool));
    }
    if (const Json choice = taken(conversation, "tool_choice"); !choice.is_null()) {
        const bool is_kind = choice == "none" || choice == "auto" || choice == "required";
        fields["tool_choice"] = is_kind ? choice : Json{{"type", "function"}, {"function", {{"name", choice}}}};
    }
    if (const Json kwargs = taken(conversation, "chat_template_kwargs"); !kwargs.is_null())
        fields["chat_template_kwargs"] = parsed(kwargs, "chat_template_kwargs");
    if (const Json logprobs = taken(fields, "logprobs"); !logprobs.is_null()) {
        fields["logprobs"] = true;
        fields["top_logprobs"] = logprobs;
    }
    fields.update(conversation);
}

/// A GenerateRequest as the body of OpenAI's request.
Json openai_fields(Json fields) {
    for (const auto& [name, key] :
         {std::pair{"json_schema", "json"}, std::pair{"json_object", "json_object"}, std::pair{"regex", "regex"}})
        if (Json value = taken(fields, name); !value.is_null()) fields["structured_outputs"] = {{key, value}};
    if (const Json choice = taken(fields, "choice"); !choice.is_null())
        fields["structured_outputs"] = {{"choice", choice.value("choices", Json::array())}};
    if (const Json ids = taken(fields, "prompt_ids"); !ids.is_null())
        fields["prompt"] = Json::array({ids.value("ids", Json::array())});
    if (Json conversation = taken(fields, "conversation"); !conversation.is_null())
        add_conversation(fields, std::move(conversation));
    return fields;
}

Json token_fields(const openai::TokenText& text, std::optional<float> logprob) {
    Json token = {{"id", text.id}, {"bytes", text.bytes}};
    if (logprob) token["logprob"] = *logprob;
    return token;
}

Json choice_fields(const openai::Choice& choice, const std::vector<openai::ToolDelta>& calls) {
    Json tokens = Json::array(), list = Json::array();
    for (const openai::TokenReport& report : choice.tokens) {
        Json token = token_fields(report.text, report.logprob);
        token["top"] = Json::array();
        for (const auto& [text, logprob] : report.top) token["top"].push_back(token_fields(text, logprob));
        tokens.push_back(std::move(token));
    }
    for (const openai::ToolDelta& call : calls)
        list.push_back({{"index", call.index},
                        {"id", call.id},
                        {"name", repair_utf8(call.name)},
                        {"arguments", repair_utf8(call.arguments)}});
    return {{"index", choice.index},
            {"text", repair_utf8(choice.text)},
            {"finish_reason", choice.finish_reason},
            {"tokens", std::move(tokens)},
            {"tool_calls", std::move(list)},
            {"reasoning_content", repair_utf8(choice.reasoning)}};
}

Json usage_fields(const openai::Usage& usage) {
    return {{"prompt_tokens", usage.prompt_tokens},
            {"completion_tokens", usage.completion_tokens},
            {"cached_tokens", usage.cached_tokens}};
}

/// Messages of type GenerateResponse.
class MessageAnswer final : public AnswerWriter {
  public:
    MessageAnswer(RpcCall call, openai::AnswerHead head) : call_(std::move(call)), head_(std::move(head)) {}

    bool piece(const openai::Choice& choice, openai::TextOffsets&, const std::optional<openai::Usage>*) override {
        const bool says_nothing =  // the role, which each answer has
            choice.text.empty() && choice.reasoning.empty() && choice.tokens.empty() && choice.calls.empty() &&
            choice.finish_reason.empty();
        return says_nothing || send({{"choices", Json::array({choice_fields(choice, choice.calls)})}});
    }
    bool usage(const openai::Usage& usage) override { return send({{"usage", usage_fields(usage)}}); }
    void error(const ApiError& why) override { status_ = status_of(why); }
    void end() override { call_.answer->end(status_); }
    void whole(const std::vector<openai::Choice>& choices, const openai::Usage& usage) override {
        Json all = Json::array();
        for (const openai::Choice& choice : choices)
            all.push_back(choice_fields(choice, openai::whole_calls(choice.calls)));
        call_.reply(with_head({{"choices", std::move(all)}, {"usage", usage_fields(usage)}}));
    }
    void fail(const ApiError& why) override { call_.answer->end(status_of(why)); }

  private:
    bool send(Json fields) { return call_.send(with_head(std::move(fields))); }
    Json with_head(Json fields) const {
        fields["id"] = head_.id;
        fields["model"] = head_.model;
        fields["system_fingerprint"] = head_.fingerprint;
        fields["created"] = head_.created;
        return fields;
    }

    RpcCall call_;
    openai::AnswerHead head_;
    grpc::Status status_{grpc::Code::ok, ""};
};

}  // namespace

ApiError with_own_names(const ApiError& why) {
    std::string message = why.what(), field = why.param();
    rename_field(message);
    rename_field(field);
    return ApiError(why.status(), message, field, why.code());
}

void Service::Rpc::generate(const RpcCall& call) try {
    const std::string body = openai_fields(call.request).dump();
    openai::AnswerRequest request = call.request.contains("conversation")
                                        ? openai::parse_chat(body, service_.parsing())
                                        : openai::parse_completion(body, service_.parsing());
    request.stream = request.include_usage = call.method->gives_stream;
    Prepared prepared = service_.prepare(std::move(request), call.client);
    prepared.job.deadline = call.deadline;
    auto writer = std::make_unique<MessageAnswer>(call.later(), head_of(prepared));
    service_.start(std::move(prepared), std::move(writer), call.answer->response());
} catch (const ApiError& why) {
    throw with_own_names(why);
}

void Service::Rpc::list_models(const RpcCall& call) {
    Json models = service_.model_cards();
    for (Json& model : models)
        for (const char* key : {"object", "owned_by"}) model.erase(key);
    call.reply({{"models", std::move(models)}});
}

void Service::Rpc::load_adapter(const RpcCall& call) {
    service_.require_adapter_routes();
    service_.load(openai::parse_load_adapter(call.request.dump(), service_.parsing()));
    call.reply(Json::object());
}

void Service::Rpc::unload_adapter(const RpcCall& call) {
    service_.require_adapter_routes();
    service_.unload(openai::parse_unload_adapter(call.request.dump(), service_.parsing()));
    call.reply(Json::object());
}

}  // namespace unsloth::serve
