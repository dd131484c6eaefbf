#pragma once

#include <vector>

#include "import/config_names.h"

namespace unsloth::import {

const std::vector<PeerField>& axolotl_fields();

}  // namespace unsloth::import
