// How the run's processes share the model and its training.
#pragma once

#include "unsloth/comm/mesh.h"
#include "unsloth/config/config.h"
#include "unsloth/weights/parameters.h"

namespace unsloth::train {

/// The grid that `distributed` asks for. usage Error for what does not work yet, by name, and for sizes that do not
/// divide the number of processes.
comm::MeshShape choose_mesh(const config::DistributedOptions& distributed, int processes);

/// Which part of the optimizer's states this rank has: from zero_stage 1 on a slice, by its place in data parallel.
weights::Share optimizer_share(const config::DistributedOptions& distributed, const comm::Mesh* mesh);

}  // namespace unsloth::train
