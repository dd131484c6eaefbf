#include "unsloth/rollouts/generation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "unsloth/config/policy_rule.h"
#include "unsloth/core/error.h"

namespace unsloth::rollouts {
namespace {

using RowPointer = std::shared_ptr<const data::SampledRow>;

double sum_of_differences(const std::vector<float>& a, const std::vector<float>& b) {
    double sum = 0;
    for (std::size_t t = 0; t < a.size(); ++t) sum += static_cast<double>(a[t]) - static_cast<double>(b[t]);
    return sum;
}

/// Lengths of all completions, and of those that have an end.
void add_lengths(const std::vector<RowPointer>& rows, Metrics& metrics) {
    struct Lengths {
        double sum = 0, count = 0, least = HUGE_VAL, most = 0;
        void add(double length) {
            sum += length;
            ++count;
            least = std::min(least, length);
            most = std::max(most, length);
        }
    };
    Lengths all, ended;
    for (const RowPointer& row : rows) {
        const auto length = static_cast<double>(row->ids.size());
        all.add(length);
        if (!row->truncated) ended.add(length);
    }
    const auto add = [&](const std::string& kind, const Lengths& of) {
        const bool any = of.count > 0;
        metrics.emplace_back("completions/mean_" + kind, any ? of.sum / of.count : 0);
        metrics.emplace_back("completions/min_" + kind, any ? of.least : 0);
        metrics.emplace_back("completions/max_" + kind, of.most);
    };
    add("length", all);
    metrics.emplace_back("completions/clipped_ratio", 1 - ended.count / all.count);
    add("terminated_length", ended);
}

/// Of some groups alone.
std::vector<reward::Scores> scores_of(const ScoredGroups& groups, const std::vector<std::size_t>& chosen) {
    const std::size_t each = groups.groups.front().completions.size();
    std::vector<reward::Scores> some(groups.scores.size());
    for (std::size_t k = 0; k < some.size(); ++k)
        for (const std::size_t group : chosen)
            for (std::size_t c = 0; c < each; ++c) some[k].push_back(groups.scores[k][group * each + c]);
    return some;
}

void add_reward_metrics(const reward::Metrics& more, Metrics& metrics) {
    for (const auto& [name, value] : more)
        metrics.emplace_back(name, value.value_or(std::numeric_limits<double>::quiet_NaN()));
}

/// How far trainer and sampler are apart at generation, over the tokens that count.
void add_sampling(const config::GrpoOptions& options, const std::vector<RowPointer>& rows, Metrics& metrics) {
    const spec::PolicyBatchOptions batch_options = config::policy_batch_options(options, 1, 1);
    std::vector<spec::PolicyCompletion> batch;
    for (const RowPointer& row : rows) {
        spec::PolicyCompletion& one = batch.emplace_back();
        if (!row->counts || row->old_logps.empty()) continue;
        for (std::size_t t = 0; t < row->ids.size(); ++t) {
            spec::PolicyToken token;
            token.logp = token.old_logp = static_cast<double>(row->old_logps[t]);
            token.sampler_logp = row->sampler.empty() ? token.old_logp : static_cast<double>(row->sampler[t]);
            one.tokens.push_back(token);
            one.entropies.push_back(0);
        }
    }
    for (const auto& [name, value] : spec::policy_batch_loss(batch_options, batch).metrics)
        if (name.starts_with("sampling/"))
            metrics.emplace_back(name, value.value_or(std::numeric_limits<double>::quiet_NaN()));
}

void add_metrics(const config::GrpoOptions& options, const reward::Advantages& advantages, const ScoredGroups& groups,
                 Generation& generation) {
    Metrics& metrics = generation.metrics;
    add_lengths(generation.rows, metrics);
    add_reward_metrics(advantages.metrics, metrics);
    add_reward_metrics(groups.metrics, metrics);
    if (options.sampler_correction != spec::SamplerCorrection::none) add_sampling(options, generation.rows, metrics);
    if (!options.kl_in_reward) return;
    double sum = 0, tokens = 0;
    for (const RowPointer& row : generation.rows) {
        if (!row->counts) continue;
        sum += sum_of_differences(row->old_logps, row->reference);
        tokens += static_cast<double>(row->ids.size());
    }
    metrics.emplace_back("kl", tokens > 0 ? sum / tokens : std::numeric_limits<double>::quiet_NaN());
}

}  // namespace

data::Sample sample_of(const std::vector<int32_t>& prompt, const std::vector<int32_t>& ids, int64_t row) {
    data::Sample sample{.row = row, .ids = prompt, .labels = std::vector<int32_t>(prompt.size(), data::ignore_label)};
    sample.ids.insert(sample.ids.end(), ids.begin(), ids.end());
    sample.labels.insert(sample.labels.end(), ids.begin(), ids.end());
    sample.positions.resize(sample.ids.size());
    std::iota(sample.positions.begin(), sample.positions.end(), 0);
    return sample;
}

std::vector<double> Generation::advantages() const {
    std::vector<double> all;
    for (const RowPointer& row : rows) all.push_back(row->advantage);
    return all;
}

Metrics evaluation_metrics(const config::GrpoOptions& options, const GroupSource& source, const ScoredGroups& groups,
                           const std::vector<std::string>& sets) {
    reward::AdvantageRule rule = reward::advantage_rule(options, source.reward_weights());
    rule.num_generations = static_cast<int>(groups.groups.front().completions.size());
    Metrics metrics;
    add_lengths(rows_of(options, groups), metrics);
    add_reward_metrics(reward::advantages(rule, source.reward_names(), groups.scores).metrics, metrics);
    add_reward_metrics(groups.metrics, metrics);
    std::map<std::string, std::vector<std::size_t>> by_set;
    for (std::size_t g = 0; g < sets.size(); ++g)
        if (!sets[g].empty()) by_set[sets[g]].push_back(g);
    for (const auto& [set, chosen] : by_set)
        for (const auto& [name, value] :
             reward::advantages(rule, source.reward_names(), scores_of(groups, chosen)).metrics)
            if (name == "reward") add_reward_metrics({{cat(set, "_reward"), value}}, metrics);
    return metrics;
}

std::vector<RowPointer> rows_of(const config::GrpoOptions& options, const ScoredGroups& groups) {
    std::vector<RowPointer> rows;
    for (const Group& group : groups.groups)
        for (const GroupCompletion& one : group.completions)
            rows.push_back(std::make_shared<data::SampledRow>(
                data::SampledRow{.prompt = group.prompt,
                                 .ids = one.ids,
                                 .sampler = one.logprobs,
                                 .truncated = one.truncated,
                                 .counts = !(one.truncated && options.mask_truncated_completions)}));
    return rows;
}

Generation make_generation(const config::GrpoOptions& options, const GroupSource& source, const ScoredGroups& groups,
                           int64_t number, GenerationScores scores) {
    Generation generation{.number = number};
    std::vector<double> penalty;
    for (const RowPointer& row : rows_of(options, groups)) {
        data::SampledRow full = *row;
        const std::size_t place = generation.rows.size();
        if (!scores.old_logps.empty()) full.old_logps = std::move(scores.old_logps[place]);
        if (!scores.reference.empty()) full.reference = std::move(scores.reference[place]);
        if (options.kl_in_reward)
            penalty.push_back(full.counts ? options.beta * sum_of_differences(full.old_logps, full.reference) : 0.0);
        if (full.counts) generation.tokens += static_cast<double>(full.ids.size());
        generation.all_tokens += static_cast<int64_t>(full.prompt.size() + full.ids.size());
        generation.rows.push_back(std::make_shared<data::SampledRow>(std::move(full)));
    }
    generation.tokens = std::max(generation.tokens, 1.0);
    const reward::Advantages advantages = reward::advantages(reward::advantage_rule(options, source.reward_weights()),
                                                             source.reward_names(), groups.scores, penalty);
    for (std::size_t i = 0; i < generation.rows.size(); ++i) {
        auto row = std::make_shared<data::SampledRow>(*generation.rows[i]);
        row->advantage = advantages.advantages[i];
        generation.rows[i] = std::move(row);
    }
    generation.zero_groups = advantages.zero_groups;
    add_metrics(options, advantages, groups, generation);
    return generation;
}

}  // namespace unsloth::rollouts
