// DPO and its variants, SimPO, ORPO, KTO: a row of data is two sequences, and its loss follows from the sums of their
// targets' log-probabilities, the policy's and the reference's (ops/preference.h).
#include "unsloth/ops/preference.h"

#include <algorithm>
#include <cmath>

#include "unsloth/core/error.h"
#include "unsloth/objective/objective.h"

namespace unsloth::objective {
namespace {

using spec::PreferenceLossType;

PreferenceLossType type_of(const config::Config& config) {
    if (config.training.objective == config::Objective::kto) return PreferenceLossType::kto;
    if (config.training.objective == config::Objective::orpo) return PreferenceLossType::orpo;
    switch (config.preference.loss_type) {
        case config::PreferenceLoss::sigmoid:
            return PreferenceLossType::sigmoid;
        case config::PreferenceLoss::hinge:
            return PreferenceLossType::hinge;
        case config::PreferenceLoss::ipo:
            return PreferenceLossType::ipo;
        case config::PreferenceLoss::robust:
            return PreferenceLossType::robust;
        case config::PreferenceLoss::simpo:
            return PreferenceLossType::simpo;
    }
    UNSLOTH_CHECK(false, "loss type ", static_cast<int>(config.preference.loss_type));
}

/// The buffers of a micro-batch, in the order of their numbers.
enum Buffer : std::size_t {
    logp_buffer,
    prompt_logp_buffer,
    slope_buffer,
    starts_buffer,
    answers_buffer,
    desirable_buffer,
    reference_buffer
};

/// Of the answers, and of the targets before them: orpo also trains on the chosen answers' prompts.
void sum_log_probs(ops::Context& ctx, const at::Tensor& losses_n, const ops::PreferenceLoss& loss) {
    const int64_t sequences = loss.answers_S.numel();
    ops::sequence_log_probs(ctx, losses_n, loss.answers_S, loss.starts_S1.narrow(0, 1, sequences), loss.logp_S);
    ops::sequence_log_probs(ctx, losses_n, loss.starts_S1.narrow(0, 0, sequences), loss.answers_S, loss.prompt_logp_S);
}

class Preference final : public Objective {
  public:
    Preference(const config::Config& config, at::Device device, const References& references, comm::Communicator* ranks)
        : rule_{type_of(config),
                config.preference.beta,
                config.preference.label_smoothing,
                config.preference.simpo_gamma,
                config.preference.desirable_weight,
                config.preference.undesirable_weight},
          // ORPO's loss is that of the chosen answers and their prompts, and the odds' on top.
          chosen_share_(config::traits_of(config.training.objective).learns_prompts ? 1.0
                                                                                    : config.preference.rpo_alpha),
          references_(references),
          ranks_(ranks) {
        const auto floats = at::TensorOptions(at::kFloat).device(device);
        measures_ = at::zeros({ops::preference_measures}, floats);
        if (kto()) divergence_ = at::zeros({2}, floats);
    }

    bool weighs() const override { return true; }
    int64_t divisor(const data::StepBatch& step) const override { return step.rows; }

    void begin(const data::StepBatch& step) override {
        measures_.zero_();
        // The gradient is divided by the rows, the chosen answers' loss is a mean over their tokens.
        chosen_weight_ = chosen_share_ == 0 || step.first_labels == 0
                             ? 0.0
                             : chosen_share_ * static_cast<double>(step.rows) / static_cast<double>(step.first_labels);
    }

    void upload(const data::Batch& batch, model::MicroBatch& micro) override {
        UNSLOTH_CHECK(batch.target_starts.size() == 2 * batch.rows.size() + 1, batch.target_starts.size() - 1,
                      " segments of ", batch.rows.size(), " rows");
        micro.upload_to(starts_buffer, batch.target_starts);
        micro.upload_to(answers_buffer, batch.answer_starts);
        micro.upload_to(reference_buffer, references_.of(batch));
        if (kto()) micro.upload_to(desirable_buffer, batch.desirable);
    }

    void weigh(ops::Context& ctx, const model::MicroBatch& micro, ops::Site site) override {
        const model::HeadBuffers& head = micro.activations().head();
        const int64_t n = micro.targets(), sequences = micro.segments();
        const auto first = [&](Buffer buffer, int64_t count) {
            return micro.activations().objective(buffer).narrow(0, 0, count);
        };
        ops::PreferenceLoss loss{.rule = rule_,
                                 .logp_S = first(logp_buffer, sequences),
                                 .starts_S1 = first(starts_buffer, sequences + 1),
                                 .answers_S = first(answers_buffer, sequences),
                                 .prompt_logp_S = first(prompt_logp_buffer, sequences),
                                 .reference_S = first(reference_buffer, sequences),
                                 .chosen_loss_weight = chosen_weight_,
                                 .slope_S = first(slope_buffer, sequences),
                                 .weight_n = head.weight_n.narrow(0, 0, n),
                                 .measures_M = measures_,
                                 .site = site};
        sum_log_probs(ctx, head.loss_n.narrow(0, 0, n), loss);
        if (kto()) {
            ops::foreign_divergence(ctx, loss.logp_S, loss.reference_S, divergence_);
            share_divergence();
            loss.desirable_P = first(desirable_buffer, sequences / 2);
            loss.divergence_2 = divergence_;
        }
        ops::preference_loss(ctx, loss);
    }

