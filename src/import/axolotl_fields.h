#pragma once

#include <vector>

#include "import/importer.h"

namespace unsloth::import {

const std::vector<PeerField>& axolotl_fields();

/// What of the model is trained, and on what: the fields whose meaning depends on base_model, adapter or `datasets`.
void import_axolotl_model(Importer& importer);

}  // namespace unsloth::import
