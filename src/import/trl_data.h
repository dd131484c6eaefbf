// The data of TRL's files.
#pragma once

#include "import/importer.h"

namespace unsloth::import {

/// Takes the fields that name rows to train and to evaluate on, and those that say when they are evaluated.
void import_trl_data(Importer& importer);

}  // namespace unsloth::import
