// Rows of completions.jsonl and eval_completions.jsonl.
#pragma once

#include <span>

#include "train/row_file.h"
#include "unsloth/rollouts/group.h"

namespace unsloth::train {

inline constexpr const char* evaluated_completions_file = "eval_completions.jsonl";

/// Adds {"step", "prompt", "completion", each reward, columns of reward functions} of each completion; with advantages
/// ([completions]; empty: none) its "advantage", with names of sets ([groups]; empty: one without a name) its "set".
void add_completions(RowFile& file, int64_t step, const rollouts::GroupSource& source,
                     const rollouts::ScoredGroups& groups, std::span<const double> advantages,
                     std::span<const std::string> sets);

}  // namespace unsloth::train
