// The objectives by their names: what each needs, and how it is made.
#include "unsloth/objective/objective.h"

#include "unsloth/core/error.h"

namespace unsloth::objective {

model::ObjectiveNeeds needs_of(const config::Config& config, int64_t teacher_tokens) {
    if (config::compares_completions(config.training.objective)) return preference_needs();
    if (config::traits_of(config.training.objective).has_teacher) return distillation_needs(teacher_tokens);
    if (config::samples_completions(config.training.objective)) return policy_gradient_needs();
    if (config::learns_decisions(config.training.objective)) return decision_needs();
    return {};
}

std::unique_ptr<Objective> make_objective(const config::Config& config, at::Device device, const References& references,
                                          comm::Communicator* ranks, Teacher* teacher, int64_t rows_of_step) {
    if (config::compares_completions(config.training.objective))
        return make_preference(config, device, references, ranks);
    if (config::traits_of(config.training.objective).has_teacher) {
        UNSLOTH_CHECK(teacher != nullptr, "a student without a teacher");
        return make_distillation(config.distill, device, *teacher);
    }
    if (config::samples_completions(config.training.objective))
        return make_policy_gradient(config.grpo, device, rows_of_step);
    if (config::learns_decisions(config.training.objective))
        return make_decision(config.training.decision_brier_weight, device);
    return make_supervised();
}

bool needs_references(const config::Config& config) {
    const config::PreferenceOptions& p = config.preference;
    return config::traits_of(config.training.objective).has_reference && !p.reference_free &&
           p.loss_type != config::PreferenceLoss::simpo;
}

}  // namespace unsloth::objective
