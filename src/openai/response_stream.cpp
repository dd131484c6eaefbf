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
            {"output_tokens_details", {{"reasoning_tokens", usage.reasoning_tokens}}},
            {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
}

}  // namespace

const char* ResponseStream::status() const {
    if (so_far_.finish_reason == "error") return "failed";
    return so_far_.finish_reason == "length" ? "incomplete" : "completed";
}

std::string ResponseStream::id_of(Item item) const {
    return cat(item == Item::reasoning ? "rs_" : "msg_", head_.id);
}

Json ResponseStream::part(Item item) const {
    if (item == Item::reasoning) return {{"type", "reasoning_text"}, {"text", so_far_.reasoning}};
    return {{"type", "output_text"},
            {"text", so_far_.text},
            {"annotations", Json::array()},
            {"logprobs", chat_tokens(so_far_.tokens)}};
}

Json ResponseStream::item(Item item, const char* status) const {
    Json content = Json::array();
    if (status != std::string_view("in_progress")) content.push_back(part(item));
    const char* const shown = status == std::string_view("failed") ? "incomplete" : status;
    if (item == Item::reasoning)
        return {{"id", id_of(item)},
                {"type", "reasoning"},
                {"status", shown},
                {"summary", Json::array()},
                {"content", std::move(content)}};
    return {{"id", id_of(item)},
            {"type", "message"},
            {"status", shown},
            {"role", "assistant"},
            {"content", std::move(content)}};
}

/// `usage`: nullptr: it has not ended.
Json ResponseStream::response(const char* status, const Usage* usage) const {
    Json output = Json::array();
    if (usage != nullptr && has_reasoning_) output.push_back(item(Item::reasoning, "completed"));
    if (usage != nullptr) output.push_back(item(Item::message, status));
    const bool failed = so_far_.finish_reason == "error", cut = so_far_.finish_reason == "length";
    Json made = {
        {"id", cat("resp_", head_.id)},
        {"object", "response"},
        {"created_at", head_.created},
        {"status", status},
        {"error", failed ? Json{{"code", "server_error"}, {"message", "The model's logits are not finite."}} : Json()},
        {"incomplete_details", cut ? Json{{"reason", "max_output_tokens"}} : Json()},
        {"model", head_.model},
        {"output", std::move(output)},
        {"usage", usage != nullptr ? response_usage(*usage) : Json()}};
    made.update(*settings_);
    return made;
}

std::string ResponseStream::event(const char* type, Json fields) {
    Json data = {{"type", type}, {"sequence_number", events_++}};
    data.update(fields);
    return cat("event: ", type, "\ndata: ", as_text(data), "\n\n");
}

std::string ResponseStream::part_event(Item item, const char* type, Json fields) {
    Json place = {{"item_id", id_of(item)}, {"output_index", index_of(item)}, {"content_index", 0}};
    place.update(fields);
    return event(type, std::move(place));
}

std::string ResponseStream::item_event(Item of, const char* type, const char* status) {
    return event(type, {{"output_index", index_of(of)}, {"item", item(of, status)}});
}

std::string ResponseStream::open(Item item) {
    if (open_ == item) return "";
    std::string all = open_ ? close(*open_) : "";
    open_ = item;
    all += item_event(item, "response.output_item.added", "in_progress");
    return all + part_event(item, "response.content_part.added", {{"part", part(item)}});
}

std::string ResponseStream::close(Item item) {
    std::string all;
    if (item == Item::reasoning)
        all = part_event(item, "response.reasoning_text.done", {{"text", so_far_.reasoning}});
    else
        all = part_event(item, "response.output_text.done",
                         {{"text", so_far_.text}, {"logprobs", chat_tokens(so_far_.tokens)}});
    all += part_event(item, "response.content_part.done", {{"part", part(item)}});
    return all + item_event(item, "response.output_item.done", item == Item::reasoning ? "completed" : status());
}

std::string ResponseStream::delta(Item item, const Choice& choice) {
    if (item == Item::reasoning)
        return part_event(item, "response.reasoning_text.delta", {{"delta", choice.reasoning}});
    return part_event(item, "response.output_text.delta",
                      {{"delta", choice.text}, {"logprobs", chat_tokens(choice.tokens)}});
}

std::string ResponseStream::whole(const Choice& choice, const Usage& usage) {
    so_far_ = choice;
    has_reasoning_ = !choice.reasoning.empty();
    return as_text(response(status(), &usage));
}

std::string ResponseStream::piece(const Choice& choice) {
    std::string all;
    if (events_ == 0)
        for (const char* type : {"response.created", "response.in_progress"})
            all += event(type, {{"response", response("in_progress", nullptr)}});
    // Thoughts that follow the message's begin are in the last event alone: its item precedes the message.
    if (!choice.reasoning.empty() && open_ != Item::message) {
        has_reasoning_ = true;
        all += open(Item::reasoning);
        all += delta(Item::reasoning, choice);
    }
    so_far_.reasoning += choice.reasoning;
    // Tokens without text, of what frames messages, wait for the message's first text.
    const bool opens = open_ != Item::message, ends = !choice.finish_reason.empty();
    Choice fresh{.text = choice.text, .tokens = opens ? so_far_.tokens : std::vector<TokenReport>()};
    fresh.tokens.insert(fresh.tokens.end(), choice.tokens.begin(), choice.tokens.end());
    if (!choice.text.empty() || ends) all += open(Item::message);
    if (!choice.text.empty() || (open_ == Item::message && !fresh.tokens.empty())) all += delta(Item::message, fresh);
    so_far_.text += choice.text;
    so_far_.tokens.insert(so_far_.tokens.end(), choice.tokens.begin(), choice.tokens.end());
    so_far_.finish_reason = choice.finish_reason;
    return ends ? all + close(Item::message) : all;
}

std::string ResponseStream::end(const Usage& usage) {
    const std::string type = cat("response.", status());
    return event(type.c_str(), {{"response", response(status(), &usage)}});
}

}  // namespace unsloth::openai