    void pass_over(ops::Context&) override {
        if (!kto() || ranks_ == nullptr) return;
        divergence_.zero_();
        share_divergence();
    }

    at::Tensor measures() const override { return measures_; }

    Figures figures(std::span<const float> m) override {
        const auto mean = [&](ops::PreferenceMeasure sum, ops::PreferenceMeasure count) {
            return static_cast<double>(m[sum]) / static_cast<double>(m[count]);
        };
        Figures figures;
        const auto add = [&](const char* name, double value) {
            if (std::isfinite(value)) figures.emplace_back(name, value);  // none of a kind of rows in the step
        };
        const double chosen = mean(ops::reward_chosen, ops::chosen_rows),
                     rejected = mean(ops::reward_rejected, ops::rejected_rows);
        add("rewards/chosen", chosen);
        add("rewards/rejected", rejected);
        if (!kto()) add("rewards/accuracies", mean(ops::reward_accuracy, ops::chosen_rows));
        add("rewards/margins", kto() ? chosen - rejected : mean(ops::reward_margin, ops::chosen_rows));
        add("logps/chosen", mean(ops::logp_chosen, ops::chosen_rows));
        add("logps/rejected", mean(ops::logp_rejected, ops::rejected_rows));
        if (chosen_share_ > 0) add("nll_loss", mean(ops::chosen_loss, ops::chosen_tokens));
        if (kto()) add("kl", std::max(0.0, mean(ops::divergence, ops::divergence_rows)));
        return figures;
    }

    void evaluate(const data::Batch& batch, const at::Tensor& losses, const References& references,
                  Sums& sums) override {
        ops::Context cpu(at::kCPU);
        spec::StepScalars scalars{};
        spec::StepOutcome outcome{};
        scalars.inv_loss_divisor = 1;
        outcome.first_bad_site = spec::all_finite;
        cpu.scalars = &scalars;
        cpu.outcome = &outcome;
        const auto sequences = static_cast<int64_t>(2 * batch.rows.size());
        const std::vector<float> reference = references.of(batch);
        const at::Tensor logp = at::empty({sequences}, at::kDouble), starts = at::tensor(batch.target_starts, at::kInt),
                         answers = at::tensor(batch.answer_starts, at::kInt),
                         reference_S = at::tensor(reference, at::kFloat);
        UNSLOTH_CHECK(sums.measures.size() == ops::preference_measures, sums.measures.size(), " measures");
        ops::PreferenceLoss loss{
            .rule = rule_,
            .logp_S = logp,
            .starts_S1 = starts,
            .answers_S = answers,
            .prompt_logp_S = at::empty_like(logp),
            .reference_S = reference_S,
            .slope_S = at::empty({sequences}, at::kDouble),
            .weight_n = at::empty({losses.numel()}, at::kFloat),
            .measures_M = at::from_blob(sums.measures.data(), {ops::preference_measures}, at::kFloat)};
        sum_log_probs(cpu, losses, loss);
        if (kto()) {
            loss.desirable_P = at::tensor(batch.desirable, at::kInt);
            loss.divergence_2 = at::empty({2}, at::kFloat);
            ops::foreign_divergence(cpu, logp, reference_S, loss.divergence_2);
        }
        ops::preference_loss(cpu, loss);
        sums.loss += outcome.loss;
    }

    double evaluated(const Sums& sums, const data::Extent& of) const override {
        double loss = sums.loss / static_cast<double>(std::max<int64_t>(of.rows, 1));
        if (chosen_share_ > 0 && !sums.measures.empty())
            loss += chosen_share_ * sums.measures[ops::chosen_loss] / sums.measures[ops::chosen_tokens];
        return loss;
    }

  private:
    bool kto() const { return rule_.type == PreferenceLossType::kto; }
    void share_divergence() {
        if (ranks_ != nullptr) ranks_->all_reduce(divergence_, "the divergence of a micro-batch");
    }

    spec::PreferenceRule rule_;
    double chosen_share_;  ///< of the loss of the chosen answers' tokens
    const References& references_;
    comm::Communicator* ranks_;
    at::Tensor measures_, divergence_;
    double chosen_weight_ = 0;  ///< in this step
};

}  // namespace

model::ObjectiveNeeds preference_needs() {
    using Of = model::ObjectiveBuffer;
    return {.weighs = true,
            .buffers = {
                {"sequences' log p", Of::Life::head, at::kDouble, Of::Per::segment},
                {"prompts' log p", Of::Life::head, at::kDouble, Of::Per::segment},  // targets before the completions
                {"sequences' slopes", Of::Life::head, at::kDouble, Of::Per::segment},
                {"target starts", Of::Life::input, at::kInt, Of::Per::segment, 1, 1},
                {"answer starts", Of::Life::input, at::kInt, Of::Per::segment},  // where completions' targets begin
                {"verdicts", Of::Life::input, at::kInt, Of::Per::pair},
                {"reference", Of::Life::input, at::kFloat, Of::Per::segment},
            }};
}

std::unique_ptr<Objective> make_preference(const config::Config& config, at::Device device,
                                           const References& references, comm::Communicator* ranks) {
    return std::make_unique<Preference>(config, device, references, ranks);
}

}  // namespace unsloth::objective
