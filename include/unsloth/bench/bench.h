// Measures the training step and its parts on the machine at hand; config/engine.h describes the request.
#pragma once

#include "unsloth/config/engine.h"

namespace unsloth::bench {

/// Measures what request.what names, against this device's ceilings where it has some, and prints it.
void run_bench(const config::LoadedConfig& loaded, const config::BenchRequest& request);

}  // namespace unsloth::bench
