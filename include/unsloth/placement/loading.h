// How a planned model is loaded: its context, and what the ranks of a machine share of the work.
#pragma once

#include <cstdint>
#include <memory>

#include "unsloth/comm/group.h"
#include "unsloth/config/config.h"
#include "unsloth/formats/load_plan.h"
#include "unsloth/model/loader.h"

namespace unsloth::placement {

/// The base's parts that processes of this machine have in its host memory, for LoadRequest::held; nullptr for a run on
/// the CPU, whose layers are in its own memory alone.
std::shared_ptr<memory::HeldMemory> held_memory(const formats::WeightFile& file, at::Device device);

/// A context on the plan's device with the plan's kernels and what the configuration says of reductions.
std::unique_ptr<ops::Context> make_context(const config::Config& config, const model::ModelPlan& plan);

/// StepSettings::bucket_bytes. Sums take multiprocessors from the backward pass, whose GEMMs count on all of them:
/// overlapped with it they cost more than NVLink needs after it, and are worth it where a network is between the ranks.
int64_t bucket_bytes(const config::Config& config, const comm::Group* group);

/// How the ranks on this machine load the model together: each GPU's rank reads a part, the rest comes from the others.
/// Alone without a group, on the CPU, where all processes share the file's map, and where the ranks' plans differ (GPUs
/// that are not alike). Called by all ranks.
weights::LoadShare load_share(comm::Group* group, const model::ModelPlan& plan);

}  // namespace unsloth::placement
