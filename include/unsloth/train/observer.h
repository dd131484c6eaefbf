// What people and programs see of a run: the terminal, metrics.jsonl, trainer_state.json.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "unsloth/formats/trainer_state.h"

namespace unsloth::train {

struct StepReport {
    int64_t step = 0, total_steps = 0;
    double epoch = 0, loss = 0, grad_norm = 0, learning_rate = 0;
    int64_t tokens = 0, trained_tokens = 0;  ///< of this step
    double tokens_per_second = 0, step_ms = 0, memory_gib = 0;
};

struct EvalReport {
    int64_t step = 0;
    double epoch = 0, loss = 0;
    int64_t tokens = 0;  ///< labels evaluated
    double seconds = 0;
};

class Observer {
  public:
    virtual ~Observer() = default;
    virtual void on_step(const StepReport& report) = 0;
    virtual void on_eval(const EvalReport& report) = 0;
};

/// One JSON object a line, flushed line by line. Of an existing file, the rows up to step `after_step` stay: those of a
/// run that is resumed there.
std::unique_ptr<Observer> make_metrics_file(const std::filesystem::path& path, int64_t after_step);

/// A progress bar on a terminal (loss, lr, grad norm, tokens/s, time left); a plain log line per report otherwise.
std::unique_ptr<Observer> make_console(bool terminal);

/// Collects log_history for trainer_state.json.
class HistoryObserver final : public Observer {
  public:
    void on_step(const StepReport& report) override;
    void on_eval(const EvalReport& report) override;
    std::vector<TrainerLogRow> rows;
};

}  // namespace unsloth::train
