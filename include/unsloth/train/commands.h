// The engine's commands beside training; config/engine.h describes the requests.
#pragma once

#include "unsloth/config/engine.h"

namespace unsloth::train {

/// Log-probabilities of every row of data.train_file, one JSON object a line.
void run_score(const LoadedConfig& loaded, const ScoreRequest& request);
/// Greedy continuation of prompts with a KV cache.
void run_generate(const LoadedConfig& loaded, const GenerateRequest& request);
/// A model folder with random weights.
void run_init(const InitRequest& request);
/// How far the logits of two models are apart. Input Error for texts that cannot be read or encoded.
LogitComparison compare_logits(const CompareRequest& request);
/// Measures the training step, or every operator, against this device's ceilings.
void run_bench(const LoadedConfig& loaded, const BenchRequest& request);

}  // namespace unsloth::train
