// What a run learns from its rows: an objective maps the log-probabilities of targets to a loss, the weights of the
// head's rows, and figures that are reported.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "unsloth/comm/communicator.h"
#include "unsloth/config/config.h"
#include "unsloth/data/loader.h"
#include "unsloth/model/head_objective.h"
#include "unsloth/model/model.h"
#include "unsloth/objective/calibration.h"
#include "unsloth/objective/references.h"
#include "unsloth/objective/teacher.h"

namespace unsloth::objective {

/// Named as they stand in metrics.jsonl, in their order.
using Figures = std::vector<std::pair<std::string, double>>;

class Objective : public model::HeadObjective {
  public:
    /// What the loss of a step is divided by: targets, or rows, of all its ranks.
    virtual int64_t divisor(const data::StepBatch& step) const = 0;
    /// Before a step's first micro-batch. Issued on ctx's stream, nothing synchronises.
    virtual void begin(const data::StepBatch& /*step*/) {}
    /// Sums of the step so far, which the ranks add up: fp32 on the device; undefined: none.
    virtual at::Tensor measures() const { return {}; }
    /// What such sums say; empty without. Called once for each step that was issued, in their order.
    virtual Figures figures(std::span<const float> /*measures*/) { return {}; }

    /// Of an evaluation.
    struct Sums {
        double loss = 0;
        std::vector<float> measures;  ///< as many as measures() has
    };
    /// Before the first batch of an evaluation.
    virtual void begin_evaluation() {}
    /// Of an evaluation: sees the logits of a batch (which outlives this) that is scored before evaluate(); empty:
    /// needs none.
    virtual model::Model::OnLogits watch(ops::Context& /*ctx*/, const data::Batch& /*batch*/) { return {}; }
    /// Adds a batch of rows with these -log p (fp32 [labels], on the CPU) and references of these rows.
    virtual void evaluate(const data::Batch& batch, const at::Tensor& losses, const References& references,
                          Sums& sums) = 0;
    /// The loss from all ranks' sums over this many rows.
    virtual double evaluated(const Sums& sums, const data::Extent& of) const = 0;
    /// After the last batch of an evaluation: what scales the probabilities of decisions; nothing for other objectives.
    virtual std::optional<formats::DecisionCalibration> calibrate(const SumOverRanks& /*sum*/) { return std::nullopt; }
};

/// The mean of -log p over targets.
std::unique_ptr<Objective> make_supervised();

/// training.objective of a configuration. `references`: of the training rows, read when a step is issued; `ranks`
/// (nullptr: this one alone) share kto's divergence: those that have the loss; `teacher`: distill's. All outlive it.
/// `rows_of_step`: grpo's completions of a step, of all ranks.
std::unique_ptr<Objective> make_objective(const config::Config& config, at::Device device, const References& references,
                                          comm::Communicator* ranks, Teacher* teacher = nullptr,
                                          int64_t rows_of_step = 0);

/// What such an objective plans in each micro-batch. `teacher_tokens`: that a teacher's file names of each target; 0:
/// there is none.
model::ObjectiveNeeds needs_of(const config::Config& config, int64_t teacher_tokens);

/// DPO and its variants, SimPO, ORPO, KTO: of pairs, and of completions with a label.
std::unique_ptr<Objective> make_preference(const config::Config& config, at::Device device,
                                           const References& references, comm::Communicator* ranks);
model::ObjectiveNeeds preference_needs();

/// A student that learns from a teacher's words and its rows' labels.
std::unique_ptr<Objective> make_distillation(const config::DistillOptions& options, at::Device device,
                                             Teacher& teacher);
model::ObjectiveNeeds distillation_needs(int64_t teacher_tokens);
/// What the options say.
spec::DistillRule distill_rule(const config::DistillOptions& options);

/// Completions that the run sampled, by their advantages (spec/policy_loss.h).
std::unique_ptr<Objective> make_policy_gradient(const config::GrpoOptions& options, at::Device device,
                                                int64_t rows_of_step);
model::ObjectiveNeeds policy_gradient_needs();
/// A figure of its steps: the divergence of sampler and trainer (k3), over tokens that the policy sampled as it was.
inline constexpr const char* kl_sampler_trainer = "kl_sampler_trainer";

/// Questions about an input, by the probabilities of their options (spec/decision_loss.h).
std::unique_ptr<Objective> make_decision(double brier_weight, at::Device device);
model::ObjectiveNeeds decision_needs();

/// Whether the configuration measures against a reference.
bool needs_references(const config::Config& config);

}  // namespace unsloth::objective
