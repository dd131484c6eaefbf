#pragma once

#include <vector>

#include "config/peer_fields.h"

namespace unsloth::config {

const std::vector<PeerField>& axolotl_fields();

}  // namespace unsloth::config
