// The parts of ms-swift's files.
#pragma once

#include "import/importer.h"

namespace unsloth::import {

/// Fields of section `data`. `method`: rlhf_type, empty for `swift sft`. Whether there are rows to evaluate on.
bool import_swift_data(Importer& importer, const std::string& method);

/// Fields of `swift rlhf` with rlhf_type grpo; after the data, the adapter and the batch.
void import_swift_policy(Importer& importer);

}  // namespace unsloth::import
