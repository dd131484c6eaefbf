// What no single option can know: options that follow from others, and combinations that make no sense.
#pragma once

#include "unsloth/config/config.h"

namespace unsloth::config {

/// Fills in what follows from the given options, adds notes, and throws a usage Error for contradictions.
void settle(LoadedConfig& loaded);

}  // namespace unsloth::config
