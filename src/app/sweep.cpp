// `unsloth-train sweep`: trials of several settings, of which the worse half is dropped at each comparison. A trial is
// an ordinary run of the whole schedule that stops at training.stop_at_step and resumes later, so that it equals a run
// alone. Each part of it has a process of its own.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <limits>
#include <utility>

#include "app/commands.h"
#include "app/sweep/axes.h"
#include "app/sweep/halving.h"
#include "app/sweep/sweep_folder.h"
#include "app/sweep/trial_process.h"
#include "unsloth/config/auto_values.h"
#include "unsloth/config/load.h"
#include "unsloth/core/error.h"
#include "unsloth/core/interrupt.h"
#include "unsloth/core/log.h"
#include "unsloth/core/shell_word.h"
#include "unsloth/formats/checkpoint.h"
#include "unsloth/formats/hf_config.h"
#include "unsloth/report/run.h"

namespace unsloth::app {
namespace {

namespace fs = std::filesystem;

constexpr const char* rate_option = "training.learning_rate";

/// What a sweep decides itself.
void refuse_own_options(const Config& config) {
    const config::TrainingOptions& t = config.training;
    if (t.stop_at_step > 0)
        throw Error("option.conflict", "sweep stops its trials itself, and training.stop_at_step is given",
                    "Leave stop_at_step out.");
    if (t.max_steps == 0)
        throw Error("option.conflict", "sweep trains, and training.max_steps is 0",
                    "Check one setting with unsloth-train run.json --max_steps 0.");
    if (const std::string from = t.resume_from_checkpoint.value_or("false"); from != "false" && from != "auto")
        throw Error("option.conflict", "training.resume_from_checkpoint cannot be combined with sweep",
                    "The same command continues an interrupted sweep. model.adapter_name_or_path begins all trials "
                    "with an adapter.");
    if (config.logging.metrics_file.empty())
        throw Error("option.conflict", "sweep compares trials by their logging.metrics_file, which is turned off",
                    "Leave metrics_file out.");
}

/// The options that all trials share; other values make another sweep.
std::string common_options(const CommandLine& line) {
    Config config;
    OptionSet options;
    config::declare_options(options, config);
    config = line.loaded.config;  // the options are bound to it
    Json common = Json::object();
    for (const Option& option : options.options()) {
        const std::string name = option.full_name();
        const bool swept = std::any_of(line.sweep.axes.begin(), line.sweep.axes.end(),
                                       [&](const auto& axis) { return axis.first == name; });
        if (!swept && option.resuming != config::OnResume::mutable_) common[name] = option.get();
    }
    if (line.sweep.find_lr) common.erase(rate_option), common["sweep.steps"] = line.sweep.steps;
    return common.dump();
}

/// Eight rates, each twice the one before. The rule's is the fourth: where it errs, small models want more.
std::vector<std::string> rates_around(const Config& config) {
    constexpr int first = -3, last = 4;
    const fs::path model = formats::resolve_model_path(config.model.path, formats::ModelFiles::all_but_weights);
    const config::LearningRateRule rule = config::learning_rate_rule(config, formats::read_model_spec(model));
    log::info("the rule of learning_rate auto: ", rule.reason);
    std::vector<std::string> rates;
    for (int power = first; power <= last; ++power) {
        char text[32];
        std::snprintf(text, sizeof text, "%.3g", std::min(1.0, std::ldexp(rule.rate, power)));
        if (std::find(rates.begin(), rates.end(), text) == rates.end()) rates.emplace_back(text);
    }
    return rates;
}

class Sweeper {
  public:
    explicit Sweeper(const CommandLine& line)
        : line_(line),
          config_(line.loaded.config),
          sweep_(planned()),
          folder_(line.sweep.find_lr ? fs::path(config_.training.output_dir) / "find_lr"
                                     : fs::path(config_.training.output_dir)) {
        require_steps(config_.training.max_steps);
        sweep_ = folder_.open(std::move(sweep_), config_.training.overwrite_output_dir);
    }

    void run() {
        if (sweep_.finished) {
            log::info(folder_.root().string(), " holds this sweep, finished");
            return tell();
        }
        folder_.save(sweep_);
        while (!sweep_.best) compare_next();
        if (sweep_.finds_rate) {
            for (const report::SweepTrial& trial : sweep_.trials) folder_.drop(trial.number);
        } else {
            finish_best();
        }
        sweep_.finished = true;
        folder_.save(sweep_);
        tell();
    }

  private:
    report::Sweep planned() const {
        report::Sweep sweep;
        sweep.finds_rate = line_.sweep.find_lr;
        sweep.metric = config::best_metric(config_.training);
        sweep.more_is_better = config::more_is_better(config_.training);
        SweepRequest request = line_.sweep;
        if (request.find_lr) request.axes = {{rate_option, rates_around(config_)}};
        for (auto& options : combinations(request))
            sweep.trials.push_back({static_cast<int>(sweep.trials.size()) + 1, std::move(options), {}});
        sweep.shares = request.find_lr ? std::vector<double>{1} : halving_shares(sweep.trials.size());
        sweep.options = common_options(line_);
        for (const report::SweepTrial& trial : sweep.trials) (void)parse_command_line(run_alone(trial));
        return sweep;
    }

