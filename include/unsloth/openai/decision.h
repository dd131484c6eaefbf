// /v1/decisions: questions about an input, which are answered by probabilities.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "unsloth/openai/request.h"

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

/// The conversation that asks one question: the input comes first, so that questions share its keys. `labels` name the
/// question's options.
nlohmann::ordered_json decision_row(const nlohmann::ordered_json& messages, const DecisionQuestion& question,
                                    const std::vector<std::string>& labels);

struct DecisionUsage {
    int64_t input_tokens = 0, cached_tokens = 0, output_tokens = 0;
};
/// `weights`: of each question's options the probability that the model gives its label at the answer's first token.
std::string decision_text(const DecisionRequest& request, const std::string& model,
                          const std::vector<std::vector<double>>& weights, const DecisionUsage& usage);

}  // namespace unsloth::openai
