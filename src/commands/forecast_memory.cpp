// Whether the device, and the host's memory, hold a run.
#include <algorithm>

#include "commands/forecast.h"
#include "unsloth/config/device_map.h"
#include "unsloth/placement/layer_costs.h"
#include "unsloth/placement/parallel.h"

namespace unsloth::commands {

bool Forecast::can_hold(int64_t rows, int64_t length) const {
    const std::vector<model::ModelPlan> plans = stages(rows, length);
    std::optional<session::TeacherPlan> teacher = teacher_of(plans.front().request());
    const auto all_fit = [&] {
        const placement::MemoryBudget budget = placement::memory_budget(config(), target_.device, left_by(teacher));
        return std::all_of(plans.begin(), plans.end(), [&](const auto& plan) { return can_hold(plan, budget); });
    };
    return all_fit() || (teacher && teacher->move_to_host() && all_fit());
}

bool Forecast::can_hold(model::ModelPlan plan, const placement::MemoryBudget& budget) const {
    const std::optional<spec::LayerPlan> asked = placement::layer_plan_of(config().training.gradient_checkpointing);
    const config::DeviceMap map(config().model);
    const bool pipelined = !plan.request().pp.alone();  // nothing moves to the host
    const bool can_move = map.automatic() && placement::may_leave_device(plan.request());
    std::vector<spec::LayerPlan> ways = {{spec::Keep::input, spec::Place::host}, {spec::Keep::input}};
    if (pipelined) ways.erase(ways.begin());
    if (asked) ways = {*asked};
    for (spec::LayerPlan way : ways) {
        way.cached = config().hardware.weight_cache == config::WeightCache::on;
        spec::RunPlan run = plan.request().run;
        run.row_tile = placement::least_row_tile;
        run.inputs_in_fp8 = placement::may_take_codes(config(), plan.request());
        run.layers.assign(static_cast<std::size_t>(file_->spec.num_layers), way);
        if (!map.automatic() && !pipelined) {
            const std::vector<spec::Place> places = map.layers(file_->spec.num_layers, 0);
            for (std::size_t i = 0; i < places.size(); ++i) run.layers[i].weights_at = places[i];
        }
        plan.set_run(run);
        if (placement::fits(plan, budget) || (can_move && can_hold_moved(plan, budget))) return true;
    }
    return false;
}

/// With layers off the device: all of them, or as many in host memory as it has room for and the others on the device
/// or on the disk.
bool Forecast::can_hold_moved(model::ModelPlan& plan, const placement::MemoryBudget& budget) const {
    const auto layers = plan.spec().num_layers;
    const auto place = [&](int64_t in_host, spec::Place others) {
        spec::RunPlan run = plan.request().run;
        for (int64_t i = 0; i < layers; ++i)
            run.layers[static_cast<std::size_t>(i)].weights_at = i < layers - in_host ? others : spec::Place::host;
        plan.set_run(run);
        return placement::fits(plan, budget);
    };
    if (place(layers, spec::Place::device)) return true;
    const int64_t all = plan.host_bytes();
    std::vector<spec::Place> elsewhere = {spec::Place::device};
    if (placement::may_lie_on_disk(plan)) elsewhere.push_back(spec::Place::disk);
    for (const spec::Place others : elsewhere) {
        if (place(0, others)) return true;
        const int64_t none = plan.host_bytes(), each = (all - none + layers - 1) / layers, room = budget.host - none;
        if (room > 0 && each > 0 && place(std::min(layers - 1, room / each), others)) return true;
    }
    return false;
}

}  // namespace unsloth::commands
