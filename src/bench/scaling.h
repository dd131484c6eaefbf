// `bench scaling`: what training together costs, against the same processes each for itself.
#pragma once

#include "unsloth/engine_api/engine.h"

namespace unsloth::bench {

/// Under a launcher (unsloth-train launch, torchrun, …): loads the model on every rank and alternately times rounds of
/// steps that every rank takes alone, all at the same time, and rounds that share gradients. Rank 0 prints, of the
/// slowest rank each, both times, the efficiency (alone / together, both the median of the rounds), the difference in
/// ms, and the time and bus bandwidth of the gradients' all-reduce with nothing else in flight. usage Error when
/// started alone.
void bench_scaling(const config::LoadedConfig& loaded, const engine_api::BenchRequest& request);

}  // namespace unsloth::bench
