// The training run: plan, load, loop, evaluate, save.
#pragma once

#include <memory>

#include "unsloth/train/run_setup.h"
#include "unsloth/train/training_loop.h"

namespace unsloth::train {

class Trainer {
  public:
    /// As RunSetup's: nothing large is allocated yet.
    explicit Trainer(const config::LoadedConfig& loaded, Purpose purpose = Purpose::trains);
    /// The whole run; with max_steps 0 it ends after the plan. Throws Interrupted after saving when a signal asked to
    /// stop.
    void run();

    // For tests and tools that drive the loop themselves:
    /// Allocates and loads the model.
    void load();
    model::Model& model() { return *state_->model; }
    data::StepLoader& loader() { return setup_.loader(); }
    Stepper& stepper() { return *state_->stepper; }
    /// Of step number `step`, from 1.
    double learning_rate(int64_t step) const { return state_->learning_rate(step); }
    int64_t total_steps() const { return setup_.total_steps(); }
    int64_t steps_done() const { return state_->progress.step; }
    /// Takes the next step and waits for its result; evaluates where the schedule follows evaluations.
    StepResult take_step(const IssueOptions& options = {}) { return loop_->take_step(options); }
    const model::ModelPlan& plan() const { return setup_.plan(); }
    /// Of the model that teaches it; nullptr: there is none.
    const model::ModelPlan* teachers_plan() const { return setup_.teachers_plan(); }

  private:
    void run_together();
    std::unique_ptr<StepSource> make_source();

    // By lifetime; each knows those above it.
    const RunSetup setup_;
    RunReporter reporter_;
    std::unique_ptr<TrainingState> state_;  ///< these from load() on
    std::unique_ptr<SavePolicy> saves_;
    std::unique_ptr<TrainingLoop> loop_;
};

}  // namespace unsloth::train
