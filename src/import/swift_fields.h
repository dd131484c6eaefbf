#pragma once

#include <vector>

#include "import/config_names.h"

namespace unsloth::import {

/// Single fields of ms-swift, whose meaning depends on no other; those of transformers' TrainingArguments are known
/// elsewhere.
const std::vector<PeerField>& swift_fields();

}  // namespace unsloth::import
