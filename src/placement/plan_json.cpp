#include "unsloth/placement/plan_json.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "unsloth/memory/plan.h"
#include "unsloth/planner/run_plan_text.h"

namespace unsloth::placement {
namespace {

using Json = nlohmann::ordered_json;

Json groups_of(const model::ModelPlan& plan, const model::ModelPlan* teacher) {
    std::map<std::string, int64_t> groups = plan.groups();
    if (plan.request().device.is_cuda()) groups["scalars, and what the allocator rounds up"] = plan.outside_arenas();
    int64_t sum = 0;
    for (const auto& [name, bytes] : groups) sum += bytes;
    groups["shared by buffers that are not alive together"] = plan.total_bytes() - sum;
    if (teacher != nullptr) groups["teacher"] = teacher->total_bytes();
    Json json = Json::object();
    for (const auto& [name, bytes] : groups)
        if (bytes != 0) json[name] = bytes;
    return json;
}

/// Of layers on the disk what is not kept in host memory too.
int64_t disk_bytes(const model::ModelPlan& plan) {
    spec::RunPlan run = plan.request().run;
    if (std::none_of(run.layers.begin(), run.layers.end(),
                     [](const spec::LayerPlan& layer) { return layer.weights_at == spec::Place::disk; }))
        return 0;
    for (spec::LayerPlan& layer : run.layers)
        if (layer.weights_at == spec::Place::disk) layer.weights_at = spec::Place::host;
    return std::max<int64_t>(0, plan.estimate(run).host - plan.host_bytes());
}

}  // namespace

Json plan_json(const model::ModelPlan& plan, const model::ModelPlan* teacher) {
    const spec::RunPlan& run = plan.request().run;
    Json layers = Json::array();
    for (const int i : plan.own_layers()) {
        const spec::LayerPlan& layer = run.layers[static_cast<std::size_t>(i)];
        layers.push_back({{"keep", planner::name_of(layer.keep)},
                          {"activations_at", planner::name_of(layer.activations_at)},
                          {"weights_at", planner::name_of(layer.weights_at)},
                          {"form", plan.form_of(i)},
                          {"cached", layer.cached}});
    }
    return {{"total_bytes", plan.total_bytes() + (teacher != nullptr ? teacher->total_bytes() : 0)},
            {"device", groups_of(plan, teacher)},
            {"host_bytes", plan.host_bytes() + (teacher != nullptr ? teacher->host_bytes() : 0)},
            {"disk_bytes", disk_bytes(plan)},
            {"layers", layers},
            {"in_flight", run.in_flight},
            {"row_tile", run.row_tile},
            {"inputs_in_fp8", run.inputs_in_fp8},
            {"micro_tokens", plan.request().sizes.tokens}};
}

}  // namespace unsloth::placement
