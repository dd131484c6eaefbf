#include "unsloth/openai/response.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "unsloth/core/error.h"

namespace unsloth::openai {
namespace {

using Json = nlohmann::ordered_json;

std::string written(const Json& value) {
    return value.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

/// JSON has no infinity: a token that cannot come gets a number that is low enough.
Json number(float logprob) {
    constexpr float lowest = -9999;
    if (std::isnan(logprob)) return nullptr;
    return std::max(logprob, lowest);
}

Json completion_logprobs(const std::vector<TokenReport>& tokens, TextOffsets& offsets) {
    Json texts = Json::array(), logprobs = Json::array(), tops = Json::array(), places = Json::array();
    for (const TokenReport& token : tokens) {
        texts.push_back(token.text.name());
        places.push_back(offsets.next(token.text));
        if (!token.logprob) {
            logprobs.push_back(nullptr);
            tops.push_back(nullptr);
            continue;
        }
        logprobs.push_back(number(*token.logprob));
        Json top = Json::object();
        for (const auto& [text, logprob] : token.top)
            if (!top.contains(text.name())) top[text.name()] = number(logprob);
        top[token.text.name()] = number(*token.logprob);  // clients look for the chosen token there
        tops.push_back(std::move(top));
    }
    return {{"text_offset", places}, {"token_logprobs", logprobs}, {"tokens", texts}, {"top_logprobs", tops}};
}

Json chat_token(const TokenText& text, float logprob) {
    Json bytes = Json::array();
    for (const char c : text.bytes) bytes.push_back(static_cast<unsigned char>(c));
    return {{"token", text.text()}, {"logprob", number(logprob)}, {"bytes", std::move(bytes)}};
}

Json logprobs_of(const AnswerHead& head, const Choice& choice, TextOffsets& offsets) {
    if (!choice.has_logprobs) return nullptr;
    return head.is_chat ? Json{{"content", chat_tokens(choice.tokens)}, {"refusal", nullptr}}
                        : completion_logprobs(choice.tokens, offsets);
}

Json head_of(const AnswerHead& head, bool in_pieces) {
    const char* const object = !head.is_chat ? "text_completion"
                               : in_pieces   ? "chat.completion.chunk"
                                             : "chat.completion";
    return {{"id", head.id},
            {"object", object},
            {"created", head.created},
            {"model", head.model},
            {"system_fingerprint", head.fingerprint}};
}

/// `whole`: each call is one, else a piece of one.
Json calls_of(const std::vector<ToolDelta>& calls, bool whole) {
    Json list = Json::array();
    for (const ToolDelta& call : calls) {
        Json one = Json::object(), function = Json::object();
        if (!whole) one["index"] = call.index;
        if (whole || !call.id.empty()) {
            one["id"] = call.id;
            one["type"] = "function";
            function["name"] = call.name;
        }
        function["arguments"] = call.arguments;
        one["function"] = std::move(function);
        list.push_back(std::move(one));
    }
    return list;
}

Json message_of(const Choice& choice) {
    Json message = {{"role", "assistant"}, {"content", choice.text}, {"refusal", nullptr}};
    if (!choice.reasoning.empty()) message["reasoning_content"] = choice.reasoning;
    if (choice.calls.empty()) return message;
    if (choice.text.empty()) message["content"] = nullptr;
    message["tool_calls"] = calls_of(whole_calls(choice.calls), /*whole=*/true);
    return message;
}

std::string event(const Json& data) {
    return cat("data: ", written(data), "\n\n");
}

}  // namespace

int64_t TextOffsets::next(const TokenText& token) {
    const int64_t here = characters_;
    for (const char c : token.bytes) characters_ += (static_cast<unsigned char>(c) & 0xC0U) != 0x80U ? 1 : 0;
    return here;
}

std::vector<ToolDelta> whole_calls(const std::vector<ToolDelta>& pieces) {
    std::vector<ToolDelta> whole;
    for (const ToolDelta& piece : pieces)
        if (!piece.id.empty())
            whole.push_back(piece);
        else
            whole.back().arguments += piece.arguments;
    return whole;
}

Json chat_tokens(const std::vector<TokenReport>& tokens) {
    Json list = Json::array();
    for (const TokenReport& token : tokens) {
        Json one = chat_token(token.text, token.logprob.value_or(0));
        one["top_logprobs"] = Json::array();
        for (const auto& [text, logprob] : token.top) one["top_logprobs"].push_back(chat_token(text, logprob));
        list.push_back(std::move(one));
    }
    return list;
}

Json usage_of(const Usage& usage) {
    return {{"prompt_tokens", usage.prompt_tokens},
            {"completion_tokens", usage.completion_tokens},
            {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
            {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}},
            {"completion_tokens_details", {{"reasoning_tokens", usage.reasoning_tokens}}}};
}

std::string answer_text(const AnswerHead& head, const std::vector<Choice>& choices, const Usage& usage) {
    Json answer = head_of(head, false), list = Json::array();
    for (const Choice& choice : choices) {
        TextOffsets offsets;
        Json one = {{"index", choice.index}};
        if (head.is_chat)
            one["message"] = message_of(choice);
        else
            one["text"] = choice.text;
        one["logprobs"] = logprobs_of(head, choice, offsets);
        one["finish_reason"] = choice.finish_reason;
        list.push_back(std::move(one));
    }
    answer["choices"] = std::move(list);
    answer["usage"] = usage_of(usage);
    return written(answer);
}

std::string stream_event(const AnswerHead& head, const Choice& choice, TextOffsets& offsets,
                         const std::optional<Usage>* usage) {
    Json one = {{"index", choice.index}};
    if (head.is_chat) {
        Json delta = Json::object();
        if (choice.has_role) delta["role"] = "assistant";
        if (!choice.text.empty() || (choice.has_role && choice.calls.empty()))
            delta["content"] = choice.text;
        else if (choice.has_role)
            delta["content"] = nullptr;
        if (!choice.reasoning.empty()) delta["reasoning_content"] = choice.reasoning;
        if (!choice.calls.empty()) delta["tool_calls"] = calls_of(choice.calls, /*whole=*/false);
        one["delta"] = std::move(delta);
    } else {
        one["text"] = choice.text;
    }
    one["logprobs"] = logprobs_of(head, choice, offsets);
    one["finish_reason"] = choice.finish_reason.empty() ? Json(nullptr) : Json(choice.finish_reason);
    Json piece = head_of(head, true);
    piece["choices"] = Json::array({std::move(one)});
    if (usage != nullptr) piece["usage"] = *usage ? usage_of(**usage) : Json(nullptr);
    return event(piece);
}

std::string usage_event(const AnswerHead& head, const Usage& usage) {
    Json piece = head_of(head, true);
    piece["choices"] = Json::array();
    piece["usage"] = usage_of(usage);
    return event(piece);
}

std::string error_event(const std::string& body) {
    return cat("data: ", body, "\n\n");
}

}  // namespace unsloth::openai
