// What the trainer looks at between steps: the evaluation's rows, the sampled prompts; and single steps, for tools.
#include <algorithm>
#include <cmath>

#include "train/answers.h"
#include "train/row_file.h"
#include "unsloth/comm/group.h"
#include "unsloth/core/error.h"
#include "unsloth/core/log.h"
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
    auto [report, signal] = evaluator_->run(*model_, *ctx_, *objective_, eval_references_, step, progress_.epoch);
    if (report && config().training.objective == config::Objective::sft)
        report->figures.emplace_back("perplexity", std::exp(report->loss));
    if (report && answers_ && !judge_answers(*report, signal)) report.reset();
    agreed_signal_ = signal;
    progress_.evaluation_due = !report && step < total_steps_;  // the last one belongs to the end of every run
    if (!report) stop_for(agreed_signal_);
    if (!std::isfinite(report->loss) && leads())
        log::warning("the loss of the evaluation at step ", step, " is not finite. ", overflow_advice);
    for (const auto& observer : observers_) observer->on_eval(*report);
    history_.on_eval(*report);
    summary_.eval_seconds += report->seconds;
    summary_.final_eval_loss = report->loss;
    time_left_.evaluated(report->seconds);
    if (plateau_) plateau_->observe(report->loss);
    if (step > 0) judge(*report);  // what was not trained yet is no result
}

/// Whether an evaluation is the best so far, and how long it is since one was clearly better.
void Trainer::judge(const EvalReport& report) {
    const config::TrainingOptions& t = config().training;
    const std::string metric = config::best_metric(t);
    const objective::Figures values = evaluated_values(report);
    const auto found =
        std::find_if(values.begin(), values.end(), [&](const auto& value) { return value.first == metric; });
    if (found == values.end()) {
        std::string all;
        for (const auto& [name, value] : values) all += (all.empty() ? "" : ", ") + name;
        throw Error("option.invalid-value", cat("training.metric_for_best_model: the evaluation has no ", metric),
                    cat("It has ", all, "."));
    }
    if (progress_.best.observe(report.step, found->second, config::more_is_better(t)) > t.early_stopping_threshold)
        progress_.worse_evaluations = 0;
    else
        ++progress_.worse_evaluations;
}

bool Trainer::stops_early() const {
    const int64_t patience = config().training.early_stopping_patience;
    return patience > 0 && progress_.worse_evaluations >= patience;
}

void Trainer::tell_early_stop() const {
    log::info("stops early, after step ", progress_.step, " of ", total_steps_, ": in ", progress_.worse_evaluations,
              " evaluations ", config::best_metric(config().training), " was not better than ",
              progress_.best.value.value_or(std::nan("")), " of step ", progress_.best.step,
              " (training.early_stopping_patience)");
}

/// Adds what answers to the rows are worth, and keeps them; false: a signal asked to stop before all were there.
bool Trainer::judge_answers(EvalReport& report, int& signal) {
    const auto start = std::chrono::steady_clock::now();
    auto judged = answers_->run(*model_, *ctx_, group_.get(), signal);
    if (!judged) return false;
    report.figures.insert(report.figures.end(), judged->figures.begin(), judged->figures.end());
    report.seconds += seconds_since(start);
    if (!leads()) return true;
    if (!answer_rows_)
        answer_rows_ = std::make_unique<RowFile>(config().training.output_dir, "answers.jsonl",
                                                 resume_ ? resume_->state.progress.step : 0);
    for (const nlohmann::ordered_json& row : judged->rows) {
        nlohmann::ordered_json kept{{"step", report.step}, {"epoch", report.epoch}};
        kept.update(row);
        answer_rows_->add(kept);
    }
    return true;
}

/// The rank that leads answers, and the others wait for it.
void Trainer::answer_prompts(int64_t step) {
    if (!samples_ || !leads()) return;
    const comm::Busy answering(group_.get(), "answering training.sample_prompts");
    const auto start = std::chrono::steady_clock::now();
    samples_->answer(*ctx_, *model_, step, progress_.epoch, resume_ ? resume_->state.progress.step : 0);
    summary_.eval_seconds += seconds_since(start);
}

}  // namespace unsloth::train
