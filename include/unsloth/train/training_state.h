// What a run has once its memory is taken: the model with its optimizer, and how far it is trained.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>

#include "unsloth/objective/objective.h"
#include "unsloth/train/checkpoint.h"
#include "unsloth/train/run_setup.h"
#include "unsloth/train/schedule.h"
#include "unsloth/train/step.h"

namespace unsloth::train {

struct ReferenceCache;

/// Members in order of dependence.
struct TrainingState {
    /// Allocates and loads; a resumed run's state is its checkpoint's, to the last bit. `setup` outlives this. Errors
    /// as ModelPlan::load's, runtime Error where memory is short, usage Error where a checkpoint has another layout.
    explicit TrainingState(const RunSetup& setup);
    TrainingState(const TrainingState&) = delete;
    TrainingState& operator=(const TrainingState&) = delete;

    double learning_rate(int64_t step) const;  ///< of step number `step`, from 1
    /// A checkpoint's values of the parameters, to the last bit.
    void load_values(const std::filesystem::path& checkpoint);
    StatePart part() const;

    /// The adapter's values as they were at the start, on the host, where rollouts are measured against them; else
    /// undefined.
    at::Tensor initial_values;
    objective::References references, eval_references;  ///< of the training rows, and of the evaluation's
    std::unique_ptr<objective::Objective> objective;
    std::unique_ptr<ops::Context> ctx;
    std::unique_ptr<model::Model> model;
    std::unique_ptr<Stepper> stepper;
    std::optional<PlateauSchedule> plateau;  ///< reduce_lr_on_plateau follows the evaluations
    formats::RunProgress progress;           ///< after the last step whose result was read
    /// Of decisions: what the last evaluation found, and after which step.
    std::optional<formats::DecisionCalibration> calibration;
    int64_t calibrated_step = -1;

  private:
    bool needs_initial_values() const;
    void score_references();
    ReferenceCache reference_cache(model::PolicyScope scope) const;
    void restore();
    const config::Config& config() const { return setup_.config(); }

    const RunSetup& setup_;
};

}  // namespace unsloth::train
