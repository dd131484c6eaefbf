// Which of the meshes that a machine's GPUs can form trains a configuration fastest.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "commands/forecast.h"

namespace unsloth::commands {

/// A mesh, and the run on it.
struct Proposal {
    Forecast forecast;
    Estimate estimate;
    std::string flags;  ///< that make the configuration this one; empty: none
};

/// Whether the configuration leaves the mesh open: none of its sizes is given, and nothing says what is on which GPU.
bool leaves_mesh_open(const config::LoadedConfig& loaded);

/// The meshes with which a step takes least time of those that fit, at most `most`, the fastest first: all products of
/// tp_size, pp_size and cp_size that divide the GPUs and that a run accepts, with zero_stage and offload_optimizer. In
/// all of them a step has the rows that the configuration has with data parallel alone: gradient_accumulation_steps
/// makes up for ranks that share a model, and a pipeline's passes may have fewer rows. Where none fits, the one that
/// lacks least memory. usage Error where a run would refuse them all.
std::vector<Proposal> propose_meshes(const config::LoadedConfig& loaded, const Target& target,
                                     const std::shared_ptr<const formats::WeightFile>& file, std::size_t most);

}  // namespace unsloth::commands
