// `bench step --tune`: the algorithm of each base product, chosen by the time of the step that it is part of.
#pragma once

#include "bench/model.h"
#include "unsloth/config/engine.h"

namespace unsloth::bench {

/// usage Error without a GPU, or where steps are recorded: their products are chosen once.
void require_tunable(const config::Config& config, at::Device device);

/// Lets the step run with each of a product's best algorithms (by their own times) in turn, keeps the fastest, and goes
/// on to the next product; prints a line a trial, and lines for the tables of products in kernels/gemm_table_*.cpp.
/// What a product takes by itself says little on a card at its power limit, where an algorithm that needs less energy
/// leaves more of it to the rest of the step.
void tune_products(BenchedModel& benched, StepTimer& timer, const config::LoadedConfig& loaded,
                   const config::BenchRequest& request);

}  // namespace unsloth::bench
