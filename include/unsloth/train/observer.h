// What people and programs see of a run: the terminal, metrics.jsonl, trainer_state.json.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "unsloth/config/config.h"
#include "unsloth/formats/trainer_state.h"
#include "unsloth/objective/objective.h"
#include "unsloth/train/router_loads.h"
#include "unsloth/train/run_record.h"

namespace unsloth::train {

/// A logged step. All but `loss` is of this step alone.
struct StepReport {
    int64_t step = 0, total_steps = 0;
    double epoch = 0;
    double loss = 0;  ///< mean of the losses of the steps since the last logged one, as transformers' Trainer has it
    double grad_norm = 0, learning_rate = 0;
    int64_t tokens = 0, trained_tokens = 0;
    double tokens_per_second = 0, step_ms = 0, memory_gib = 0;
    double seconds_left = 0;  ///< of the run, with its evaluations and saves
    objective::Figures figures;
    std::optional<double> mfu;                                ///< model FLOPs of this rank over its GPU's rate
    std::optional<int64_t> skipped_steps;                     ///< so far, with training.skip_on_spike
    std::vector<std::pair<std::string, double>> layer_norms;  ///< StepResult's
    RouterLoads router_loads;                                 ///< StepResult's
    std::vector<double> rank_seconds;                         ///< StepResult's, where all are known
};

struct EvalReport {
    int64_t step = 0;
    double epoch = 0;
    std::optional<double> loss;  ///< nothing: of completions that were sampled
    int64_t tokens = 0;          ///< labels evaluated, or tokens of completions
    double seconds = 0;
    objective::Figures figures;
    std::vector<std::pair<std::string, double>> losses;            ///< {name, loss} of each of data.eval_files
    std::optional<formats::DecisionCalibration> calibration = {};  ///< of decisions
};

/// All that an evaluation found, as rows of metrics name it: eval_loss first, where there is one.
objective::Figures evaluated_values(const EvalReport& report);

class Observer {
  public:
    virtual ~Observer() = default;
    virtual void on_step(const StepReport& report) = 0;
    virtual void on_eval(const EvalReport& report) = 0;
    /// The last call: the run has ended, whatever the reason.
    virtual void on_summary(const RunSummary& /*summary*/) {}
};

/// The rows of metrics, to logging.metrics_file and to all that training.report_to names. The file has one JSON object
/// a line, written line by line; the last one is the summary. While the system refuses that (a full disk), lines wait,
/// with a warning. Of an existing file, the rows up to step `after_step` stay: those of a run that is resumed there.
/// Runtime Error when something cannot be made. `gpu`: its PCI address, or empty.
std::unique_ptr<Observer> make_metrics(const config::Config& config, int64_t after_step, const std::string& gpu);

/// A progress bar on a terminal (loss, lr, grad norm, tokens/s, the GPU's use and memory, time left); a plain log line
/// per report otherwise; with logging.progress json, an object a line on standard output. `gpu` as above.
std::unique_ptr<Observer> make_console(const config::Config& config, const std::string& gpu);

/// Collects log_history for trainer_state.json.
class HistoryObserver final : public Observer {
  public:
    void on_step(const StepReport& report) override;
    void on_eval(const EvalReport& report) override;
    std::vector<formats::TrainerLogRow> rows;
};

}  // namespace unsloth::train
