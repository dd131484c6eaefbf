// Whether a device computes what it should, for `doctor`.
#pragma once

#include <vector>

#include "unsloth/engine_api/engine.h"

namespace unsloth::commands {

/// Of each CUDA device that this process sees, or of the CPU where there is none. The operators of a training step run
/// on random inputs for `seconds` on each device, and are compared with plain formulas in fp64 on the CPU. What
/// cannot be asked is `problem`, never an exception.
std::vector<engine_api::DeviceReport> examine_devices(double seconds);

}  // namespace unsloth::commands
