// How the run's processes share the model and its training.
#pragma once

#include "unsloth/comm/mesh.h"
#include "unsloth/config/config.h"
#include "unsloth/weights/parameters.h"

namespace unsloth::placement {

/// The grid that `distributed` asks for. usage Error for what does not work yet, by name, and for sizes that do not
/// divide the number of processes.
comm::MeshShape choose_mesh(const config::DistributedOptions& distributed, int processes);

/// This rank's among these; nullptr: alone.
weights::Share place_of(const comm::Communicator* ranks);

/// What of the buffers of training this rank has, by its place among the ranks that train the same parameters
/// (comm::Mesh::stage): from zero_stage 1 on, and where they are in host memory, a slice of the optimizer's states;
/// from 2 on of the gradients too, from 3 on of the values.
weights::ShardingPolicy parameter_sharding(const config::DistributedOptions& distributed, weights::Share alike);

/// Whether a rank writes a part of each checkpoint: of those that have the same one the first. `share`: of its sharding
/// policy.
bool writes_part(const comm::MeshShape& mesh, weights::Share share, int rank);

/// The option by which the model answers in a run, which a rank does alone; nullptr: none is given.
const char* asks_for_answers(const config::TrainingOptions& training);

/// usage Error for what tensor-parallel ranks do not support, in addition to what their weights' forms refuse, and for
/// ranks that each hold a part of the values.
void require_shareable(const config::Config& config, const weights::ShardingPolicy& sharding);

}  // namespace unsloth::placement
