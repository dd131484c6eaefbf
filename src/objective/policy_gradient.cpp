// GRPO and its kin: the loss of completions that the run sampled, from advantages and the ratios of probabilities
// (ops/policy.h). Metrics are computed on the host from each token's log-probability and entropy.
#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <optional>
#include <unordered_map>

#include "unsloth/config/policy_rule.h"
#include "unsloth/core/error.h"
#include "unsloth/objective/objective.h"
#include "unsloth/ops/cross_entropy.h"
#include "unsloth/ops/policy.h"

namespace unsloth::objective {
namespace {

/// The buffers of a micro-batch, in the order of their numbers.
enum PolicyBuffer : std::size_t {
    entropy_buffer,
    entropy_weight_buffer,
    segment_loss_buffer,
    targets_start_buffer,
    advantage_buffer,
    flag_buffer,
    old_buffer,
    reference_logp_buffer,
    sampler_buffer
};

constexpr int64_t measures_of_token = 2;  // log-probability, entropy

/// What a micro-batch's buffers hold, on the host.
struct PolicyInputs {
    std::vector<float> advantages, old_logps, reference, sampler;
    std::vector<int32_t> flags;

    void add(const data::PolicyRow& row) {
        const data::SampledRow& sampled = *row.sampled;
        const std::size_t tokens = sampled.ids.size();
        const auto append = [tokens](std::vector<float>& all, const std::vector<float>& own, float without) {
            UNSLOTH_CHECK(own.empty() || own.size() == tokens, own.size(), " values of ", tokens, " tokens");
            if (own.empty())
                all.insert(all.end(), tokens, without);
            else
                all.insert(all.end(), own.begin(), own.end());
        };
        advantages.push_back(static_cast<float>(sampled.advantage));
        append(old_logps, sampled.old_logps, std::numeric_limits<float>::quiet_NaN());
        append(reference, sampled.reference, 0.F);
        append(sampler, sampled.sampler, std::numeric_limits<float>::infinity());
        for (std::size_t t = 0; t < tokens; ++t) {
            const bool chosen = row.chosen.empty() || row.chosen[t] != 0;
            flags.push_back((sampled.counts ? ops::token_counts : 0) | (chosen ? ops::token_chosen : 0));
        }
    }
};

/// Of each segment the place of its completion in the step: those of a sample follow its first one's.
std::vector<std::size_t> places_of(const data::Batch& batch) {
    std::vector<std::size_t> places;
    std::size_t sample = 0;
    for (std::size_t s = 0; s + 1 < batch.segments.size(); ++s) {
        const bool first = batch.owners.empty() || batch.owners[s] < 0;
        places.push_back(first ? static_cast<std::size_t>(batch.rows[sample++]) : places.back() + 1);
    }
    return places;
}

class PolicyGradient final : public Objective {
  public:
    PolicyGradient(const config::GrpoOptions& options, at::Device device, int64_t rows_of_step)
        : temperature_(options.temperature),
          entropy_coef_(options.entropy_coef),
          longest_(options.max_completion_length),
          measures_(
              at::zeros({rows_of_step * longest_ * measures_of_token}, at::TensorOptions(at::kFloat).device(device))) {}

    bool weighs() const override { return true; }
    bool weighs_before_gradient() const override { return entropy_coef_ != 0; }
    /// Rows have their divisors in their weights.
    int64_t divisor(const data::StepBatch&) const override { return 1; }

    void begin(const data::StepBatch& step) override {
        UNSLOTH_CHECK(step.policy != nullptr, "a step without advantages");
        measures_.zero_();
        issued_.push_back(step.policy);
    }

    void upload(const data::Batch& batch, model::MicroBatch& micro) override {
        PolicyInputs inputs;
        for (const std::size_t place : places_of(batch)) inputs.add(step().rows.at(place));
        UNSLOTH_CHECK(inputs.flags.size() == batch.target_ids.size(), inputs.flags.size(), " tokens of ",
                      batch.target_ids.size(), " targets");
        micro.upload_to(targets_start_buffer, batch.target_starts);
        micro.upload_to(advantage_buffer, inputs.advantages);
        micro.upload_to(flag_buffer, inputs.flags);
        micro.upload_to(old_buffer, inputs.old_logps);
        micro.upload_to(reference_logp_buffer, inputs.reference);
        micro.upload_to(sampler_buffer, inputs.sampler);
        batches_[&micro] = &batch;
    }

    void chunk_loss(ops::Context& ctx, const model::Network&, const model::MicroBatch& micro, int64_t first,
                    const at::Tensor& logits_CV, model::LogitsGradient gradient) override {
        const model::HeadBuffers& head = micro.activations().head();
        const int64_t rows = logits_CV.size(0);
        const bool weighted = gradient == model::LogitsGradient::weighted;
        ops::token_policy(
            ctx, {.temperature = temperature_,
                  .logits_CV = logits_CV,
                  .targets_C = micro.activations().tokens().target_ids_n.narrow(0, first, rows),
                  .losses_C = head.loss_n.narrow(0, first, rows),
                  .entropies_C = buffer(micro, entropy_buffer, first, rows),
                  .gradient = gradient != model::LogitsGradient::none,
                  .weight_C = weighted ? head.weight_n.narrow(0, first, rows) : at::Tensor(),
                  .entropy_weight_C = weighted && entropy_coef_ != 0 ? buffer(micro, entropy_weight_buffer, first, rows)
                                                                     : at::Tensor()});
    }

