// A run's pipeline: where the model is cut, and in which order its ranks take micro-batches.
#pragma once

#include <string>

#include "unsloth/placement/memory_use.h"

namespace unsloth::placement {

/// usage Error for what ranks that each have a part of the layers do not do.
void require_pipelined(const config::Config& config, at::Device device, int64_t layers);

/// For a step of `micro_batches` micro-batches. usage Error where there are fewer layers than stages, and for a
/// schedule that the stages do not allow.
model::PipelineShape pipeline_shape(const config::Config& config, int64_t layers, int64_t micro_batches);

/// The layers of each range, in the order of the network: cut of the model that `whole` plans as one process has it, by
/// what its layers and the head are predicted to take on `card`, so that what each stage holds fits its budget
/// (`budgets`: bytes of each stage's device).
std::vector<spec::LayerRange> cut_stages(const config::Config& config, const model::ModelPlan& whole,
                                         const model::PipelineShape& shape, const planner::Card& card,
                                         const std::vector<int64_t>& budgets);

/// This rank's stage of the model that `whole` plans as one process has it: cut_stages() as rank 0 says. Called by all
/// ranks; `mesh` has more than one stage, and links in a ring where several_chunks(). usage Error as pipeline_shape().
model::Pipeline plan_pipeline(const config::Config& config, const model::ModelPlan& whole, const comm::Mesh& mesh,
                              comm::Group& group, int64_t micro_batches);

/// Whether the schedule gives a rank several ranges of layers.
bool several_chunks(const config::DistributedOptions& distributed);

/// "2 stages, layers 0 to 15 | 16 to 31; 1f1b, 8 micro-batches …" for the log.
std::string describe_pipeline(const model::Pipeline& pipeline);

}  // namespace unsloth::placement
