// Measures the training step and its parts on the machine at hand; engine_api/engine.h describes the request.
#pragma once

#include "unsloth/engine_api/engine.h"

namespace unsloth::bench {

/// Measures what request.what names, against this device's ceilings where it has some, and prints it where
/// request.prints.
engine_api::BenchResult run_bench(const config::LoadedConfig& loaded, const engine_api::BenchRequest& request);

/// Measures which kernels serve a run's products fastest on this card, and writes them as a table (hardware.kernels).
void run_tune(const config::LoadedConfig& loaded, const engine_api::TuneRequest& request);

}  // namespace unsloth::bench
