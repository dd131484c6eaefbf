#include "unsloth/placement/layer_costs.h"

#include <algorithm>
#include <limits>

#include "unsloth/core/error.h"

namespace unsloth::placement {
namespace {

const spec::LayerPlan full_recompute{spec::Keep::input};

/// A layer's choices as a number.
int key_of(const spec::LayerPlan& layer) {
    return static_cast<int>(layer.keep) + 4 * static_cast<int>(layer.activations_at) + 16 * (layer.cached ? 1 : 0) +
           32 * static_cast<int>(layer.weights_at);
}

}  // namespace

namespace {

/// The processes are taken to be those of one machine.
planner::Sharing sharing_of(const model::LoadRequest& request) {
    const weights::ShardingPolicy& sharding = request.sharding;
    const spec::Stage& stage = request.pp.stage();
    planner::Sharing sharing;
    sharing.tp = request.tp.place().size;
    sharing.cp = request.cp.place().size;
    sharing.stages = stage.size;
    sharing.chunks = stage.alone() ? 1 : stage.chunks_each();
    sharing.ranks = std::max<int64_t>(request.processes, sharing.tp * sharing.cp * sharing.stages);
    sharing.summed = sharing.ranks / sharing.stages;
    sharing.peers = request.peers.size;
    sharing.gradients_by_layer = sharding.splits_gradients() && sharding.share.size > 1;
    sharing.values_by_layer = sharding.splits_values();
    return sharing;
}

}  // namespace

planner::StepWork step_work(const model::ModelPlan& plan, int64_t micro_batches, const spec::RunPlan& like) {
    const model::LoadRequest& request = plan.request();
    planner::StepWork work;
    work.model = plan.own_spec();
    work.sharing = sharing_of(request);
    work.tokens = std::max<int64_t>(1, request.sizes.tokens);
    // Of a rank that shares rows with others: it has some of their tokens, and each attends over the whole row.
    work.longest = std::clamp<int64_t>(request.sizes.longest, 1, std::max(work.tokens, request.sizes.all_keys));
    work.head_rows = std::max<int64_t>(1, request.sizes.head_rows);
    work.micro_batches = micro_batches;
    if (plan.own_table() != nullptr) {
        work.summed_parameters = plan.own_table()->trainable_elements();
        (request.sharding.on_host() ? work.updated_on_host : work.trained_parameters) =
            work.summed_parameters / (request.sharding.on_host() ? 1 : request.sharding.share.size);
    }
    work.has_head = request.pp.stage().last();
    work.row_tile = like.tile_of(work.tokens) < work.tokens ? like.row_tile : 0;
    work.inputs_in_fp8 = like.inputs_in_fp8;
    work.adapters = request.finetuning_type == config::FinetuningType::lora;
    work.in_4bit = holds_4bit(plan);
    work.coded = request.coded;
    work.head_coded = request.sizes.head_coded;
    work.trains_head = !work.adapters || (request.lora && !request.lora->modules_to_save.empty());
    return work;
}

namespace {

/// A peer's device gives a layer many times faster than the host does, and a step hides it.
bool moves(const spec::LayerPlan& layer) {
    return layer.weights_at != spec::Place::device && layer.weights_at != spec::Place::peer;
}

}  // namespace

bool holds_4bit(const model::ModelPlan& plan) {
    const model::LoadRequest& request = plan.request();
    if (forward_coded(request.coded) || request.finetuning_type != config::FinetuningType::lora) return false;
    return plan.tensors().quantised_linears() > 0 || (request.load_in_4bit && plan.tensors().int8_linears() == 0);
}

LayerCosts::LayerCosts(const model::ModelPlan& plan, const planner::Card& card, int64_t micro_batches,
                       spec::RunPlan like)
    : plan_(plan),
      like_(std::move(like)),
      in_flight_(like_.in_flight),
      layers_(static_cast<int64_t>(plan.own_layers().size())),
      time_(card, step_work(plan, micro_batches, like_)),
      full_recompute_(estimate(full_recompute, layers_)) {}

spec::RunPlan LayerCosts::with(const std::vector<spec::LayerPlan>& layers) const {
    spec::RunPlan run = like_;
    run.layers.assign(static_cast<std::size_t>(plan_.spec().num_layers), full_recompute);
    const std::vector<int> own = plan_.own_layers();
    for (std::size_t i = 0; i < own.size(); ++i) run.layers[static_cast<std::size_t>(own[i])] = layers[i];
    return run;
}

/// Of a plan in which `layers_of_it` of this rank's layers, from the lowest, are as `most`, the others full_recompute.
spec::MemoryNeed LayerCosts::estimate(const spec::LayerPlan& most, int64_t layers_of_it) const {
    std::vector<spec::LayerPlan> layers(static_cast<std::size_t>(layers_), full_recompute);
    std::fill(layers.begin(), layers.begin() + layers_of_it, most);
    return plan_.estimate(with(layers));
}

/// What a layer takes more than a full_recompute one: what activations and weights take adds up, so that each is asked
/// for alone. Between four and eight layers, since the first ones bring buffers that all share.
spec::MemoryNeed LayerCosts::beyond_full_recompute(const spec::LayerPlan& layer) {
    const bool activations = layer.keep != full_recompute.keep || layer.activations_at != full_recompute.activations_at,
               weights = layer.cached || moves(layer);
    if (activations && weights) {
        const spec::MemoryNeed kept = beyond_full_recompute({layer.keep, layer.activations_at}),
                               held = beyond_full_recompute({full_recompute.keep, full_recompute.activations_at,
                                                             layer.cached, layer.weights_at});
        return {kept.device + held.device, kept.host + held.host};
    }
    if (!activations && !weights) return {};
    const auto [at, fresh] = slopes_.try_emplace(key_of(layer));
    if (fresh) {
        const int64_t many = std::min<int64_t>(8, layers_), few = many / 2;
        const spec::MemoryNeed more = estimate(layer, many), less = few > 0 ? estimate(layer, few) : full_recompute_;
        at->second = {(more.device - less.device) / (many - few), (more.host - less.host) / (many - few)};
    }
    return at->second;
}

planner::LayerOption LayerCosts::option(const spec::LayerPlan& layer) {
    const spec::MemoryNeed own = beyond_full_recompute({layer.keep, layer.activations_at});
    planner::MovedBytes moved;
    if (layer.activations_at == spec::Place::host)
        moved.activations = own.host / in_flight_ / plan_.request().processes;
    if (moves(layer))  // of the disk's layers the host's say how large they are
        moved.weights =
            beyond_full_recompute({full_recompute.keep, full_recompute.activations_at, false, spec::Place::host}).host /
            plan_.base_copies();
    return {layer, beyond_full_recompute(layer), time_.layer(layer, moved, in_flight_)};
}

/// What these plans need in addition to the layers' own bytes: estimated with as many layers in each.
spec::MemoryNeed LayerCosts::shared(const std::vector<spec::LayerPlan>& plans) {
    std::vector<planner::LayerOption> options;
    for (const spec::LayerPlan& plan : plans) options.push_back({plan, beyond_full_recompute(plan), {}});
    std::vector<int64_t> counts(options.size(), 0);
    for (int64_t layer = 0; layer < layers_; ++layer) ++counts[static_cast<std::size_t>(layer) % counts.size()];
    spec::MemoryNeed need = plan_.estimate(with(planner::arrange(options, counts)));
    for (std::size_t i = 0; i < options.size(); ++i) {
        need.device -= counts[i] * options[i].bytes.device;
        need.host -= counts[i] * options[i].bytes.host;
    }
    return need;
}

/// What layers keep and where their weights are add up here, too, so that each is asked for alone.
spec::MemoryNeed LayerCosts::shared(const std::vector<planner::LayerOption>& options, uint64_t used) {
    std::map<int, spec::LayerPlan> ways, forms;
    for (std::size_t i = 0; i < options.size(); ++i) {
        if ((used >> i & 1) == 0) continue;
        const spec::LayerPlan &plan = options[i].plan, way{plan.keep, plan.activations_at},
                              form{full_recompute.keep, full_recompute.activations_at, plan.cached, plan.weights_at};
        ways.emplace(key_of(way), way);
        forms.emplace(key_of(form), form);
    }
    const auto of = [&](const std::map<int, spec::LayerPlan>& plans) {
        std::vector<int> keys;
        std::vector<spec::LayerPlan> alone;
        for (const auto& [key, plan] : plans) keys.push_back(key), alone.push_back(plan);
        const auto [at, fresh] = shared_.try_emplace(keys);
        if (fresh) at->second = shared(alone);
        return at->second;
    };
    const spec::MemoryNeed kept = of(ways), held = of(forms);
    return {kept.device + held.device - full_recompute_.device, kept.host + held.host - full_recompute_.host};
}

std::optional<spec::RunPlan> LayerCosts::solve(const std::vector<spec::LayerPlan>& ways,
                                               const std::vector<WeightForm>& forms, const spec::MemoryNeed& budget) {
    planner::Problem problem;
    problem.layers = layers_;
    for (const spec::LayerPlan& way : ways)
        for (const WeightForm& form : forms)
            problem.options.push_back(option({way.keep, way.activations_at, form.cached, form.at}));
    problem.shared = [&](uint64_t used) { return shared(problem.options, used); };
    problem.least_shared = {std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::max()};
    for (std::size_t i = 0; i < problem.options.size(); ++i) {  // layers that are all alike share least
        const spec::MemoryNeed alone = problem.shared(uint64_t{1} << i);
        problem.least_shared.device = std::min(problem.least_shared.device, alone.device);
        problem.least_shared.host = std::min(problem.least_shared.host, alone.host);
    }
    problem.budget = budget;
    // What a plan really takes may be a little more than what the parts say: then with as much less.
    for (int attempt = 0; attempt < 8; ++attempt) {
        const std::optional<planner::Solution> found = planner::solve(problem);
        if (!found) return std::nullopt;
        spec::RunPlan run = with(planner::arrange(problem.options, found->counts));
        const spec::MemoryNeed need = plan_.estimate(run);
        if (need.device <= budget.device && need.host <= budget.host) return run;
        problem.budget.device -= std::max<int64_t>(0, need.device - budget.device);
        problem.budget.host -= std::max<int64_t>(0, need.host - budget.host);
    }
    return std::nullopt;
}

double LayerCosts::step_ms(const spec::RunPlan& run) {
    std::vector<planner::LayerOption> options;
    std::vector<int64_t> counts;
    for (const int number : plan_.own_layers()) {
        const spec::LayerPlan& layer = run.layers[static_cast<std::size_t>(number)];
        const auto found = std::find_if(options.begin(), options.end(),
                                        [&](const planner::LayerOption& option) { return option.plan == layer; });
        if (found == options.end()) {
            options.push_back(option(layer));
            counts.push_back(1);
        } else {
            ++counts[static_cast<std::size_t>(found - options.begin())];
        }
    }
    return time_.step_ms(planner::layers_ms(options, counts));
}

}  // namespace unsloth::placement
