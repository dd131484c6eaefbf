// What the trainer looks at between steps: the evaluation's rows, the sampled prompts; and single steps, for tools.
#include "unsloth/comm/group.h"
#include "unsloth/train/trainer.h"

namespace unsloth::train {

StepResult Trainer::take_step(const IssueOptions& options) {
    const int64_t step = progress_.step + 1, every = config().training.eval_steps;
    stepper_->issue(loader_->step(step - 1), step, learning_rate(step), options);
    StepResult result = *stepper_->take(/*must=*/true);
    progress_.step = step;
    progress_.epoch = result.epoch;
    if (plateau_ && every > 0 && step % every == 0 && step < total_steps_) maybe_evaluate(step);
    return result;
}

void Trainer::maybe_evaluate(int64_t step) {
    if (!evaluator_) return;
    const auto [report, signal] =
        evaluator_->run(*model_, *ctx_, *objective_, eval_references_, step, progress_.epoch);
    agreed_signal_ = signal;
    progress_.evaluation_due = !report && step < total_steps_;  // the last one belongs to the end of every run
    if (!report) stop_for(agreed_signal_);
    for (const auto& observer : observers_) observer->on_eval(*report);
    history_.on_eval(*report);
    summary_.eval_seconds += report->seconds;
    summary_.final_eval_loss = report->loss;
    time_left_.evaluated(report->seconds);
    if (plateau_) plateau_->observe(report->loss);
    progress_.best.observe(report->step, report->loss);
}

/// The rank that leads answers, and the others wait for it.
void Trainer::answer_prompts(int64_t step) {
    if (!samples_ || !leads()) return;
    const comm::Busy answering(group_.get(), "answering training.sample_prompts");
    const auto start = std::chrono::steady_clock::now();
    samples_->answer(*model_, step, progress_.epoch, resume_ ? resume_->state.progress.step : 0);
    summary_.eval_seconds += seconds_since(start);
}

}  // namespace unsloth::train
