// Rows {input, question, answer}: the prompt that a service would make of the question, and the options' tokens.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "unsloth/core/error.h"
#include "unsloth/data/format.h"
#include "unsloth/data/reader.h"
#include "unsloth/openai/decision.h"
#include "unsloth/openai/error.h"

namespace unsloth::data {
namespace {

static_assert(most_option_tokens >= openai::most_decision_options * openai::most_label_tokens);

OptionTokens tokens_of(const std::vector<openai::OptionLabel>& labels, const std::vector<float>& shares) {
    constexpr float further_token = -1;
    OptionTokens options;
    for (std::size_t i = 0; i < labels.size(); ++i)
        for (const int32_t id : labels[i].ids) {
            options.shares.push_back(id == labels[i].ids.front() ? shares[i] : further_token);
            options.ids.push_back(id);
        }
    return options;
}

}  // namespace

FormattedRow RowFormatter::decision(const nlohmann::ordered_json& row) const {
    EncodedRow row_of_ids;
    OptionTokens options;
    try {
        const openai::DecisionExample example = openai::parse_decision_example(row);
        openai::DecisionPrompt prompt = encoder_->decision(example);
        row_of_ids.ids = std::move(prompt.ids);
        options = tokens_of(prompt.labels, example.shares);
    } catch (const openai::ApiError& refused) {
        throw BadRow{"data.decision-shape", refused.what(),
                     "A row of a decision is {input, question: {type, instructions, choices or levels}, answer or "
                     "probabilities}; input and question are as /v1/decisions has them."};
    }
    const auto most_likely = std::ranges::max_element(options.shares) - options.shares.begin();
    row_of_ids.ids.push_back(options.ids[static_cast<std::size_t>(most_likely)]);
    const auto size = static_cast<int64_t>(row_of_ids.ids.size()), limit = options_.max_seq_length;
    if (limit > 0 && size > limit && options_.long_rows != config::LongRows::drop)
        throw BadRow{"data.row-too-long",
                     cat("the input and the question have ", size - 1, " tokens, and with the answer's ", size,
                         "; model.max_seq_length is ", limit),
                     "Nothing of a decision is cut. Raise model.max_seq_length, shorten the input, or leave such rows "
                     "out with data.overflow_strategy drop."};
    if (const int32_t highest = std::ranges::max(options.ids);
        options_.vocab_size > 0 && highest >= options_.vocab_size)
        throw BadRow{"data.token-columns",
                     cat("a label's token has id ", highest, ", outside the model's vocabulary (0 ... ",
                         options_.vocab_size - 1, ")"),
                     "The tokenizer does not belong to this model."};
    FormattedRow result = encoded(std::move(row_of_ids));
    result.labels.assign(result.ids.size(), ignore_label);  // whatever train_on_prompt says
    result.labels.back() = result.ids.back();
    result.targets = 1;
    result.options = std::move(options);
    return result;
}

}  // namespace unsloth::data
