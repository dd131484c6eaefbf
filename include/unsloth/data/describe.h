// A few lines about the data for the log.
#pragma once

#include <string>

#include "unsloth/data/dataset.h"
#include "unsloth/data/loader.h"

namespace unsloth::data {

/// Rows, tokens, the share that is trained, the longest row, what was cut or dropped.
std::string describe(const Dataset& dataset);
/// The same, and how the rows make steps: batch, packing, steps of an epoch.
std::string describe(const StepLoader& loader);

}  // namespace unsloth::data
