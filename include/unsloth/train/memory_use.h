// What a run keeps, and where: the choices that the configuration leaves to the program, within what memory there is.
#pragma once

#include <optional>
#include <string>

#include "unsloth/config/config.h"
#include "unsloth/model/loader.h"

namespace unsloth::train {

/// Bytes that a plan may take: what is free, or what model.max_memory says where that is less.
struct MemoryBudget {
    int64_t device = 0;  ///< of the run's device
    int64_t host = 0;    ///< page-locked, where the device is a GPU
};
MemoryBudget memory_budget(const config::Config& config, at::Device device);

/// What gradient_checkpointing asks for; nullopt: automatic.
std::optional<spec::LayerPlan> layer_plan_of(config::GradientCheckpointing option);

/// Sets what `config` leaves to the program: the first of the ways to keep activations, and to hold 4-bit weights, with
/// which the plan takes no more than 90 % of the device's free memory. If none does, model.device_map auto takes as
/// many layers as it must off the device, from the last on. Where layers do not lie there, so many of the step's
/// `micro_batches` are in flight at a time as hide the copies, if they fit. Without any way that fits, the last one is
/// set. usage Error for a map that cannot be followed.
void choose_memory_use(const config::Config& config, model::ModelPlan& plan, int64_t micro_batches = 1);

/// Throws a runtime Error with the table and what would fit when the plan exceeds the budget.
void require_memory(const model::ModelPlan& plan, const MemoryBudget& budget);

/// "layers 8 to 31 in host memory, …" for the log; empty where all lie on the device.
std::string describe_places(const model::ModelPlan& plan);

}  // namespace unsloth::train
