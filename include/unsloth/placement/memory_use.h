// What a run keeps, and where: the choices that the configuration leaves to the program, within what memory there is.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "unsloth/config/config.h"
#include "unsloth/model/loader.h"
#include "unsloth/planner/card.h"

namespace unsloth::placement {

/// Bytes that a plan may take: what is free, or what model.max_memory says where that is less; without what is `taken`
/// by another plan that is not loaded yet.
struct MemoryBudget {
    int64_t device = 0;  ///< of the run's device
    int64_t host = 0;    ///< pinned, where the device is a GPU
};
MemoryBudget memory_budget(const config::Config& config, at::Device device);

/// What a plan is made for: a device's rates, and what is free there.
struct Machine {
    planner::Card card;  ///< for a run on the CPU, whose rates are not known, one by which times compare
    bool known = true;   ///< whether the card's figures are its own
    MemoryBudget free;
    MemoryBudget taken;              ///< of it, and of what the configuration allows
    std::optional<int64_t> allowed;  ///< on other ranks' devices, where the configuration bounds what they may take
};
/// What the configuration allows of a device's memory; nullopt: no bound.
std::optional<int64_t> allowed_memory(const config::Config& config, at::Device device);
Machine machine_of(at::Device device);
/// memory_budget() of a machine that need not be this one.
MemoryBudget memory_budget(const config::Config& config, at::Device device, const Machine& machine);

/// Fewest tokens of an MLP at a time that a plan takes.
constexpr int64_t least_row_tile = 4096;

/// Whether layers' inputs may wait on the host as e4m3 codes (training.activation_offload_dtype).
bool may_take_codes(const config::Config& config, const model::LoadRequest& request);

/// Whether weights of layers may be left in host memory or on the disk: frozen ones, of a GPU's run without a pipeline,
/// whose products do not read codes.
bool may_leave_device(const model::LoadRequest& request);

/// Whether layers may be left on the disk: the checkpoint has them as they are used, or there is a folder for them, and
/// the run takes whole matrices of them.
bool may_lie_on_disk(const model::ModelPlan& plan);

/// What gradient_checkpointing asks for; nullopt: automatic.
std::optional<spec::LayerPlan> layer_plan_of(config::GradientCheckpointing option);

/// Sets what `config` leaves to the program. On a GPU: the plan with the least predicted time among those that take no
/// more than 90 % of what is free, or what the configuration allows where that is less: for each layer what it keeps
/// and where, and whether its 4-bit weights are dequantized once (placement/layer_costs.h), and how many tokens pass
/// through an MLP at a time. If none fits, model.device_map auto takes layers off the device too, with as many of the
/// step's `micro_batches` in flight at a time as is fastest; what does not fit in host memory stays on the disk. On the
/// CPU, and where a map has layers elsewhere: the first of a few ways that fits. Where nothing fits else, inputs that
/// wait on the host may be quantized (training.activation_offload_dtype). Without any way that fits, the last one is
/// set. usage Error for a map that cannot be followed.
void choose_memory_use(const config::Config& config, model::ModelPlan& plan, int64_t micro_batches = 1,
                       const std::optional<Machine>& machine = std::nullopt);

/// training.auto_micro_batch auto: rows of a step, which passes of any size may hold.
struct PassChoice {
    int64_t given = 1;                                      ///< rows of a pass as the options say
    int64_t of_step = 1;                                    ///< on a rank
    std::function<model::ModelPlan(int64_t rows)> plan_of;  ///< for passes of the `rows` longest rows
    double usual = 1;  ///< tokens of a usual row, as a share of the longest one's: times are predicted for these
};
/// Whether passes need not hold the rows that the options say: on a GPU, where micro-batches are no objective's or
/// pipeline's own, and are not filled by tokens.
bool may_regroup(const config::Config& config, at::Device device, const spec::ModelSpec& spec);
/// Whether a pass may have other rows than are given at all: its losses are not measured among them, nor is the load of
/// experts balanced, it is not filled by tokens, and positions do not depend on its longest row.
bool rows_are_free(const config::TrainingOptions& training, const spec::ModelSpec& spec);
/// The rows of a pass that are tried: those given, and a step's in one pass, in two, in four, ….
std::vector<int64_t> pass_rows(int64_t given, int64_t of_step);
/// The rows of a pass that fit and with which a step is predicted to take least time; those given, where none fits or
/// others gain less than 3 %.
int64_t fastest_pass_rows(const config::Config& config, const PassChoice& choice, const Machine& machine);

/// The time that a step with the plan is predicted to take on a GPU, in ms; of a pipeline where this stage is the
/// slowest.
double predicted_step_ms(const model::ModelPlan& plan, const planner::Card& card, int64_t micro_batches);

/// Whether what a plan needs may be taken; host memory counts only with a GPU.
bool holds(const MemoryBudget& budget, const spec::MemoryNeed& need, at::Device device);
bool fits(const model::ModelPlan& plan, const MemoryBudget& budget);

/// Changes with which the plan would fit (of a pipeline: each of `stages`, with the layers that it has), one line each
/// and at most three: on a GPU those with which a token takes least time first. None where even a short row does not
/// fit.
std::vector<std::string> suggestions(const std::vector<model::ModelPlan>& stages, const MemoryBudget& budget,
                                     const planner::Card* card = nullptr);

/// Throws a runtime Error with the table and the remedies when the plan exceeds the budget. By the rates of `card`, or
/// of the GPU that the plan is for.
void require_memory(const model::ModelPlan& plan, const MemoryBudget& budget);
void require_memory(const model::ModelPlan& plan, const MemoryBudget& budget, const std::optional<planner::Card>& card);

/// "layers 8 to 31 in host memory, …" for the log; empty where all are on the device.
std::string describe_places(const model::ModelPlan& plan);

}  // namespace unsloth::placement
