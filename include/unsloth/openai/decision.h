// Questions about an input, which are answered by probabilities: /v1/decisions, and the examples that train such
// answers. Both make their prompts with decision_prompt().
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "unsloth/openai/request.h"
#include "unsloth/tokenizer/chat.h"
#include "unsloth/tokenizer/tokenizer.h"

namespace unsloth::openai {

struct DecisionOption {
    std::string text;         ///< a choice's value or a level's label, as the model reads it
    std::string description;  ///< may be empty
    bool is_boolean = false;  ///< a choice's value is true or false, and no text
};

struct DecisionQuestion {
    enum class Type : uint8_t { predicate, choice, score };
    Type type = Type::predicate;
    std::string instructions;
    std::string name;                     ///< may be empty
    std::vector<DecisionOption> options;  ///< of a predicate "true" and "false"
};

struct DecisionRequest {
    std::string model;
    std::shared_ptr<nlohmann::ordered_json> messages;  ///< the input
    std::vector<DecisionQuestion> questions;
};

/// ApiError 400, with the field's name, for what is wrong, unknown or not offered.
DecisionRequest parse_decision(std::string_view body, const ParseOptions& options);

/// A row to learn from: {input, question, answer} or {input, question, probabilities}.
struct DecisionExample {
    std::shared_ptr<nlohmann::ordered_json> messages;  ///< the input
    DecisionQuestion question;
    std::vector<float> shares;  ///< of each option the answer's probability; they sum to 1
};
/// `input` and `question` are as /v1/decisions has them. `answer` is an option: true or false of a predicate, a
/// choice's value, a level's label or its number from 0. `probabilities` are numbers in the order of the options, true
/// before false, with the sum 1. Other columns are ignored. ApiError 400 as parse_decision.
DecisionExample parse_decision_example(const nlohmann::ordered_json& row);

/// The conversation that asks one question: the input comes first, so that questions share its keys. `labels` name the
/// question's options.
nlohmann::ordered_json decision_row(const nlohmann::ordered_json& messages, const DecisionQuestion& question,
                                    const std::vector<std::string>& labels);

/// The most options that a question may have.
inline constexpr int64_t most_decision_options = 255;
/// The most tokens that may say one option.
inline constexpr int64_t most_label_tokens = 3;

/// A label of an option.
struct OptionLabel {
    std::string name;
    std::vector<int32_t> ids;  ///< the tokens that say it, with and without a space in front; of no other option
};
/// A label for each of `count` options: letters, or pairs of letters where there are more options than those. nullopt:
/// the tokenizer has fewer that are one token.
std::optional<std::vector<OptionLabel>> option_labels(const tokenizer::Tokenizer& tokenizer, std::size_t count);

struct DecisionPrompt {
    std::vector<int32_t> ids;
    std::vector<OptionLabel> labels;  ///< of the options: one of their tokens comes next
};
/// What the model reads of one question. ApiError 400 (`where`: the question's name) for a tokenizer without labels of
/// one token; Error as ChatTemplate::render.
DecisionPrompt decision_prompt(const tokenizer::Tokenizer& tokenizer, const tokenizer::ChatTemplate& chat,
                               const nlohmann::ordered_json& messages, const DecisionQuestion& question,
                               const std::string& where);

struct DecisionUsage {
    int64_t input_tokens = 0, cached_tokens = 0, output_tokens = 0;
};
/// Divides the options' logits, the logarithms of their weights, by the temperature. The weights' sum stays as it is.
void scale_weights(std::vector<double>& weights, double temperature);
/// `weights`: of each question's options the probability that the model gives its label at the answer's first token,
/// scaled or not.
std::string decision_text(const DecisionRequest& request, const std::string& model,
                          const std::vector<std::vector<double>>& weights, const DecisionUsage& usage);

}  // namespace unsloth::openai