    /// The arguments of a run alone with a trial's options.
    std::vector<std::string> run_alone(const report::SweepTrial& trial) const {
        std::vector<std::string> arguments = {"train"};
        arguments.insert(arguments.end(), line_.sweep.arguments.begin(), line_.sweep.arguments.end());
        for (const auto& [name, value] : trial.options) arguments.insert(arguments.end(), {"--" + name, value});
        if (line_.sweep.find_lr)
            arguments.insert(arguments.end(), {"--training.max_steps", std::to_string(line_.sweep.steps)});
        return arguments;
    }

    /// So that no two comparisons fall on one step.
    void require_steps(int64_t total) const {
        if (total <= 0 || sweep_.finds_rate) return;
        const double first = sweep_.shares.front() * static_cast<double>(total);
        if (first >= 1) return;
        throw Error("sweep.too-few-steps",
                    cat("the run has ", total, total == 1 ? " step" : " steps", ", and a sweep of ",
                        sweep_.trials.size(), " settings needs ", std::lround(1 / sweep_.shares.front())),
                    "Take fewer settings, or more steps (training.max_steps, training.num_train_epochs).");
    }

    std::string name_of(const report::SweepTrial& trial) const {
        return cat("trial ", trial.number, " of ", sweep_.trials.size(), " (", trial.words(), ")");
    }

    /// Runs the trials that are left up to the next comparison, and drops the worse half.
    void compare_next() {
        std::vector<report::SweepTrial*> left;
        for (report::SweepTrial& trial : sweep_.trials)
            if (trial.alive()) left.push_back(&trial);
        std::size_t rung = sweep_.shares.size();
        for (const report::SweepTrial* trial : left) {
            const bool waits = !trial->scores.empty() && !trial->scores.back().kept;
            rung = std::min(rung, trial->scores.size() - (waits ? 1 : 0));
        }
        std::vector<double> values;
        for (report::SweepTrial* trial : left) {
            if (trial->scores.size() == rung) train_to(*trial, rung, trial_arguments(*trial, rung));
            values.push_back(trial->scores.back().value);
        }
        const std::vector<std::size_t> kept = kept_places(values, sweep_.more_is_better);
        if (kept.empty())
            throw Error(
                "sweep.all-diverged", cat("no trial has a finite ", sweep_.metric),
                cat("Sweep lower learning rates, or look at ", folder_.log(left.front()->number).string(), "."));
        for (std::size_t i = 0; i < left.size(); ++i)
            left[i]->scores.back().kept = std::find(kept.begin(), kept.end(), i) != kept.end();
        if (sweep_.finds_rate) {
            recommend(left, values);
        } else if (kept.size() == 1) {
            choose(*left[kept.front()]);
        }
        folder_.save(sweep_);  // before anything is removed: a repeated command must not need it
        for (const report::SweepTrial* trial : left)
            if (!trial->alive()) folder_.drop(trial->number);
        if (!sweep_.best) log::info("compared:\n", report::sweep_table(sweep_));
    }

    std::vector<std::string> trial_arguments(const report::SweepTrial& trial, std::size_t rung) const {
        std::vector<std::string> arguments = run_alone(trial);
        arguments.insert(arguments.end(), {"--training.output_dir", folder_.trial(trial.number).string(),
                                           "--training.push_to_hub", "false"});
        if (rung + 1 < sweep_.shares.size()) {
            char share[32];
            std::snprintf(share, sizeof share, "%.17g", sweep_.shares[rung]);
            arguments.insert(arguments.end(), {"--training.stop_at_step", share});
        }
        return arguments;
    }

    /// Adds the trial's score at the comparison.
    void train_to(report::SweepTrial& trial, std::size_t rung, std::vector<std::string> arguments) {
        const bool last = rung + 1 == sweep_.shares.size() && !sweep_.finds_rate;
        const fs::path run = last ? folder_.root() : folder_.trial(trial.number);
        arguments.insert(arguments.end(),
                         {"--training.resume_from_checkpoint", "auto", "--training.overwrite_output_dir", "false"});
        if (line_.sweep.nproc_per_node > 1)
            arguments.insert(arguments.begin(),
                             {"launch", "--nproc_per_node", std::to_string(line_.sweep.nproc_per_node), "--"});
        log::info(name_of(trial), " trains to ",
                  sweep_.total_steps > 0 ? cat("step ", sweep_.step_of(rung), " of ", sweep_.total_steps)
                  : sweep_.finds_rate    ? cat("step ", line_.sweep.steps)
                                         : cat("1/", std::lround(1 / sweep_.shares[rung]), " of the steps"),
                  last ? "" : cat("; its output is in ", folder_.log(trial.number).string()));
        const auto start = std::chrono::steady_clock::now();
        const TrialEnd end = run_trial_process(arguments, last ? fs::path() : folder_.log(trial.number));
        const double value = value_of(trial, run, end);
        if (sweep_.total_steps == 0) {
            sweep_.total_steps = report::read_run_facts(run).total_steps;
            require_steps(sweep_.total_steps);
        }
        const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
        trial.scores.push_back({sweep_.step_of(rung), value, seconds.count(), {}});
        if (last) trial.scores.back().kept = true;
        folder_.save(sweep_);
        char text[64];
        std::snprintf(text, sizeof text, " %.4f in %.1f s", value, seconds.count());
        log::info(name_of(trial), ": ", sweep_.metric, std::isfinite(value) ? text : " diverged");
    }

