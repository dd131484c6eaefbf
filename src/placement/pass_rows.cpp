// How many of a step's rows a pass holds.
#include <algorithm>
#include <cmath>

#include "unsloth/placement/layer_costs.h"
#include "unsloth/placement/memory_use.h"
#include "unsloth/placement/recipe.h"

namespace unsloth::placement {
namespace {

constexpr double worth = 0.97;  // of the time with the rows given: predictions are no better than that

/// The plan for a usual pass, of which the time is predicted: memory is planned for the longest rows.
model::ModelPlan usual_pass(const model::ModelPlan& plan, double usual) {
    const auto some = [&](int64_t most) {
        return std::clamp<int64_t>(std::llround(usual * static_cast<double>(most)), 1, std::max<int64_t>(1, most));
    };
    model::ActivationSizes sizes = plan.request().sizes;
    sizes.tokens = some(sizes.tokens);
    sizes.longest = some(sizes.longest);
    sizes.head_rows = some(sizes.head_rows);
    model::ModelPlan pass = plan;
    pass.set_sizes(sizes);
    return pass;
}

/// No run of these passes takes less: one that keeps everything, and waits for no copy.
double least_step_ms(const model::ModelPlan& plan, const planner::Card& card, int64_t passes) {
    spec::RunPlan run = plan.request().run;
    run.row_tile = 0;
    run.inputs_in_fp8 = false;
    const planner::StepTime time(card, step_work(plan, passes, run));
    const auto layers = static_cast<double>(plan.own_layers().size());
    return time.step_ms(layers * time.layer({.cached = true}, {}, /*in_flight=*/passes).both());
}

}  // namespace

bool rows_are_free(const config::TrainingOptions& training, const spec::ModelSpec& spec) {
    return std::ranges::none_of(spec.ropes, [](const spec::RopeSpec& rope) { return rope.by_length(); }) &&
           training.max_tokens_per_batch == 0 && !config::traits_of(training.objective).fixed_micro_batch &&
           router_aux_coefficient(training, spec) == 0;
}

bool may_regroup(const config::Config& config, at::Device device, const spec::ModelSpec& spec) {
    return config.training.micro_batch == config::PassRows::automatic && device.is_cuda() &&
           !config.training.deterministic &&  // whose bits would depend on what memory is free
           rows_are_free(config.training, spec) && config.distributed.pp_size == 1;
}

std::vector<int64_t> pass_rows(int64_t given, int64_t of_step) {
    std::vector<int64_t> candidates = {given};
    for (int64_t passes = 1; passes < 2 * of_step; passes *= 2) {
        const int64_t rows = (of_step + passes - 1) / passes;
        if (std::find(candidates.begin(), candidates.end(), rows) == candidates.end()) candidates.push_back(rows);
    }
    return candidates;
}

int64_t fastest_pass_rows(const config::Config& config, const PassChoice& choice, const Machine& machine) {
    std::optional<double> best;
    int64_t fastest = choice.given;
    for (const int64_t rows : pass_rows(choice.given, choice.of_step)) {
        model::ModelPlan plan = choice.plan_of(rows);
        const int64_t passes = (choice.of_step + rows - 1) / rows;
        if (best && least_step_ms(usual_pass(plan, choice.usual), machine.card, passes) >= *best * worth) continue;
        choose_memory_use(config, plan, passes, machine);
        if (!fits(plan, memory_budget(config, plan.request().device, machine))) continue;
        const double ms = predicted_step_ms(usual_pass(plan, choice.usual), machine.card, passes);
        if (best && ms >= *best * worth) continue;
        best = ms;
        fastest = rows;
    }
    return fastest;
}

}  // namespace unsloth::placement
