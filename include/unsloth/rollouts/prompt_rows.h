// Rows of prompts: what a run completes, and the columns that reward functions read.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "unsloth/config/config.h"
#include "unsloth/tokenizer/tokenizer.h"

namespace unsloth::rollouts {

/// A row as it was read, as JSON texts.
struct PromptRow {
    int64_t row = 0;           ///< its number over all files
    std::vector<int32_t> ids;  ///< of the prompt
    std::string prompt;        ///< JSON: a string, or a list of messages
    std::string columns;       ///< JSON object: all others
};

/// Reads sources whole: {"prompt": text, …}, whose text is the prompt as it is, and {"prompt" | "messages": [messages],
/// …}, which the chat template makes a prompt of. `longest`: most tokens of a prompt. input Error, with file and line,
/// for a row that is neither, or whose prompt is longer; with data.skip_invalid these are counted and skipped.
std::vector<PromptRow> read_prompt_rows(const config::DataOptions& data, std::span<const config::DataSource> sources,
                                        const tokenizer::Tokenizer& tokenizer, int64_t longest);

}  // namespace unsloth::rollouts
