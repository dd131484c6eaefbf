// `bench ops`: every operator at a model's shapes, against the ceilings measured in the same run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "unsloth/engine_api/engine.h"
#include "unsloth/ops/context.h"
#include "unsloth/spec/model_spec.h"

namespace unsloth::bench {

/// Prints (where request.prints) a line an operator: time, TF/s or GB/s, share of the ceiling (a large product; a large
/// copy). Shapes are those of model.path, or of llama-3.1-8b on a GPU and llama-15m on a CPU, for `batch` rows of `seq`
/// tokens; with min_seq attention's rows are those of row_lengths. Returns the operators' figures, without the
/// ceilings' own.
std::vector<engine_api::BenchFigure> bench_ops(const config::LoadedConfig& loaded,
                                               const engine_api::BenchRequest& request);

/// The shape that a bench of operators or products takes: model.path's, or the built-in one of this name where there is
/// none.
spec::ModelSpec benched_spec(const config::LoadedConfig& loaded, const std::string& otherwise);

/// Lengths of `count` rows: all `longest`, or, where `shortest` is not 0, spread evenly down to it and shuffled, the
/// same in each run.
std::vector<int64_t> row_lengths(int64_t count, int64_t longest, int64_t shortest);

/// The middle value; of an even number the upper one of two.
double median(std::vector<double> values);

/// Bytes a second that a large copy reads and writes.
double copy_rate(ops::Context& ctx);

/// Waits for all work on the context's device.
void synchronize(ops::Context& ctx);

}  // namespace unsloth::bench
