// Rewards of an HTTP server.
#pragma once

#include "reward/answer.h"
#include "reward/options.h"

namespace unsloth::reward {

/// Asks the server about all rows, within `timeout`. Failure; only connections that were refused are tried again.
/// GivenUp where `give_up` says so.
Answer ask_server(const Entry& entry, const Batch& batch, Limits::Time timeout, const std::function<bool()>& give_up);

/// The text of each prompt, and the expected answers: of the column `label`, or of the first with a usual name; null
/// without one. Failure where the column is missing.
std::vector<std::string> prompt_texts(const Batch& batch);
std::vector<nlohmann::json> labels_of(const Batch& batch, const std::string& label);

/// The part of a score message that all functions share, without its braces: prompts, texts, completions, columns,
/// trainer_state of the rows [first, last).
std::string rows_json(const Batch& batch, std::size_t first, std::size_t last);
std::string ids_json(const Batch& batch, std::size_t first, std::size_t last);

}  // namespace unsloth::reward
