#include "serve/token_exchange.h"

#include <algorithm>

#include "serve/texts.h"

namespace unsloth::serve {
namespace {

using Json = nlohmann::ordered_json;

Json top_fields(const std::vector<std::pair<int32_t, float>>& top) {
    Json ids = Json::array(), values = Json::array();
    for (const auto& [id, value] : top) ids.push_back(id), values.push_back(value);
    return {{"values", std::move(values)}, {"token_ids", std::move(ids)}};
}

/// Of the ids from `first` on.
Json output_logprobs(const generate::Completion& answer, std::size_t first) {
    static const std::vector<std::pair<int32_t, float>> none;
    Json ids = Json::array(), values = Json::array(), tops = Json::array();
    for (std::size_t t = first; t < answer.ids.size(); ++t) {
        ids.push_back(answer.ids[t]);
        values.push_back(answer.logprobs[t]);
        tops.push_back(top_fields(answer.top.empty() ? none : answer.top[t]));
    }
    return {{"token_logprobs", std::move(values)}, {"token_ids", std::move(ids)}, {"top_logprobs", std::move(tops)}};
}

}  // namespace

TokenExchange::TokenExchange(RpcCall call, std::vector<int32_t> prompt, std::size_t outputs, Wish wish,
                             const tokenizer::Tokenizer& tokenizer)
    : call_(std::move(call)),
      prompt_(std::move(prompt)),
      wish_(std::move(wish)),
      tokenizer_(tokenizer),
      outputs_(outputs),
      left_(outputs) {
    if (wish_.stop.empty()) return;
    for (Output& output : outputs_) output.text.emplace(tokenizer_, wish_.stop);
}

bool TokenExchange::token(std::size_t sequence, const generate::Completion& so_far) {
    const std::lock_guard lock(mutex_);
    if (over_) return false;
    Output& output = outputs_[sequence];
    output.answer.ids.push_back(so_far.ids.back());  // for abort()
    output.answer.logprobs.push_back(so_far.logprobs.back());
    if (!so_far.top.empty()) output.answer.top.push_back(so_far.top.back());
    const bool more = !output.text || output.text->add(so_far.ids.back());
    if (wish_.streams) send_chunk(sequence, so_far);
    return more && !over_;
}

void TokenExchange::ended(std::size_t sequence, const generate::Completion& answer) {
    const std::lock_guard lock(mutex_);
    if (over_) return;
    Output& output = outputs_[sequence];
    output.answer = answer;
    if (answer.stop) {  // vLLM counts the stop token as output
        output.answer.ids.push_back(answer.stop->first);
        output.answer.logprobs.push_back(answer.stop->second.logprob);
        if (!answer.top.empty() || !answer.stop->second.top.empty())
            output.answer.top.push_back(answer.stop->second.top);
    }
    if (wish_.streams && output.sent < output.answer.ids.size()) send_chunk(sequence, output.answer);
    send_end(sequence, finish_reason_name(answer.finish_reason));
    if (--left_ > 0 || over_) return;
    finish();
}

void TokenExchange::send(const Json& message) {
    if (!wish_.streams)
        whole_ += call_.framed(message);
    else if (!call_.send(message))
        over_ = true;
}

void TokenExchange::finish() {
    over_ = true;
    if (wish_.streams)
        call_.answer->end();
    else
        call_.answer->reply(std::move(whole_));
}

void TokenExchange::failed(const openai::ApiError& why) {
    const std::lock_guard lock(mutex_);
    if (!std::exchange(over_, true)) call_.answer->end(status_of(why));
}

void TokenExchange::abort() {
    const std::lock_guard lock(mutex_);
    if (over_) return;
    for (std::size_t i = 0; i < outputs_.size(); ++i)
        if (!outputs_[i].has_ended) send_end(i, "abort");
    finish();
}

void TokenExchange::leave() {
    const std::lock_guard lock(mutex_);
    over_ = true;
}

bool TokenExchange::is_over() {
    const std::lock_guard lock(mutex_);
    return over_;
}

Json TokenExchange::counts(const generate::Completion& answer, std::size_t sequence) const {
    return {{"prompt_tokens", prompt_.size()},
            {"completion_tokens", answer.ids.size()},
            {"cached_tokens", answer.cached_tokens},
            {"index", sequence}};
}

Json TokenExchange::prompt_logprobs(const generate::Completion& answer) const {
    if (answer.prompt.empty()) return nullptr;
    Json values = Json::array({Json::object()}), tops = Json::array({Json::object()});
    for (const generate::TokenLogprobs& token : answer.prompt) {
        values.push_back({{"value", token.logprob}});
        tops.push_back(top_fields(token.top));
    }
    return {{"token_logprobs", std::move(values)}, {"token_ids", prompt_}, {"top_logprobs", std::move(tops)}};
}

void TokenExchange::send_chunk(std::size_t sequence, const generate::Completion& so_far) {
    Output& output = outputs_[sequence];
    Json chunk = counts(so_far, sequence);
    chunk["token_ids"] =
        std::vector<int32_t>(so_far.ids.begin() + static_cast<std::ptrdiff_t>(output.sent), so_far.ids.end());
    if (wish_.logprobs) chunk["output_logprobs"] = output_logprobs(so_far, output.sent);
    if (output.sent == 0) chunk["input_logprobs"] = prompt_logprobs(so_far);
    output.sent = so_far.ids.size();
    send({{"chunk", std::move(chunk)}});
}

void TokenExchange::send_end(std::size_t sequence, const std::string& finish_reason) {
    Output& output = outputs_[sequence];
    output.has_ended = true;
    const generate::Completion& answer = output.answer;
    Json complete = counts(answer, sequence);
    complete["output_ids"] = answer.ids;
    complete["finish_reason"] = finish_reason;
    if (wish_.logprobs) complete["output_logprobs"] = output_logprobs(answer, 0);
    complete["input_logprobs"] = prompt_logprobs(answer);
    if (answer.stop && std::ranges::find(wish_.stop_token_ids, answer.stop->first) != wish_.stop_token_ids.end())
        complete["matched_token_id"] = answer.stop->first;
    if (output.text)
        if (const std::string stop = matched_stop(tokenizer_, answer, output.text->text().size(), wish_.stop);
            !stop.empty())
            complete["matched_stop_str"] = stop;
    send({{"complete", std::move(complete)}});
}

}  // namespace unsloth::serve