    void weigh(ops::Context& ctx, const model::MicroBatch& micro, ops::Site site) override {
        const model::HeadBuffers& head = micro.activations().head();
        const data::Batch& batch = *batches_.at(&micro);
        const int64_t n = micro.targets(), segments = micro.segments();
        const std::size_t described = step().micro_of(static_cast<std::size_t>(batch.rows.front()));
        const spec::PolicyBatchOptions& options = step().micro.at(described);
        const at::Tensor losses = head.loss_n.narrow(0, 0, n), entropies = buffer(micro, entropy_buffer, 0, n),
                         of_segments = buffer(micro, segment_loss_buffer, 0, segments);
        ops::policy_loss(ctx, {.rule = options.rule,
                               .divisors = options.divisors,
                               .entropy_weight = bonus_weight(described),
                               .losses_n = losses,
                               .entropies_n = entropies,
                               .starts_S1 = buffer(micro, targets_start_buffer, 0, segments + 1),
                               .advantages_S = buffer(micro, advantage_buffer, 0, segments),
                               .flags_n = buffer(micro, flag_buffer, 0, n),
                               .old_n = buffer(micro, old_buffer, 0, n),
                               .reference_n = buffer(micro, reference_logp_buffer, 0, n),
                               .sampler_n = buffer(micro, sampler_buffer, 0, n),
                               .segment_losses_S = of_segments,
                               .weight_n = head.weight_n.narrow(0, 0, n),
                               .entropy_weight_n = buffer(micro, entropy_weight_buffer, 0, n)});
        ops::accumulate_loss(ctx, of_segments, site);
        note(batch, losses, entropies);
    }

    void pass_over(ops::Context&) override {}
    at::Tensor measures() const override { return measures_; }

    Figures figures(std::span<const float> measures) override {
        UNSLOTH_CHECK(!issued_.empty(), "figures of a step that was not issued");
        const std::shared_ptr<const data::PolicyStep> step = issued_.front();
        issued_.pop_front();
        Figures figures = step->metrics;
        for (auto& figure : mean_metrics(*step, measures)) figures.push_back(std::move(figure));
        if (const auto divergence = sampler_divergence(*step, measures))
            figures.emplace_back(kl_sampler_trainer, *divergence);
        return figures;
    }

    void evaluate(const data::Batch&, const at::Tensor&, const References&, Sums&) override {
        UNSLOTH_CHECK(false, "held-out completions are not scored");
    }
    double evaluated(const Sums&, const data::Extent&) const override { return 0; }

  private:
    const data::PolicyStep& step() const { return *issued_.back(); }
    static at::Tensor buffer(const model::MicroBatch& micro, PolicyBuffer which, int64_t first, int64_t count) {
        return micro.activations().objective(which).narrow(0, first, count);
    }
    /// Of each chosen token's entropy: the bonus is the described micro-batch's mean.
    double bonus_weight(std::size_t micro) const {
        if (entropy_coef_ == 0) return 0;
        double chosen = 0;
        for (std::size_t r = micro * step().rows_each(); r < (micro + 1) * step().rows_each(); ++r) {
            const data::PolicyRow& row = step().rows[r];
            if (!row.sampled->counts) continue;
            chosen += static_cast<double>(row.chosen.empty() ? row.sampled->ids.size()
                                                             : std::count(row.chosen.begin(), row.chosen.end(), 1));
        }
        return -entropy_coef_ / (std::max(chosen, 1.0) * step().micro[micro].divisors.accumulation);
    }

    /// Puts each token's log-probability and entropy where figures() finds them.
    void note(const data::Batch& batch, const at::Tensor& losses_n, const at::Tensor& entropies_n) {
        const at::Tensor all = measures_.view({-1, longest_, measures_of_token});
        const std::vector<std::size_t> places = places_of(batch);
        for (std::size_t s = 0; s < places.size(); ++s) {
            const int64_t first = batch.target_starts[s], count = batch.target_starts[s + 1] - first;
            const at::Tensor row = all[static_cast<int64_t>(places[s])].narrow(0, 0, count);
            row.select(1, 0).copy_(losses_n.narrow(0, first, count)).neg_();
            row.select(1, 1).copy_(entropies_n.narrow(0, first, count));
        }
    }

    std::span<const float> row_of(std::span<const float> measures, std::size_t row) const {
        return measures.subspan(row * static_cast<std::size_t>(longest_ * measures_of_token));
    }
    Figures mean_metrics(const data::PolicyStep& step, std::span<const float> measures) const;
    std::optional<double> sampler_divergence(const data::PolicyStep& step, std::span<const float> measures) const;

