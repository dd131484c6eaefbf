// hardware.allocator: how LibTorch's caching allocator takes a GPU's memory.
#pragma once

#include <string>

#include "unsloth/config/config.h"

namespace unsloth::config {

/// The settings in the form of PYTORCH_CUDA_ALLOC_CONF, which LibTorch reads when it is loaded; empty where the option
/// says nothing. usage Error for keys that are unknown and for values that LibTorch would refuse or not heed.
std::string allocator_settings(const HardwareOptions& hardware);

}  // namespace unsloth::config
