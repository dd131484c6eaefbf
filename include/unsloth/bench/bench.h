// Measures the training step and its parts on the machine at hand; config/engine.h describes the request.
#pragma once

#include "unsloth/config/engine.h"

namespace unsloth::bench {

/// Measures what request.what names, against this device's ceilings where it has some, and prints it where
/// request.prints.
config::BenchResult run_bench(const config::LoadedConfig& loaded, const config::BenchRequest& request);

/// Measures which kernels serve a run's products fastest on this card, and writes them as a table (hardware.kernels).
void run_tune(const config::LoadedConfig& loaded, const config::TuneRequest& request);

}  // namespace unsloth::bench
