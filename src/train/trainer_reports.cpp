// What the trainer says of its steps, and of how the run ended.
#include <cmath>
#include <utility>

#include "unsloth/core/error.h"
#include "unsloth/core/log.h"
#include "unsloth/memory/plan.h"
#include "unsloth/spec/finite_sites.h"
#include "unsloth/train/trainer.h"

namespace unsloth::train {

void Trainer::report(const StepResult& result) {
    agreed_signal_ = result.signal;
    agreed_save_ = agreed_save_ || result.save_due;
    if (result.outcome.skipped != 0 && config().model.dtype != spec::DType::f16) stop_at_bad_step(result);
    if (result.outcome.skipped != 0) {
        log::warning("step ", result.step, ": gradients overflowed at loss scale ", result.loss_scale,
                     "; the update was skipped, the scale is now ", stepper_->loss_scale());
    }
    step_seconds_ = result.seconds;
    if (!started_) comm::tell_launcher(environment_, "step");
    started_ = true;
    progress_.step = result.step;
    progress_.seen_tokens += result.tokens;
    progress_.epoch = result.epoch;
    ++summary_.steps;
    summary_.tokens += result.tokens;
    summary_.trained_tokens += result.labels;
    summary_.train_seconds += result.seconds;
    time_left_.stepped(result.seconds, result.tokens);
    losses_.add(result.outcome.loss);
    progress_.unlogged.add(result.outcome.loss);
    if (const auto risen = loss_watch_.observe(result.step, result.outcome.loss); risen && leads())
        log::warning(*risen);
    const int64_t every = config().training.logging_steps;
    if (every <= 0 || (result.step % every != 0 && result.step != total_steps_)) return;
    StepReport report;
    report.step = result.step;
    report.total_steps = total_steps_;
    report.epoch = result.epoch;
    report.loss = progress_.unlogged.mean().value_or(result.outcome.loss);
    report.grad_norm = result.outcome.grad_norm;
    report.learning_rate = result.learning_rate;
    report.tokens = result.tokens;
    report.trained_tokens = result.labels;
    report.step_ms = 1000 * result.seconds;
    report.tokens_per_second = static_cast<double>(result.tokens) / result.seconds;
    report.memory_gib = peak_gib();
    report.seconds_left = time_left_.after(result.step);
    report.figures = result.figures;
    progress_.unlogged = {};
    summary_.final_loss = report.loss;
    for (const auto& observer : observers_) observer->on_step(report);
    history_.on_step(report);
}

double Trainer::peak_gib() const {
    const int64_t peak = device_.is_cuda() ? memory::peak_allocated_bytes(device_) : plan_->total_bytes();
    return static_cast<double>(peak) / (1 << 30);
}

/// Tells the observers how the run ended, and lets them go.
void Trainer::summarise(const std::string& exit_reason, const std::string& error) {
    const auto observers = std::exchange(observers_, {});
    try {
        summary_.exit_reason = exit_reason;
        summary_.error = error;
        summary_.global_step = progress_.step;
        summary_.epoch = progress_.epoch;
        summary_.seconds = seconds_since(begin_);
        summary_.train_loss = losses_.mean();
        summary_.best_eval_loss = progress_.best.loss;
        summary_.best_step = progress_.best.step;
        summary_.memory_gib = peak_gib();
        for (const auto& observer : observers) observer->on_summary(summary_);
    } catch (const std::exception& failure) {
        if (error.empty()) throw;
        log::warning("the summary was not written: ", failure.what());  // the run's own error says more
    }
}

void Trainer::stop_at_bad_step(const StepResult& result) {
    save_result();
    finish_saving();
    std::string rows;
    for (std::size_t i = 0; i < result.rows.size(); ++i)
        rows += cat(i ? ", " : "", i < 32 ? std::to_string(result.rows[i]) : "…");
    std::string where =
        cat("First seen at: ", model_->describe_site(result.outcome.first_bad_site), ". Rows of the step: ", rows);
    if (group_) {
        const uint32_t site = result.outcome.first_bad_site;
        const std::string own = site == spec::bad_elsewhere || site == spec::bad_gradient_norm
                                    ? ""
                                    : cat("Rank ", environment_.rank, ": ", where);
        std::string places;
        for (const std::string& text : group_->gather(own, "the place of a value that is not finite"))
            places += text.empty() ? "" : cat("\n  ", text);
        if (!places.empty()) where = places;
    }
    throw runtime_failure(
        cat("step ", result.step, ": the ", std::isfinite(result.outcome.loss) ? "gradient" : "loss",
            " is not finite. ", where, "\n  The update was skipped; the last good ", full() ? "model" : "adapter",
            " is in ", config().training.output_dir),
        "Look at those rows; lower learning_rate or max_grad_norm; float16 overflows where bfloat16 does not.");
}

}  // namespace unsloth::train
