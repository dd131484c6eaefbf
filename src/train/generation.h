// Prompts, and what ends their answers: of `generate`, and of a run's sampled prompts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "unsloth/config/config.h"
#include "unsloth/spec/model_spec.h"
#include "unsloth/tokenizer/tokenizer.h"

namespace unsloth::train {

using Prompt = std::vector<int32_t>;  ///< ids

/// What a row names, and where it stands.
struct NamedAt {
    std::string name;  ///< empty: nothing
    std::string where;
};

/// JSON Lines of {"text"}, {"prompt"} (as text) or {"messages"}; anything that does not begin with an object is one
/// prompt of plain text. `adapters` (may be nullptr) gets what each names as its "adapter". Input Error, with the line.
std::vector<Prompt> read_prompts(const std::filesystem::path& file, const tokenizer::Tokenizer& tokenizer,
                                 const config::DataOptions& data, std::vector<NamedAt>* adapters = nullptr);
/// Tokens of the longest; input Error where one has none.
int64_t longest_of(const std::vector<Prompt>& prompts);

/// The ids that end an answer.
std::vector<int32_t> stop_ids(const tokenizer::Tokenizer& tokenizer, const spec::ModelSpec& spec);

}  // namespace unsloth::train
