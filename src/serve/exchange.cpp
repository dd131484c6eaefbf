#include "serve/exchange.h"

#include <algorithm>

#include "serve/texts.h"
#include "unsloth/core/error.h"

namespace unsloth::serve {
namespace {

openai::ApiError not_finite_error() {
    return openai::ApiError(500,
                            "The model's logits are not finite: its weights or this prompt overflow the compute "
                            "type. Other completions are not affected.",
                            "", "not_finite");
}

}  // namespace

Exchange::Exchange(std::unique_ptr<AnswerWriter> writer, openai::AnswerRequest request,
                   std::vector<EncodedPrompt> prompts, tokenizer::Tokenizer tokenizer, std::optional<ToolReading> tools,
                   Later later)
    : writer_(std::move(writer)),
      request_(std::move(request)),
      prompts_(std::move(prompts)),
      tokenizer_(std::move(tokenizer)),
      tools_(std::move(tools)),
      later_(std::move(later)),
      states_(prompts_.size() * static_cast<std::size_t>(request_.n)),
      left_(states_.size()) {
    for (const EncodedPrompt& prompt : prompts_) usage_.prompt_tokens += static_cast<int64_t>(prompt.ids.size());
    if (tools_ && tools_->harmony) {
        for (std::size_t i = 0; i < states_.size(); ++i)
            states_[i].harmony.emplace(tokenizer_, *tools_->harmony, request_.stop).follow(prompt_of(i).ids);
        return;
    }
    for (State& state : states_)
        if (tools_) state.calls.emplace(tools_->format, tools_->names, [this] { return new_call_id(); }, tools_->most);
    if (!request_.stream && request_.stop.empty()) return;
    for (State& state : states_) state.text.emplace(tokenizer_, request_.stop);
}

std::string Exchange::new_call_id() const {
    const bool is_mistral = tools_->format == openai::ToolFormat::mistral;
    return is_mistral ? random_id().substr(0, 9) : cat("call_", random_id().substr(0, 24));
}

const EncodedPrompt& Exchange::prompt_of(std::size_t sequence) const {
    return prompts_[sequence / static_cast<std::size_t>(request_.n)];
}

/// A completion continues a text: the space that decoders drop in front of a first word belongs to it.
bool Exchange::has_lead(const std::string& text, const std::vector<int32_t>& ids) const {
    return !request_.is_chat && !ids.empty() && !text.empty() && text.front() != ' ' &&
           !tokenizer_.is_special(ids.front()) && openai::text_of_token(tokenizer_, ids.front()).bytes.starts_with(' ');
}

/// What no later token can change, and the stream does not have.
std::string Exchange::new_text(State& state, const std::vector<int32_t>& ids) const {
    const std::string& text = state.text->text();
    const std::size_t stable = state.text->stable_prefix();
    if (stable <= state.sent) return "";
    const bool leads = state.sent == 0 && has_lead(text, ids);
    const std::string fresh = text.substr(state.sent, stable - state.sent);
    state.sent = stable;
    return leads ? " " + fresh : fresh;
}

std::string Exchange::whole_text(const State& state) const {
    const std::vector<int32_t>& ids = state.answer.ids;
    const std::string text = state.text ? state.text->text() : tokenizer_.decode(ids, /*skip_special=*/true);
    return has_lead(text, ids) ? " " + text : text;
}

openai::TokenReport Exchange::report(int32_t id, float logprob,
                                     const std::vector<std::pair<int32_t, float>>& top) const {
    openai::TokenReport made{openai::text_of_token(tokenizer_, id), logprob, {}};
    for (const auto& [other, value] : top) made.top.emplace_back(openai::text_of_token(tokenizer_, other), value);
    return made;
}

void Exchange::report_prompt(std::size_t sequence, const generate::Completion& answer, openai::Choice& to) const {
    const std::vector<int32_t>& ids = prompt_of(sequence).ids;
    to.tokens.push_back({openai::text_of_token(tokenizer_, ids.front()), std::nullopt, {}});
    for (std::size_t t = 1; t < ids.size(); ++t)
        to.tokens.push_back(report(ids[t], answer.prompt[t - 1].logprob, answer.prompt[t - 1].top));
}

void Exchange::report_tokens(const generate::Completion& answer, std::size_t first, openai::Choice& to) const {
    static const std::vector<std::pair<int32_t, float>> none;
    for (std::size_t t = first; t < answer.ids.size(); ++t)
        to.tokens.push_back(report(answer.ids[t], answer.logprobs[t], answer.top.empty() ? none : answer.top[t]));
    // A stop token is no text, but clients count on a report for each token.
    if (answer.stop)
        to.tokens.push_back(report(answer.stop->first, answer.stop->second.logprob, answer.stop->second.top));
}

bool Exchange::token(std::size_t sequence, const generate::Completion& so_far) {
    if (gone_ || scores_alone()) return false;
    ++usage_.completion_tokens;
    State& state = states_[sequence];
    const int32_t id = so_far.ids.back();
    const bool more = state.harmony ? state.harmony->add(id) : !state.text || state.text->add(id);
    if (state.harmony && state.harmony->thinks()) ++usage_.reasoning_tokens;
    if (request_.stream && more) emit(sequence, so_far, "");  // the last piece has the rest
    return more && !gone_;
}

void Exchange::ended(std::size_t sequence, const generate::Completion& answer) {
    State& state = states_[sequence];
    state.answer = answer;
    state.finish_reason = scores_alone() ? "length" : finish_reason_name(answer.finish_reason);
    if (scores_alone()) state.answer.ids.clear(), state.answer.stop.reset();
    if (state.answer.stop) ++usage_.completion_tokens;
    if (sequence % static_cast<std::size_t>(request_.n) == 0) usage_.cached_tokens += answer.cached_tokens;
    if (state.text) state.text->finish();
    if (state.harmony) state.harmony->finish();
    --left_;
    if (gone_) return;
    if (!request_.stream) {
        if (left_ == 0) later_([self = shared_from_this()] { self->send_all(); });
        return;
    }
    emit(sequence, state.answer, state.finish_reason);
    if (answer.finish_reason == generate::FinishReason::not_finite && states_.size() == 1)
        writer_->error(not_finite_error());
    if (left_ > 0) return;
    if (request_.include_usage) writer_->usage(usage_);
    writer_->end();
}

void Exchange::failed(const openai::ApiError& why) {
    if (!gone_.exchange(true)) writer_->fail(why);
}

/// Calls in the choice's text leave it.
void Exchange::read_calls(State& state, openai::Choice& choice, bool ends) const {
    if (!state.calls) return;
    openai::ToolCallReader::Found found = state.calls->add(choice.text, ends);
    choice.text = std::move(found.content);
    choice.calls = std::move(found.calls);
    if (state.calls->has_calls() && choice.finish_reason == "stop") choice.finish_reason = "tool_calls";
}

/// The choice gets what is new: reasoning, calls of known tools, and the rest as its text.
void Exchange::read_harmony(State& state, openai::Choice& choice) const {
    using Kind = generate::HarmonyPiece::Kind;
    const auto append = [](std::string& to, const generate::HarmonyPiece& piece, bool& has_some) {
        to += (piece.begins && has_some ? "\n" : "") + piece.text;
        has_some = true;
    };
    for (const generate::HarmonyPiece& piece : state.harmony->take()) {
        constexpr std::string_view functions = "functions.";
        const std::string name = piece.recipient.substr(piece.recipient.starts_with(functions) ? functions.size() : 0);
        if (piece.kind == Kind::analysis) {
            append(choice.reasoning, piece, state.has_reasoning);
        } else if (piece.kind == Kind::shown || std::ranges::find(tools_->names, name) == tools_->names.end()) {
            append(choice.text, piece, state.has_content);
        } else {
            if (piece.begins) ++state.harmony_calls;
            if (state.harmony_calls > tools_->most) continue;
            choice.calls.push_back({static_cast<int64_t>(state.harmony_calls) - 1, piece.begins ? new_call_id() : "",
                                    piece.begins ? name : "", piece.text});
        }
    }
    if (state.harmony_calls > 0 && choice.finish_reason == "stop") choice.finish_reason = "tool_calls";
}

/// What is new of a choice, where that is anything.
void Exchange::emit(std::size_t sequence, const generate::Completion& so_far, const std::string& finish_reason) {
    State& state = states_[sequence];
    openai::Choice piece;
    piece.index = static_cast<int64_t>(sequence);
    piece.finish_reason = finish_reason;
    piece.has_logprobs = request_.logprobs.has_value();
    if (!state.begun) {
        piece.has_role = request_.is_chat;
        if (request_.echo) piece.text = prompt_of(sequence).text;
        if (request_.echo && piece.has_logprobs) report_prompt(sequence, so_far, piece);
    }
    if (state.harmony) {
        read_harmony(state, piece);
        if (!finish_reason.empty()) piece.text += stop_text(sequence);
    } else if (!scores_alone()) {
        piece.text += new_text(state, so_far.ids);
        if (!finish_reason.empty()) piece.text += stop_text(sequence);
        read_calls(state, piece, !finish_reason.empty());
    }
    if (piece.has_logprobs) report_tokens(so_far, state.reported, piece);
    state.reported = so_far.ids.size();
    if (piece.text.empty() && piece.reasoning.empty() && piece.tokens.empty() && piece.calls.empty() &&
        finish_reason.empty() && !piece.has_role)
        return;
    state.begun = true;
    std::optional<openai::Usage> so_far_used;
    if (request_.continuous_usage) so_far_used = usage_;
    if (!writer_->piece(piece, state.offsets, request_.include_usage ? &so_far_used : nullptr)) gone_ = true;
}

/// The stop text that ended a choice, where it is wanted.
std::string Exchange::stop_text(std::size_t sequence) const {
    const State& state = states_[sequence];
    if (request_.include_stop && state.harmony) {
        generate::Completion last = state.answer;
        const std::span<const int32_t> ids = state.harmony->last_ids();
        last.ids.assign(ids.begin(), ids.end());
        return matched_stop(tokenizer_, last, state.harmony->last_text().size(), request_.stop);
    }
    if (!request_.include_stop || !state.text) return "";
    return matched_stop(tokenizer_, state.answer, state.text->text().size(), request_.stop);
}

void Exchange::send_all() {
    std::vector<openai::Choice> choices;
    bool all_failed = true;
    for (std::size_t i = 0; i < states_.size(); ++i) {
        State& state = states_[i];
        openai::Choice& choice = choices.emplace_back();
        choice.index = static_cast<int64_t>(i);
        choice.finish_reason = state.finish_reason;
        choice.has_logprobs = request_.logprobs.has_value();
        if (request_.echo) choice.text = prompt_of(i).text;
        if (state.harmony) {
            read_harmony(state, choice);
            choice.text += stop_text(i);
        } else {
            choice.text += whole_text(state) + stop_text(i);
            read_calls(state, choice, /*ends=*/true);
        }
        if (choice.has_logprobs && request_.echo) report_prompt(i, state.answer, choice);
        if (choice.has_logprobs) report_tokens(state.answer, 0, choice);
        all_failed = all_failed && state.answer.finish_reason == generate::FinishReason::not_finite;
    }
    if (all_failed) return writer_->fail(not_finite_error());
    writer_->whole(choices, usage_);
}

}  // namespace unsloth::serve
