// What the loop looks at between steps: the evaluation's rows, the sampled prompts; and single steps, for tools.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "train/completion_rows.h"
#include "unsloth/comm/group.h"
#include "unsloth/core/error.h"
#include "unsloth/core/log.h"
#include "unsloth/rollouts/sampled_groups.h"
#include "unsloth/train/answers.h"
#include "unsloth/train/training_loop.h"

namespace unsloth::train {

StepResult TrainingLoop::take_step(const IssueOptions& options) {
    const int64_t step = state_.progress.step + 1;
    state_.stepper->issue(setup_.loader().step(step - 1), step, state_.learning_rate(step), options);
    StepResult result = *state_.stepper->take(/*must=*/true);
    state_.progress.step = step;
    state_.progress.epoch = result.epoch;
    if (state_.plateau && evaluates_after(step)) maybe_evaluate(step);
    return result;
}

/// The objective's loss over the evaluation's rows; nothing: a signal asked to stop before all were evaluated.
std::optional<EvalReport> TrainingLoop::evaluate_rows(int64_t step, int& signal) {
    auto [report, agreed] = setup_.evaluator()->run(*state_.model, *state_.ctx, *state_.objective,
                                                    state_.eval_references, step, state_.progress.epoch);
    signal = agreed;
    if (report && config().training.objective == config::Objective::sft)
        report->figures.emplace_back("perplexity", std::exp(*report->loss));
    if (report && setup_.answers() && !judge_answers(*report, signal)) report.reset();
    return report;
}

/// What completions of held-out prompts are worth; nothing likewise.
std::optional<EvalReport> TrainingLoop::evaluate_completions(int64_t step, int& signal) {
    const auto start = std::chrono::steady_clock::now();
    rollouts::Evaluation found;
    try {
        found = setup_.groups()->evaluation(step, state_.progress.epoch);
    } catch (const rollouts::GenerationStopped& stopped) {
        signal = stopped.signal;
        return std::nullopt;
    }
    EvalReport report{.step = step, .epoch = state_.progress.epoch};
    for (const rollouts::Group& group : found.groups.groups)
        for (const rollouts::GroupCompletion& one : group.completions)
            report.tokens += static_cast<int64_t>(one.ids.size());
    report.figures.assign(found.metrics.begin(), found.metrics.end());
    if (config().grpo.log_completions && leads()) {
        if (!completion_rows_)
            completion_rows_ = std::make_unique<RowFile>(config().training.output_dir, evaluated_completions_file,
                                                         std::min(setup_.first_step(), step - 1));
        add_completions(*completion_rows_, step, *setup_.groups(), found.groups, {}, found.sets);
    }
    report.seconds = seconds_since(start);
    return report;
}

void TrainingLoop::maybe_evaluate(int64_t step) {
    if (setup_.evaluated_tokens() == 0) return;
    int signal = 0;
    std::optional<EvalReport> report =
        setup_.evaluator() ? evaluate_rows(step, signal) : evaluate_completions(step, signal);
    agreed_signal_ = signal;
    state_.progress.evaluation_due =
        !report && step < setup_.total_steps();  // the last one belongs to the end of every run
    if (!report) saves_.stop_for(agreed_signal_);
    if (report->loss && !std::isfinite(*report->loss) && leads())
        log::warning("the loss of the evaluation at step ", step, " is not finite. ", session::overflow_advice);
    state_.calibration = report->calibration;
    state_.calibrated_step = step;
    reporter_.evaluation(*report);
    // A run that was not stopped here has no such evaluation, and must go the same way.
    if (step > 0 && step < setup_.total_steps() && !evaluates_after(step)) return;
    if (state_.plateau) state_.plateau->observe(*report->loss);
    if (step > 0) judge(*report);  // what was not trained yet is no result
}

/// Whether an evaluation is the best so far, and how long it is since one was clearly better.
void TrainingLoop::judge(const EvalReport& report) {
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
    if (state_.progress.best.observe(report.step, found->second, config::more_is_better(t)) >
        t.early_stopping_threshold)
        state_.progress.worse_evaluations = 0;
    else
        ++state_.progress.worse_evaluations;
}

bool TrainingLoop::stops_early() const {
    const int64_t patience = config().training.early_stopping_patience;
    return patience > 0 && state_.progress.worse_evaluations >= patience;
}

void TrainingLoop::tell_early_stop() const {
    log::info("stops early, after step ", state_.progress.step, " of ", setup_.total_steps(), ": in ",
              state_.progress.worse_evaluations, " evaluations ", config::best_metric(config().training),
              " was not better than ", state_.progress.best.value.value_or(std::nan("")), " of step ",
              state_.progress.best.step, " (training.early_stopping_patience)");
}

/// Adds what answers to the rows are worth, and keeps them; false: a signal asked to stop before all were there.
bool TrainingLoop::judge_answers(EvalReport& report, int& signal) {
    const auto start = std::chrono::steady_clock::now();
    auto judged = setup_.answers()->run(*state_.model, *state_.ctx, setup_.group(), signal);
    if (!judged) return false;
    report.figures.insert(report.figures.end(), judged->figures.begin(), judged->figures.end());
    report.seconds += seconds_since(start);
    if (!leads()) return true;
    if (!answer_rows_)
        answer_rows_ = std::make_unique<RowFile>(config().training.output_dir, "answers.jsonl",
                                                 std::min(setup_.first_step(), report.step - 1));
    for (const nlohmann::ordered_json& row : judged->rows) {
        nlohmann::ordered_json kept{{"step", report.step}, {"epoch", report.epoch}};
        kept.update(row);
        answer_rows_->add(kept);
    }
    return true;
}

/// The rank that leads answers, and the others wait for it.
void TrainingLoop::answer_prompts(int64_t step) {
    if (!setup_.samples() || !leads()) return;
    const comm::LongOperation answering(setup_.group(), "answering training.sample_prompts");
    const auto start = std::chrono::steady_clock::now();
    setup_.samples()->answer(*state_.ctx, *state_.model, step, state_.progress.epoch, setup_.first_step());
    reporter_.answered(seconds_since(start));
}

}  // namespace unsloth::train
