// `bench comm`: what the ranks' sums cost, from a few bytes to what a large adapter has.
#pragma once

#include "unsloth/engine_api/engine.h"

namespace unsloth::bench {

/// A line for each size, by rank 0: time of one sum (the slowest rank's median) and bus bandwidth, as nccl-tests define
/// it: 2 (N - 1) / N times the bytes over the time, which is what each GPU's link must carry whatever the number of
/// ranks. Every sum's values are checked. usage Error when this process is alone; runtime Error for wrong sums, and as
/// the ranks' group.
void bench_comm(const config::LoadedConfig& loaded, const engine_api::BenchRequest& request);

}  // namespace unsloth::bench
