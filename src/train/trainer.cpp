#include "unsloth/train/trainer.h"

#include <chrono>
#include <cstring>

#include "unsloth/core/error.h"
#include "unsloth/core/interrupt.h"
#include "unsloth/core/log.h"
#include "unsloth/ops/device.h"
#include "unsloth/placement/loading.h"
#include "unsloth/report/sinks.h"
#include "unsloth/train/rollout_source.h"

namespace unsloth::train {

Trainer::Trainer(const config::LoadedConfig& loaded, Purpose purpose) : setup_(loaded, purpose), reporter_(setup_) {}

void Trainer::load() {
    state_ = std::make_unique<TrainingState>(setup_);
    saves_ = std::make_unique<SavePolicy>(setup_, *state_, reporter_);
    loop_ = std::make_unique<TrainingLoop>(setup_, *state_, *saves_, reporter_);
}

void Trainer::run() {
    try {
        setup_.telling_others([this] { run_together(); });
    } catch (const Interrupted& stopped) {
        reporter_.end(cat("SIG", ::sigabbrev_np(stopped.signal())), "");
        throw;
    } catch (const std::exception& failure) {
        const std::string text = failure.what();
        const auto* const known = dynamic_cast<const Error*>(&failure);
        const ErrorId id = known != nullptr ? known->id() : ErrorId("library.failed");
        reporter_.end("error", text.substr(0, text.find('\n')), std::string(id.name()));
        throw;
    }
}

std::unique_ptr<StepSource> Trainer::make_source() {
    if (setup_.rollout_order()) return std::make_unique<RolloutSource>(setup_, *state_);
    return std::make_unique<RowSource>(setup_.loader(), setup_.total_steps());
}

void Trainer::run_together() {
    reporter_.banner();
    const config::Config& config = setup_.config();
    if (const std::filesystem::path trace = std::filesystem::path(config.logging.profile).parent_path();
        !trace.empty() && !std::filesystem::is_directory(trace))
        throw Error("option.invalid-value", cat("logging.profile: there is no folder ", trace.string()),
                    "Create it, or name a file in one that exists.");
    if (setup_.leads()) report::require_sinks(config, config.training.output_dir, ops::pci_address(setup_.device()));
    if (config.training.max_steps == 0) {
        placement::require_memory(setup_.plan(), setup_.budget());
        if (setup_.leads() && config.logging.progress == config::ProgressStyle::json) reporter_.print_plan();
        log::info("max_steps 0: everything is valid and planned; nothing was trained");
        return;
    }
    std::optional<comm::LongOperation> starting;
    starting.emplace(setup_.group(), "loading the model");
    const auto start = std::chrono::steady_clock::now();
    load();
    saves_->require_same_values();
    if (setup_.leads()) saves_->begin_folder();
    reporter_.begin(*state_, seconds_since(start));
    starting.reset();
    const std::unique_ptr<StepSource> source = make_source();
    if (loop_->run(*source)) {
        saves_->finish();
        return reporter_.finish();
    }
    if (!saves_->pause())
        throw Error("disk.cannot-write",
                    cat("the checkpoint at training.stop_at_step ", setup_.last_step(),
                        " was not written: the warning above says why"),
                    "Make room in training.output_dir, and start the run again: it repeats what was not saved.");
    reporter_.stopped();
}

}  // namespace unsloth::train
