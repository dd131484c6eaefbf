// Greedy answers: of `generate`, and of a run's sampled prompts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "unsloth/config/config.h"
#include "unsloth/model/model.h"
#include "unsloth/tokenizer/tokenizer.h"

namespace unsloth::train {

using Prompt = std::vector<int32_t>;  ///< ids

/// JSON Lines of {"text"} or {"messages"}; anything that does not begin with an object is one prompt of plain text.
/// Input Error, with the line.
std::vector<Prompt> read_prompts(const std::filesystem::path& file, const tokenizer::Tokenizer& tokenizer,
                                 const config::DataOptions& data);
/// Tokens of the longest; input Error where one has none.
int64_t longest_of(const std::vector<Prompt>& prompts);

/// The ids that end an answer.
std::vector<int32_t> stop_ids(const tokenizer::Tokenizer& tokenizer, const spec::ModelSpec& spec);
/// Up to so many ids, always the likeliest, without the one that ended them. The model's plan has caches for all.
std::vector<int32_t> continue_prompt(model::Model& model, const Prompt& prompt, int64_t max_new_tokens,
                                     const std::vector<int32_t>& stops);

}  // namespace unsloth::train
