// The group of a CUDA run: sums by NCCL, texts through the store.
#pragma once

#include <memory>

#include "comm/store.h"
#include "unsloth/comm/group.h"

namespace unsloth::comm {

/// Every rank's text by rank.
std::vector<std::string> gather_text(Exchange& exchange, const std::string& text, const std::string& what);

/// c10d's ProcessGroupNCCL on `device` (built with UNSLOTH_CUDA only). Communicators are made here, not in the first step.
std::unique_ptr<Group> make_nccl_group(std::unique_ptr<Exchange> exchange, at::Device device);

}  // namespace unsloth::comm
