// How many completions a run samples at a time.
#pragma once

#include <memory>

#include "unsloth/placement/memory_use.h"
#include "unsloth/placement/recipe.h"

namespace unsloth::placement {

/// Rows of `asked` that a rank samples at a time: at most grpo.max_rows_in_flight. Where that is 0, at most 512, and as
/// many as keep their keys and values in two fifths of what the budget has next to the base and the optimizer; one at
/// least.
/// `request` is the training run's, without rows.
int64_t rows_in_flight(const config::Config& config, const std::shared_ptr<const formats::WeightFile>& file,
                       model::LoadRequest request, const Answering& asked, const MemoryBudget& budget);

}  // namespace unsloth::placement
