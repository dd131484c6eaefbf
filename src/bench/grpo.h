// `bench grpo`: the steps of a run of reinforcement learning, part by part.
#pragma once

#include <vector>

#include "unsloth/engine_api/engine.h"

namespace unsloth::bench {

/// Runs the configuration for request.warmup (2) and request.steps steps, in a temporary folder. Prints (where
/// request.prints) medians of the measured steps: seconds of sampling, rewards, log-probabilities and training, their
/// rates, and the share that sampling reaches of the rate at which the device's memory gives weights and keys. Returns
/// the rate of sampling. usage Error for a configuration that samples no completions.
std::vector<engine_api::BenchFigure> bench_grpo(const config::LoadedConfig& given,
                                                const engine_api::BenchRequest& request);

}  // namespace unsloth::bench
