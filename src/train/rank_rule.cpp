#include "unsloth/train/rank_rule.h"

#include "unsloth/core/error.h"
#include "unsloth/weights/parameters.h"

namespace unsloth::train {
namespace {

constexpr int64_t least_rank = 8, most_rank = 256, rank_of_rewards = 16, unknown_rank = 32;
constexpr const char* source = " (\"LoRA Without Regret\", Thinking Machines Lab, 2025)";

}  // namespace

RankRule rank_rule(const config::Config& config, const spec::ModelSpec& spec, spec::LoraSpec lora,
                   std::optional<int64_t> targets) {
    const config::Objective objective = config.training.objective;
    if (config::samples_completions(objective) || config::compares_completions(objective))
        return {rank_of_rewards, cat(rank_of_rewards,
                                     ": a reward or a preference teaches about a bit, for which small "
                                     "ranks are enough",
                                     source)};
    if (!targets)
        return {unknown_rank, cat(unknown_rank, " is a placeholder: the run chooses by its number of targets", source)};
    int64_t parameters = 0;
    for (int64_t r = least_rank; r <= most_rank; r *= 2) {
        lora.r = r;
        parameters = weights::ParameterTable::lora(spec, spec::resolve_lora(lora, spec), {},
                                                   spec::resolve_tower_lora(lora, spec))
                         .trainable_elements();
        if (parameters >= *targets)
            return {r, cat(r, ": the adapters' ", parameters, " parameters are at least the ", *targets, " targets",
                           r == least_rank ? "" : ", and half as many are not", source)};
    }
    return {most_rank,
            cat(most_rank, ", the most that is chosen: the adapters' ", parameters, " parameters are fewer than the ",
                *targets, " targets, so that a larger r or finetuning_type full would learn more", source)};
}

}  // namespace unsloth::train
