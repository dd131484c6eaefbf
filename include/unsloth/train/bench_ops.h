// `bench ops`: every operator at a model's shapes, against the ceilings measured in the same run.
#pragma once

#include <string>

#include "unsloth/config/engine.h"
#include "unsloth/ops/context.h"
#include "unsloth/spec/model_spec.h"

namespace unsloth::train {

/// Prints a line an operator: time, TF/s or GB/s, share of the ceiling (a large product; a large copy). Shapes are those of
/// model.path, or of llama-3.1-8b on a GPU and llama-15m on a CPU, for batch x seq tokens.
void bench_ops(const LoadedConfig& loaded, const BenchRequest& request);

/// The shape that a bench of operators or products takes: model.path's, or the built-in one of this name where there is none.
ModelSpec benched_spec(const LoadedConfig& loaded, const std::string& otherwise);

/// Waits for all work on the context's device.
void synchronize(ops::Context& ctx);

}  // namespace unsloth::train
