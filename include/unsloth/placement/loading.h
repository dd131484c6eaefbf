// How a planned model is loaded: its context, and what the ranks of a machine share of the work.
#pragma once

#include <cstdint>
#include <memory>

#include "unsloth/comm/group.h"
#include "unsloth/config/config.h"
#include "unsloth/formats/load_plan.h"
#include "unsloth/model/loader.h"

namespace unsloth::placement {

/// What processes of this machine hold of the base in its host memory, for LoadRequest::held; nullptr for a run on the
/// CPU, whose layers lie in no other memory than its own.
std::shared_ptr<memory::HeldMemory> held_memory(const formats::WeightFile& file, at::Device device);

/// A context on the plan's device with the plan's kernels and what the configuration says of reductions.
std::unique_ptr<ops::Context> make_context(const config::Config& config, const model::ModelPlan& plan);

/// StepSettings::bucket_bytes. Sums take multiprocessors from the backward pass, whose products count on all of them:
/// beside it they cost more than NVLink needs after it, and are worth it where a network is between the ranks.
int64_t bucket_bytes(const config::Config& config, const comm::Group* group);

/// How the ranks on this machine load the model together: each GPU's rank reads a part, the rest comes from the others.
/// Alone without a group, on the CPU, where the file's map serves all processes, and where the ranks' plans differ
/// (GPUs that are not alike). Called by all ranks.
weights::LoadShare load_share(comm::Group* group, const model::ModelPlan& plan);

}  // namespace unsloth::placement
