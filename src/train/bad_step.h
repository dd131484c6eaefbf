// A step whose update was skipped, because a value was not finite or the loss spiked: what the ranks saw of it, and
// what is kept and said.
#pragma once

#include <string>
#include <vector>

#include "unsloth/core/error.h"
#include "unsloth/train/anomaly.h"
#include "unsloth/train/run_setup.h"
#include "unsloth/train/step.h"

namespace unsloth::train {

/// The first tensor of base and adapter that holds what is not finite in the run's type, in words; empty: none.
std::string bad_weight(const RunSetup& setup);

/// The run's error at a step that ends it. Called by all ranks, once the last good values are saved.
Error stop_error(const RunSetup& setup, const model::Model& model, const StepResult& result);

/// Warns of a spike, and writes it down. Called by all ranks.
void warn_of_spike(const RunSetup& setup, const model::Model& model, const StepResult& result);

}  // namespace unsloth::train
