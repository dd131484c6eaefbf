// A running request for completions: from its sequences' tokens to texts, which its answer's writer gets.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "serve/answer_writer.h"
#include "serve/prompts.h"
#include "unsloth/generate/detokenizer.h"
#include "unsloth/generate/harmony.h"
#include "unsloth/openai/request.h"
#include "unsloth/openai/response.h"
#include "unsloth/serve/engine.h"

namespace unsloth::serve {

/// How calls of tools are read from texts.
struct ToolReading {
    openai::ToolFormat format;
    std::vector<std::string> names = {};
    std::size_t most = 0;                                 ///< calls of a choice
    std::optional<generate::HarmonyTokens> harmony = {};  ///< of that format, which also chats without tools have
};

class Exchange final : public Receiver, public std::enable_shared_from_this<Exchange> {
  public:
    /// `later` runs work on another thread than the engine's.
    using Later = std::function<void(std::function<void()>)>;
    Exchange(std::unique_ptr<AnswerWriter> writer, openai::AnswerRequest request, std::vector<EncodedPrompt> prompts,
             tokenizer::Tokenizer tokenizer, std::optional<ToolReading> tools, Later later);

    bool token(std::size_t sequence, const generate::Completion& so_far) override;
    void ended(std::size_t sequence, const generate::Completion& answer) override;
    void failed(const openai::ApiError& why) override;
    /// The client left, from any thread: tokens that still come end their sequences.
    void leave() { gone_ = true; }

  private:
    struct State {
        std::optional<generate::IncrementalDetokenizer> text;  ///< where somebody asks before the end
        std::optional<openai::ToolCallReader> calls;           ///< where tools are given
        std::optional<generate::HarmonyReader> harmony;        ///< in place of both
        std::size_t harmony_calls = 0;
        bool has_reasoning = false, has_content = false;
        std::size_t sent = 0, reported = 0;  ///< bytes of text, and tokens, that the stream has
        bool begun = false;                  ///< the stream has a piece of it
        openai::TextOffsets offsets;
        generate::Completion answer;  ///< once it has ended
        std::string finish_reason;
    };
    const EncodedPrompt& prompt_of(std::size_t sequence) const;
    bool has_lead(const std::string& text, const std::vector<int32_t>& ids) const;
    std::string new_text(State& state, const std::vector<int32_t>& ids) const;
    std::string whole_text(const State& state) const;
    openai::TokenReport report(int32_t id, float logprob, const std::vector<std::pair<int32_t, float>>& top) const;
    void report_prompt(std::size_t sequence, const generate::Completion& answer, openai::Choice& to) const;
    void report_tokens(const generate::Completion& answer, std::size_t first, openai::Choice& to) const;
    void read_calls(State& state, openai::Choice& choice, bool ends) const;
    void read_harmony(State& state, openai::Choice& choice) const;
    std::string new_call_id() const;
    void emit(std::size_t sequence, const generate::Completion& so_far, const std::string& finish_reason);
    std::string stop_text(std::size_t sequence) const;
    void send_all();
    bool scores_alone() const { return request_.max_tokens == 0; }

    std::unique_ptr<AnswerWriter> writer_;
    openai::AnswerRequest request_;
    std::vector<EncodedPrompt> prompts_;
    tokenizer::Tokenizer tokenizer_;
    std::optional<ToolReading> tools_;
    Later later_;
    std::vector<State> states_;
    openai::Usage usage_;
    std::size_t left_;
    std::atomic<bool> gone_ = false;
};

}  // namespace unsloth::serve
