#include "unsloth/train/training_loop.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "train/bad_step.h"
#include "train/row_file.h"
#include "unsloth/core/error.h"
#include "unsloth/core/interrupt.h"
#include "unsloth/core/log.h"
#include "unsloth/ops/profiler.h"

namespace unsloth::train {

TrainingLoop::TrainingLoop(const RunSetup& setup, TrainingState& state, SavePolicy& saves, RunReporter& reporter)
    : setup_(setup), state_(state), saves_(saves), reporter_(reporter) {}

TrainingLoop::~TrainingLoop() = default;

bool TrainingLoop::run(StepSource& source) {
    saves_.set_source(source);
    const int64_t begin = state_.progress.step;
    if (state_.progress.evaluation_due || (config().training.eval_on_start && begin == 0)) {
        maybe_evaluate(begin);
        answer_prompts(begin);
    }
    if (!stops_early()) take_steps(source);  // a resumed run that had stopped early has as little to gain
    if (stops_early()) return tell_early_stop(), true;
    if (setup_.last_step() < setup_.total_steps()) {
        const int64_t step = state_.progress.step;  // a resumed run may be beyond the last one
        if (step > 0 && !reporter_.was_evaluated(step)) maybe_evaluate(step);
        return false;
    }
    const auto& resume = setup_.resume();
    if (resume && evaluates_as_before(config(), *resume) && reporter_.was_evaluated(setup_.total_steps())) {
        if (leads() && setup_.evaluated_tokens() > 0)
            log::info("step ", setup_.total_steps(), " was evaluated before this run resumed");
        return true;
    }
    maybe_evaluate(setup_.total_steps());
    answer_prompts(setup_.total_steps());
    return true;
}

/// The evaluation after the last step is not the loop's.
bool TrainingLoop::evaluates_after(int64_t step) const {
    return setup_.intervals().eval.falls_on(step) && step < setup_.total_steps();
}

void TrainingLoop::take_steps(StepSource& source) {
    const config::TrainingOptions& t = config().training;
    saves_.start_clock();
    state_.stepper->start_clock();
    const auto drain = [&](bool must) {
        while (const std::optional<StepResult> result = state_.stepper->take(must)) take_in(*result);
    };
    for (int64_t step = state_.progress.step + 1; step <= setup_.last_step(); ++step) {
        data::StepBatch batch;
        try {
            batch = source.next(step);
        } catch (const StoppedBySignal& stopped) {
            drain(true);
            saves_.stop_for(stopped.signal);
        }
        const bool dropped = !issue(batch, step);
        drain(false);
        // Ranks stop, and save, together: at the step whose result says that one was sent a signal, or asks for it.
        const int signal = setup_.group() ? agreed_signal_ : interrupt_requested();
        const bool evaluates = evaluates_after(step) && !dropped;
        bool saves = saves_.due(step);
        if (signal == 0 && !evaluates && !saves && !profiles(step)) continue;
        drain(true);
        if (evaluates) maybe_evaluate(step);
        if (evaluates && signal == 0 && agreed_signal_ == 0) answer_prompts(step);
        if (signal != 0) saves_.stop_for(signal);
        if (evaluates && stops_early()) return;
        saves = saves || (evaluates && t.load_best_model_at_end && state_.progress.best.step == step);
        if (saves) saves_.save_while_training();
        state_.stepper->start_clock();
    }
    drain(true);
}

/// Whether this process looks into the step's time, which takes a while itself.
bool TrainingLoop::profiles(int64_t step) const {
    constexpr int64_t profiled_step = 3;  // the first two find algorithms and fill caches
    return leads() && step == std::min(profiled_step, setup_.total_steps()) && !config().logging.profile.empty();
}

/// Issues a step; false when a signal came and the step would have taken longer than there is time.
bool TrainingLoop::issue(const data::StepBatch& batch, int64_t step) {
    const double rate = state_.learning_rate(step), grace = config().training.save_grace_seconds;
    if (profiles(step)) {
        ops::profile(*state_.ctx, config().logging.profile, [&] { state_.stepper->issue(batch, step, rate); });
        return true;
    }
    IssueOptions options{.save_due = leads() && saves_.save_time_has_come(),
                         .layer_norms = config().logging.layer_norms && reporter_.is_logged(step),
                         .router_loads = reporter_.is_logged(step)};
    // A short step is done sooner than it could be dropped.
    if (setup_.group() == nullptr && 2 * step_seconds_ > grace)
        options.abandon = [&](double left) { return interrupt_requested() != 0 && left * step_seconds_ > grace; };
    return state_.stepper->issue(batch, step, rate, options);
}

void TrainingLoop::take_in(const StepResult& result) {
    agreed_signal_ = result.signal;
    saves_.agree(result.save_due);
    const bool spike = result.outcome.skipped == skipped_spike, bad = result.outcome.skipped != 0 && !spike;
    // The loss is of the forward pass, which loss scaling does not touch: no other scale would mend it.
    const bool overflowed = config().model.dtype == spec::DType::f16 && std::isfinite(result.outcome.loss);
    if (bad && !overflowed) {
        saves_.keep_result();
        throw stop_error(setup_, *state_.model, result);
    }
    if (spike) warn_of_spike(setup_, *state_.model, result);
    if (bad) {
        log::warning("step ", result.step, ": gradients overflowed at loss scale ", result.loss_scale,
                     "; the update was skipped, the scale is now ", state_.stepper->loss_scale());
    }
    step_seconds_ = result.seconds;
    if (!started_) comm::tell_launcher(setup_.environment(), "step");
    started_ = true;
    state_.progress.step = result.step;
    state_.progress.seen_tokens += result.tokens;
    state_.progress.epoch = result.epoch;
    reporter_.step(result, state_.progress.unlogged);
    if (setup_.groups() != nullptr) watch_rollouts(result);
}

void TrainingLoop::watch_rollouts(const StepResult& result) {
    const bool replays = config().grpo.replay_rollouts.has_value();
    try {
        for (const std::string& warning : rollouts_.observe(result.step, result.figures, replays))
            if (leads()) log::warning(warning);
    } catch (const Error&) {
        saves_.keep_result();
        throw;
    }
}

}  // namespace unsloth::train