    /// NaN: it diverged. What else ends a trial ends the sweep.
    double value_of(const report::SweepTrial& trial, const fs::path& run, const TrialEnd& end) const {
        if (const int signal = interrupt_requested(); signal != 0 && end.code != 0)
            throw Interrupted(signal, cat("stopped in ", name_of(trial), "; the same command continues the sweep"));
        if (end.code == 0) return last_evaluation(run / config_.logging.metrics_file, sweep_.metric);
        std::string why = end.said;
        std::error_code ignored;
        if (fs::exists(run / config_.logging.metrics_file, ignored)) {
            const auto ending = report::read_run(run).ending;
            if (ending && ending->error_id == "numerics.not-finite") return std::numeric_limits<double>::quiet_NaN();
            if (ending && !ending->error.empty()) why = ending->error;
        }
        throw Error("sweep.trial-failed",
                    cat(name_of(trial), " ended with exit code ", end.code, why.empty() ? "" : ": ", why),
                    cat("Remove the cause, and run the same command again. The trial's output is in ",
                        folder_.log(trial.number).string(), "."));
    }

    void choose(const report::SweepTrial& trial) {
        sweep_.best = trial.number;
        sweep_.command = "unsloth-train";
        for (const std::string& word : run_alone(trial)) sweep_.command += " " + shell_word(word);
    }

    /// Of the rates that were tried the best one, and how much is known about it.
    void recommend(const std::vector<report::SweepTrial*>& trials, const std::vector<double>& values) {
        std::size_t best = values.size();
        for (std::size_t i = 0; i < values.size(); ++i) {
            if (!std::isfinite(values[i])) continue;
            if (best == values.size() || (sweep_.more_is_better ? values[i] > values[best] : values[i] < values[best]))
                best = i;
        }
        constexpr double close = 0.01;
        std::string near;
        for (std::size_t i = 0; i < values.size(); ++i)
            if (i != best && std::abs(values[i] - values[best]) <= close * std::abs(values[best]))
                near += cat(near.empty() ? "" : ", ", trials[i]->options.front().second);
        sweep_.best = trials[best]->number;
        sweep_.reason =
            cat(sweep_.metric, " is best at ", trials[best]->options.front().second, " after ", sweep_.total_steps,
                " steps; ", near.empty() ? "no other rate is within 1 %" : "within 1 %: " + near);
        if (best == 0 || best + 1 == values.size())
            sweep_.reason +=
                cat(". It is the ", best == 0 ? "lowest" : "highest", " rate that was tried, so a still ",
                    best == 0 ? "lower" : "higher", " one may be better: sweep some with --learning_rate A,B,C");
    }

    /// The best trial becomes the folder's run, and takes the steps that are left.
    void finish_best() {
        report::SweepTrial& trial = sweep_.trials.at(static_cast<std::size_t>(*sweep_.best) - 1);
        folder_.promote(trial.number);
        if (trial.scores.back().step < sweep_.total_steps) train_to(trial, sweep_.shares.size() - 1, run_alone(trial));
        if (trial.diverged())
            throw Error("sweep.all-diverged",
                        cat(name_of(trial), ", the best one so far, diverged after half its steps"),
                        "Sweep lower learning rates, in another training.output_dir.");
    }

    void tell() const {
        const report::SweepTrial& trial = *sweep_.winner();
        print(report::sweep_table(sweep_));
        log::info("best: ", trial.words(), sweep_.reason.empty() ? "" : "; ", sweep_.reason);
        if (sweep_.finds_rate) return;
        double own = 0;
        for (const report::SweepScore& score : trial.scores) own += score.seconds;
        char text[128];
        std::snprintf(text, sizeof text, "all trials took %.1f s, %.2f times as long as the best one's %.1f s",
                      sweep_.seconds(), sweep_.seconds() / own, own);
        log::info(text);
        log::info("the best run is in ", folder_.root().string(), "; alone it is: ", sweep_.command);
    }

    const CommandLine& line_;
    const Config& config_;
    report::Sweep sweep_;
    SweepFolder folder_;
};

}  // namespace

void run_sweep(const CommandLine& line) {
    install_interrupt_handlers("Stopping the trial and saving");
    refuse_own_options(line.loaded.config);
    Sweeper(line).run();
}

}  // namespace unsloth::app
