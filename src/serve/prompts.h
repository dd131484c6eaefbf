// How requests' prompts become ids.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "unsloth/openai/decision.h"
#include "unsloth/openai/request.h"
#include "unsloth/session/sight.h"
#include "unsloth/tokenizer/chat.h"
#include "unsloth/tokenizer/tokenizer.h"

namespace unsloth::serve {

struct EncodedPrompt {
    std::vector<int32_t> ids;
    std::string text;                                                ///< of completions: what `echo` repeats
    std::shared_ptr<const generate::PromptImages> images = nullptr;  ///< of chats
};

/// Every member is safe from any thread. ApiError 400 for what the tokenizer or the template refuses.
class PromptReader {
  public:
    PromptReader(tokenizer::Tokenizer tokenizer, tokenizer::ChatTemplate chat, session::Sight sight = {})
        : tokenizer_(std::move(tokenizer)),
          chat_(std::move(chat)),
          sight_(std::move(sight)),
          tool_format_(openai::tool_format_of(chat_)) {}

    /// Images beyond the bounds are not decoded.
    std::vector<EncodedPrompt> prompts(const openai::AnswerRequest& request,
                                       const session::Sight::Bounds& bounds) const;
    /// `field`: the request's that has the messages, for refusals.
    EncodedPrompt conversation(const nlohmann::ordered_json& row, bool continue_final_message,
                               const session::Sight::Bounds& bounds, const std::string& field = "messages") const;
    /// Of the question of that name about the messages.
    openai::DecisionPrompt decision(const nlohmann::ordered_json& messages, const openai::DecisionQuestion& question,
                                    const std::string& where) const;
    std::vector<int32_t> text(const std::string& text, bool add_special_tokens) const;
    const tokenizer::Tokenizer& tokenizer() const { return tokenizer_; }
    /// How the chat template's model writes calls of tools; nullopt: in no known format.
    std::optional<openai::ToolFormat> tool_format() const { return tool_format_; }

  private:
    tokenizer::Tokenizer tokenizer_;
    tokenizer::ChatTemplate chat_;
    session::Sight sight_;
    std::optional<openai::ToolFormat> tool_format_;

    std::vector<int32_t> render(const nlohmann::ordered_json& row, bool continue_final_message,
                                const std::string& field) const;
};

}  // namespace unsloth::serve
