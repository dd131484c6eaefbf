#pragma once

#include <vector>

#include "import/config_names.h"

namespace unsloth::import {

/// Fields of ms-swift that stand for themselves; those of transformers' TrainingArguments are known elsewhere.
const std::vector<PeerField>& swift_fields();

}  // namespace unsloth::import
