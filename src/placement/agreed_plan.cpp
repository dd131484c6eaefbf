#include "unsloth/placement/agreed_plan.h"

#include <algorithm>
#include <limits>
#include <sstream>

#include "unsloth/config/device_map.h"
#include "unsloth/core/error.h"
#include "unsloth/core/log.h"
#include "unsloth/ops/device.h"
#include "unsloth/planner/run_plan_text.h"

namespace unsloth::placement {
namespace {

/// What every rank has, and may take: model.max_memory may bound one GPU more than another.
void take_least(const config::Config& config, at::Device device, comm::Group& group, Machine& machine) {
    constexpr int64_t unbounded = std::numeric_limits<int64_t>::max();
    MemoryBudget& least = machine.free;
    machine.allowed = allowed_memory(config, device).value_or(unbounded);
    const std::string own = cat(least.device, " ", least.host, " ", *machine.allowed);
    for (const std::string& text : group.gather(own, "the comparison of free memory")) {
        MemoryBudget free;
        int64_t allowed = 0;
        if (!(std::istringstream(text) >> free.device >> free.host >> allowed)) continue;
        least.device = std::min(least.device, free.device);
        least.host = std::min(least.host, free.host);
        machine.allowed = std::min(*machine.allowed, allowed);
    }
}

/// Whether the plan has all layers where model.device_map says.
bool follows_device_map(const config::Config& config, const spec::RunPlan& run, int gpu) {
    const config::DeviceMap map(config.model);
    if (map.automatic()) return true;
    std::vector<spec::Place> places;
    for (const spec::LayerPlan& layer : run.layers)  // layers that ranks hold among them are on their devices
        places.push_back(layer.weights_at == spec::Place::peer ? spec::Place::device : layer.weights_at);
    return !map.embedding_on_host(gpu) && places == map.layers(static_cast<int64_t>(places.size()), gpu);
}

/// Whether the plan of an earlier part of the run is taken.
bool keep_before(const config::Config& config, model::ModelPlan& plan, const Machine& machine,
                 const std::string& before) {
    std::optional<spec::RunPlan> run = planner::parse_run_plan(before);
    const bool automatic = config.training.gradient_checkpointing == config::GradientCheckpointing::automatic &&
                           config.hardware.weight_cache == config::WeightCache::automatic;
    const config::KeptInputs inputs = config.training.keep_inputs_in;
    if (run && inputs != config::KeptInputs::automatic && run->inputs_in_fp8 != (inputs == config::KeptInputs::fp8))
        return false;
    if (!run || !automatic || static_cast<int64_t>(run->layers.size()) != plan.spec().num_layers) return false;
    const at::Device device = plan.request().device;
    if (!follows_device_map(config, *run, ops::gpu_number(device))) return false;
    run->head_tile = plan.request().run.head_tile;
    run->pass_rows = plan.request().run.pass_rows;
    if (!holds(memory_budget(config, device, machine), plan.estimate(*run), device)) {
        log::info("the checkpoint's memory plan does not fit here: planning again");
        return false;
    }
    plan.set_run(*std::move(run));
    return true;
}

Machine common_machine(const config::Config& config, at::Device device, comm::Group* group) {
    Machine machine = machine_of(device);
    if (group != nullptr) take_least(config, device, *group, machine);
    return machine;
}

}  // namespace

int64_t choose_pass_rows_together(const config::Config& config, const PassChoice& choice, at::Device device,
                                  comm::Group* group, const std::string& before) {
    const std::optional<spec::RunPlan> run = planner::parse_run_plan(before);
    const Machine machine = common_machine(config, device, group);
    const int64_t own = run && run->pass_rows > 0 && run->pass_rows <= choice.of_step
                            ? run->pass_rows
                            : fastest_pass_rows(config, choice, machine);
    return group != nullptr ? std::stoll(group->gather(cat(own), "the comparison of micro-batches")[0]) : own;
}

void choose_together(const config::Config& config, model::ModelPlan& plan, int64_t micro_batches, comm::Group* group,
                     const std::string& before, const MemoryBudget& taken) {
    Machine machine = common_machine(config, plan.request().device, group);
    machine.taken = taken;
    if (!machine.known)
        log::info("the rates of ", machine.card.name, " are not known; the plan is made with those of a card like it");
    const spec::Stage& stage = plan.request().pp.stage();
    // What an earlier part's stages held is known of the first one alone.
    if (!stage.alone() || !keep_before(config, plan, machine, before))
        choose_memory_use(config, plan, micro_batches, machine);
    if (group == nullptr) return;
    const std::string own = planner::run_plan_json(plan.request().run);
    const auto first_of_stage = static_cast<std::size_t>(group->size() / stage.size * stage.rank);
    const std::vector<std::string> all = group->gather(own, "the comparison of plans");
    std::optional<spec::RunPlan> run = planner::parse_run_plan(all[first_of_stage]);
    if (!run) return;
    if (!plan.request().tp.alone())  // stages send slices of rows to each other: the same ones
        for (const std::string& other : all)
            if (const auto theirs = planner::parse_run_plan(other); theirs && theirs->row_tile > 0)
                run->row_tile = run->row_tile > 0 ? std::min(run->row_tile, theirs->row_tile) : theirs->row_tile;
    if (planner::run_plan_json(*run) != own) plan.set_run(*std::move(run));
}

}  // namespace unsloth::placement
