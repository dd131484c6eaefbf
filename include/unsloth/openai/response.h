// Answers in OpenAI's forms.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "unsloth/openai/token_text.h"
#include "unsloth/openai/tool_calls.h"

namespace unsloth::openai {

/// What all answers begin with.
struct AnswerHead {
    std::string id, model, fingerprint;
    int64_t created = 0;  ///< seconds since 1970
    bool is_chat = false;
};

struct Usage {
    int64_t prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0;
    int64_t reasoning_tokens = 0;  ///< of completion_tokens
};

/// A token as the model rated it.
struct TokenReport {
    TokenText text;
    std::optional<float> logprob;  ///< nullopt: nothing is before it
    std::vector<std::pair<TokenText, float>> top;
};

/// One choice, or a piece of one.
struct Choice {
    int64_t index = 0;
    std::string text;
    std::vector<TokenReport> tokens;
    bool has_logprobs = false;
    std::string finish_reason;          ///< empty: it has not ended
    bool has_role = false;              ///< of chats: a stream's first piece
    std::vector<ToolDelta> calls = {};  ///< of chats
    std::string reasoning = {};         ///< of chats: what the model wrote for itself before the text
};

/// Where a completion's tokens begin in its text, in characters, over the pieces of a stream.
class TextOffsets {
  public:
    int64_t next(const TokenText& token);

  private:
    int64_t characters_ = 0;
};

/// The calls whose pieces these are, in order.
std::vector<ToolDelta> whole_calls(const std::vector<ToolDelta>& pieces);
/// Tokens with their log-probabilities in the form of chats and responses.
nlohmann::ordered_json chat_tokens(const std::vector<TokenReport>& tokens);
nlohmann::ordered_json usage_of(const Usage& usage);
/// A whole answer.
std::string answer_text(const AnswerHead& head, const std::vector<Choice>& choices, const Usage& usage);
/// A piece of a stream as a server-sent event. `offsets` (of completions): the choice's. `usage`: nullptr: the field
/// stays out; it is null where `usage` holds nothing.
std::string stream_event(const AnswerHead& head, const Choice& choice, TextOffsets& offsets,
                         const std::optional<Usage>* usage);
/// The piece without choices that ends a stream with include_usage.
std::string usage_event(const AnswerHead& head, const Usage& usage);
/// An error within a stream, by ApiError::body().
std::string error_event(const std::string& body);
inline constexpr const char* done_event = "data: [DONE]\n\n";

}  // namespace unsloth::openai
