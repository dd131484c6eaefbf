// `bench generate`: answers to random prompts, against the rate at which the device's memory gives weights and keys.
#pragma once

#include <vector>

#include "unsloth/engine_api/engine.h"

namespace unsloth::bench {

/// Prints (where request.prints), for each number of rows, the rates of prompts and of answers, the milliseconds of a
/// pass in which all rows decode, those that reading what it must read takes (at the rate of a large copy), and their
/// share. Returns the rates of decoding: "1 row", "64 rows".
std::vector<engine_api::BenchFigure> bench_generate(const config::LoadedConfig& loaded,
                                                    const engine_api::BenchRequest& request);

}  // namespace unsloth::bench
