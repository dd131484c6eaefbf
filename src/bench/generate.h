// `bench generate`: answers to random prompts, against the rate at which the device's memory gives weights and keys.
#pragma once

#include "unsloth/config/engine.h"

namespace unsloth::bench {

/// Prints, for each number of rows, the rates of prompts and of answers, the milliseconds of a pass in which all rows
/// decode, those that reading what it must read takes (at the rate of a large copy), and their share.
void bench_generate(const config::LoadedConfig& loaded, const config::BenchRequest& request);

}  // namespace unsloth::bench
