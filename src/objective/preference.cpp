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

/// Of the answers, and of the targets before them: orpo's chosen answers are learnt with their prompts.
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
          chosen_share_(rule_.type == PreferenceLossType::orpo                ? 1.0
                        : config.training.objective == config::Objective::dpo ? config.preference.rpo_alpha
                                                                              : 0.0),
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
        micro.upload_sequences(batch, references_.of(batch), kto() ? batch.desirable : std::vector<int32_t>());
    }

    void weigh(ops::Context& ctx, const model::MicroBatch& micro, ops::Site site) override {
        const model::HeadBuffers& head = micro.activations().head();
        const model::TokenBuffers& tokens = micro.activations().tokens();
        const int64_t n = micro.targets(), sequences = micro.segments();
        ops::PreferenceLoss loss{.rule = rule_,
                                 .logp_S = head.logp_S.narrow(0, 0, sequences),
                                 .starts_S1 = tokens.target_starts_S1.narrow(0, 0, sequences + 1),
                                 .answers_S = tokens.answers_S.narrow(0, 0, sequences),
                                 .prompt_logp_S = head.prompt_logp_S.narrow(0, 0, sequences),
                                 .reference_S = tokens.reference_S.narrow(0, 0, sequences),
                                 .chosen_loss_weight = chosen_weight_,
                                 .slope_S = head.slope_S.narrow(0, 0, sequences),
                                 .weight_n = head.weight_n.narrow(0, 0, n),
                                 .measures_M = measures_,
                                 .site = site};
        sum_log_probs(ctx, head.loss_n.narrow(0, 0, n), loss);
        if (kto()) {
            ops::foreign_divergence(ctx, loss.logp_S, loss.reference_S, divergence_);
            share_divergence();
            loss.desirable_P = tokens.desirable_P.narrow(0, 0, sequences / 2);
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

    Figures figures(std::span<const float> m) const override {
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

std::unique_ptr<Objective> make_objective(const config::Config& config, at::Device device, const References& references,
                                          comm::Communicator* ranks, Teacher* teacher) {
    if (config.training.objective == config::Objective::sft) return make_supervised();
    if (config.training.objective == config::Objective::distill) {
        UNSLOTH_CHECK(teacher != nullptr, "a student without a teacher");
        return make_distillation(config.distill, device, *teacher);
    }
    return std::make_unique<Preference>(config, device, references, ranks);
}

bool needs_references(const config::Config& config) {
    switch (config.training.objective) {
        case config::Objective::sft:
        case config::Objective::distill:
        case config::Objective::orpo:
            return false;
        case config::Objective::dpo:
            return !config.preference.reference_free && config.preference.loss_type != config::PreferenceLoss::simpo;
        case config::Objective::kto:
            return true;
    }
    return false;
}

}  // namespace unsloth::objective
