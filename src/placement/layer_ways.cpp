// The ways to run layers in the words of the options and of the log, and whether a plan fits.
#include <algorithm>

#include "unsloth/core/error.h"
#include "unsloth/placement/memory_use.h"

namespace unsloth::placement {
namespace {

bool lie_elsewhere(const spec::RunPlan& run) {
    return std::any_of(run.layers.begin(), run.layers.end(),
                       [](const spec::LayerPlan& layer) { return layer.weights_at != spec::Place::device; });
}

}  // namespace

bool may_take_codes(const config::Config& config, const model::LoadRequest& request) {
    return request.trains && request.device.is_cuda() && request.dtype == at::kBFloat16 &&
           config.training.keep_inputs_in != config::KeptInputs::same;
}

bool may_leave_device(const model::LoadRequest& request) {
    return request.device.is_cuda() && request.pp.alone() && request.finetuning_type == config::FinetuningType::lora &&
           !any(request.coded) && (!request.lora || request.lora->serve_grid == spec::ServeGrid::none);
}

bool may_lie_on_disk(const model::ModelPlan& plan) {
    return plan.request().tp.alone() && (plan.request().offload_folder || plan.reads_checkpoint_in_place());
}

bool holds(const MemoryBudget& budget, const spec::MemoryNeed& need, at::Device device) {
    return need.device <= budget.device && (!device.is_cuda() || need.host - need.there <= budget.host);
}

bool fits(const model::ModelPlan& plan, const MemoryBudget& budget) {
    return holds(budget, plan.need(), plan.request().device);
}

std::string describe_places(const model::ModelPlan& plan) {
    if (!lie_elsewhere(plan.request().run)) return "";
    const std::vector<spec::LayerPlan>& layers = plan.request().run.layers;
    const char* const names[] = {"on the device", "in host memory", "on the disk", "on the ranks' devices"};
    std::string text;
    for (std::size_t i = 0; i < layers.size();) {
        const std::size_t first = i;
        while (i < layers.size() && layers[i].weights_at == layers[first].weights_at) ++i;
        text += cat(text.empty() ? "" : ", ", "layers ", first, " to ", i - 1, " ",
                    names[static_cast<int>(layers[first].weights_at)]);
    }
    return text;
}

std::optional<spec::LayerPlan> layer_plan_of(config::GradientCheckpointing option) {
    switch (option) {
        case config::GradientCheckpointing::automatic:
            return std::nullopt;
        case config::GradientCheckpointing::none:
            return spec::LayerPlan{spec::Keep::everything};
        case config::GradientCheckpointing::mlp:
            return spec::LayerPlan{spec::Keep::but_mlp};
        case config::GradientCheckpointing::attention:
            return spec::LayerPlan{spec::Keep::attention};
        case config::GradientCheckpointing::full:
            return spec::LayerPlan{spec::Keep::input};
        case config::GradientCheckpointing::none_offload:
            return spec::LayerPlan{spec::Keep::everything, spec::Place::host};
        case config::GradientCheckpointing::mlp_offload:
            return spec::LayerPlan{spec::Keep::but_mlp, spec::Place::host};
        case config::GradientCheckpointing::attention_offload:
            return spec::LayerPlan{spec::Keep::attention, spec::Place::host};
        case config::GradientCheckpointing::full_offload:
            return spec::LayerPlan{spec::Keep::input, spec::Place::host};
    }
    return std::nullopt;
}

}  // namespace unsloth::placement
