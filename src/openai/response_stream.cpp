#include "unsloth/openai/response_stream.h"

#include <nlohmann/json.hpp>

#include "unsloth/core/error.h"

namespace unsloth::openai {
namespace {

using Json = nlohmann::ordered_json;

std::string as_text(const Json& value) {
    return value.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

Json response_usage(const Usage& usage) {
    return {{"input_tokens", usage.prompt_tokens},
            {"input_tokens_details", {{"cached_tokens", usage.cached_tokens}, {"cache_write_tokens", 0}}},
            {"output_tokens", usage.completion_tokens},
            {"output_tokens_details", {{"reasoning_tokens", 0}}},
            {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
}

}  // namespace

const char* ResponseStream::status() const {
    if (so_far_.finish_reason == "error") return "failed";
    return so_far_.finish_reason == "length" ? "incomplete" : "completed";
}

Json ResponseStream::text_part() const {
    return {{"type", "output_text"},
            {"text", so_far_.text},
            {"annotations", Json::array()},
            {"logprobs", chat_tokens(so_far_.tokens)}};
}

Json ResponseStream::message(const char* status) const {
    Json content = Json::array();
    if (status != std::string_view("in_progress")) content.push_back(text_part());
    return {{"id", cat("msg_", head_.id)},
            {"type", "message"},
            {"status", status == std::string_view("failed") ? "incomplete" : status},
            {"role", "assistant"},
            {"content", std::move(content)}};
}

/// `usage`: nullptr: it has not ended.
Json ResponseStream::response(const char* status, const Usage* usage) const {
    const bool failed = so_far_.finish_reason == "error", cut = so_far_.finish_reason == "length";
    Json made = {
        {"id", cat("resp_", head_.id)},
        {"object", "response"},
        {"created_at", head_.created},
        {"status", status},
        {"error", failed ? Json{{"code", "server_error"}, {"message", "The model's logits are not finite."}} : Json()},
        {"incomplete_details", cut ? Json{{"reason", "max_output_tokens"}} : Json()},
        {"model", head_.model},
        {"output", usage != nullptr ? Json::array({message(status)}) : Json::array()},
        {"usage", usage != nullptr ? response_usage(*usage) : Json()}};
    made.update(*settings_);
    return made;
}

std::string ResponseStream::event(const char* type, Json fields) {
    Json data = {{"type", type}, {"sequence_number", events_++}};
    data.update(fields);
    return cat("event: ", type, "\ndata: ", as_text(data), "\n\n");
}

std::string ResponseStream::part_event(const char* type, Json fields) {
    Json place = {{"item_id", cat("msg_", head_.id)}, {"output_index", 0}, {"content_index", 0}};
    place.update(fields);
    return event(type, std::move(place));
}

std::string ResponseStream::whole(const Choice& choice, const Usage& usage) {
    so_far_ = choice;
    return as_text(response(status(), &usage));
}

std::string ResponseStream::piece(const Choice& choice) {
    std::string all;
    if (events_ == 0) {
        for (const char* type : {"response.created", "response.in_progress"})
            all += event(type, {{"response", response("in_progress", nullptr)}});
        all += event("response.output_item.added", {{"output_index", 0}, {"item", message("in_progress")}});
        all += part_event("response.content_part.added", {{"part", text_part()}});
    }
    if (!choice.text.empty() || !choice.tokens.empty())
        all += part_event("response.output_text.delta",
                          {{"delta", choice.text}, {"logprobs", chat_tokens(choice.tokens)}});
    so_far_.text += choice.text;
    so_far_.tokens.insert(so_far_.tokens.end(), choice.tokens.begin(), choice.tokens.end());
    so_far_.finish_reason = choice.finish_reason;
    if (choice.finish_reason.empty()) return all;
    all += part_event("response.output_text.done", {{"text", so_far_.text}, {"logprobs", chat_tokens(so_far_.tokens)}});
    all += part_event("response.content_part.done", {{"part", text_part()}});
    return all + event("response.output_item.done", {{"output_index", 0}, {"item", message(status())}});
}

std::string ResponseStream::end(const Usage& usage) {
    const std::string type = cat("response.", status());
    return event(type.c_str(), {{"response", response(status(), &usage)}});
}

}  // namespace unsloth::openai
