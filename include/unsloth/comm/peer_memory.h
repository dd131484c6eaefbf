// Memory of each rank of a machine that the others copy from, without asking it.
#pragma once

#include <vector>

#include "unsloth/comm/group.h"

namespace unsloth::comm {

/// Whether on each machine the ranks can copy from each other's devices: on CPUs always, on GPUs where each has peer
/// access to all of its machine; and whether each rank has some to copy from (`with`: those and this one; nullptr: it
/// has none). All ranks of the group together, with the same answer on all.
bool can_share_memory(Group& group, const Communicator* with, at::Device device);

/// `bytes` of this rank's, new, and those of the others, by their places in Group::ranks_here(): uint8 on the device,
/// alive as long as the tensors. Who writes into its own tells the others by a collective. All ranks of the group
/// together. runtime Error where the memory cannot be had, or reached.
std::vector<at::Tensor> share_memory(Group& group, at::Device device, int64_t bytes);

}  // namespace unsloth::comm
