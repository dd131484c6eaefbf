// What a command shows of an answer: its text, or the final message of an answer in harmony.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "unsloth/generate/detokenizer.h"
#include "unsloth/generate/harmony.h"
#include "unsloth/tokenizer/tokenizer.h"

namespace unsloth::generate {

class AnswerText {
  public:
    /// `stops`: as HarmonyReader and IncrementalDetokenizer have them. `harmony`: nullopt: the model frames nothing.
    AnswerText(const tokenizer::Tokenizer& tokenizer, const std::vector<std::string>& stops,
               const std::optional<HarmonyTokens>& harmony, std::span<const int32_t> prompt);

    /// False: with this token a stop text is complete, the answer has ended.
    bool add(int32_t id);
    /// No token follows.
    void finish();
    /// What is new of the text. A call in harmony is "to=RECIPIENT ARGUMENTS".
    std::string take();
    const std::string& text() const { return text_; }            ///< all that was taken
    const std::string& reasoning() const { return reasoning_; }  ///< in harmony: what the model thought so far

  private:
    std::variant<IncrementalDetokenizer, HarmonyReader> reader_;
    std::string text_, reasoning_;
};

}  // namespace unsloth::generate
