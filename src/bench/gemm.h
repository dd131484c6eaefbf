// `bench gemm`: the matrix products of a step, by the library's choice of algorithm and by ours.
#pragma once

#include "unsloth/engine_api/engine.h"

namespace unsloth::bench {

/// Prints a line a product of a layer and of the lm_head: TF/s of cuBLASLt's first choice and of the one taken. Shapes
/// are those of model.path (llama-3.1-8b without one) with lora.*'s adapters, for batch x seq rows. With `tune`, times
/// every algorithm, names the best, and prints choices for the tables in
/// cards/*.json. usage Error without a
/// GPU.
void bench_gemm(const config::LoadedConfig& loaded, const engine_api::BenchRequest& request);

}  // namespace unsloth::bench