    double temperature_, entropy_coef_;
    int64_t longest_;
    at::Tensor measures_;
    std::deque<std::shared_ptr<const data::PolicyStep>> issued_;  ///< whose figures were not read yet; at most three
    std::unordered_map<const model::MicroBatch*, const data::Batch*> batches_;
};

/// A row of a step with the values that measures() gives for it.
spec::PolicyCompletion completion_of(const data::PolicyRow& row, std::span<const float> measures) {
    const data::SampledRow& sampled = *row.sampled;
    spec::PolicyCompletion completion{.advantage = sampled.advantage};
    if (!sampled.counts || !row.passed) return completion;
    for (std::size_t t = 0; t < sampled.ids.size(); ++t) {
        const auto of_token = [t](const std::vector<float>& values, double without) {
            return values.empty() ? without : static_cast<double>(values[t]);
        };
        spec::PolicyToken token;
        token.logp = static_cast<double>(measures[2 * t]);
        token.old_logp = of_token(sampled.old_logps, token.logp);
        token.reference_logp = of_token(sampled.reference, 0);
        token.sampler_logp = of_token(sampled.sampler, token.old_logp);
        completion.tokens.push_back(token);
        completion.entropies.push_back(static_cast<double>(measures[2 * t + 1]));
    }
    return completion;
}

/// Each metric's mean over the step's micro-batches, as the options describe these; NaN where none defines it.
Figures PolicyGradient::mean_metrics(const data::PolicyStep& step, std::span<const float> measures) const {
    struct Mean {
        std::string name;
        double sum = 0;
        int count = 0;
    };
    std::vector<Mean> means;
    for (std::size_t k = 0; k < step.micro.size(); ++k) {
        std::vector<spec::PolicyCompletion> batch;
        for (std::size_t r = k * step.rows_each(); r < (k + 1) * step.rows_each(); ++r)
            batch.push_back(completion_of(step.rows[r], row_of(measures, r)));
        const auto metrics = spec::policy_batch_loss(step.micro[k], batch).metrics;
        for (std::size_t m = 0; m < metrics.size(); ++m) {
            if (means.size() <= m) means.push_back({metrics[m].first});
            if (!metrics[m].second || metrics[m].first.starts_with("sampling/")) continue;  // of a generation
            means[m].sum += *metrics[m].second;
            ++means[m].count;
        }
    }
    Figures figures;
    for (const Mean& mean : means)
        if (!mean.name.starts_with("sampling/"))
            figures.emplace_back(mean.name,
                                 mean.count > 0 ? mean.sum / mean.count : std::numeric_limits<double>::quiet_NaN());
    return figures;
}

/// k3 of sampler and trainer, over tokens that the policy sampled as it was before the step; nullopt: none were, or
/// nothing is known of them.
std::optional<double> PolicyGradient::sampler_divergence(const data::PolicyStep& step,
                                                         std::span<const float> measures) const {
    double sum = 0, count = 0;
    for (std::size_t r = 0; r < step.rows.size(); ++r) {
        const data::PolicyRow& row = step.rows[r];
        if (!row.fresh || !row.passed) continue;
        const std::span<const float> of_row = row_of(measures, r);
        for (std::size_t t = 0; t < row.sampled->sampler.size(); ++t) {
            const double d = static_cast<double>(of_row[2 * t]) - static_cast<double>(row.sampled->sampler[t]);
            if (std::isnan(d)) continue;
            sum += std::expm1(d) - d;
            ++count;
        }
    }
    return count > 0 ? std::optional(sum / count) : std::nullopt;
}

}  // namespace

model::ObjectiveNeeds policy_gradient_needs() {
    using Of = model::ObjectiveBuffer;
    return {.weighs = true,
            .fp32_logits = true,
            .buffers = {
                {"tokens' entropies", Of::Life::head, at::kFloat, Of::Per::target},
                {"entropies' weights", Of::Life::head, at::kFloat, Of::Per::target},
                {"completions' losses", Of::Life::head, at::kFloat, Of::Per::segment},
                {"target starts", Of::Life::input, at::kInt, Of::Per::segment, 1, 1},
                {"advantages", Of::Life::input, at::kFloat, Of::Per::segment},
                {"token flags", Of::Life::input, at::kInt, Of::Per::target},
                {"old log p", Of::Life::input, at::kFloat, Of::Per::target},
                {"reference log p", Of::Life::input, at::kFloat, Of::Per::target},
                {"sampler log p", Of::Life::input, at::kFloat, Of::Per::target},
            }};
}

std::unique_ptr<Objective> make_policy_gradient(const config::GrpoOptions& options, at::Device device,
                                                int64_t rows_of_step) {
    return std::make_unique<PolicyGradient>(options, device, rows_of_step);
}

}  // namespace unsloth::objective
