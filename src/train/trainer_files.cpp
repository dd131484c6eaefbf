// The trainer's dealings with its output folder: taking it, going on from a checkpoint in it, saving into it.
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "train/gathered_values.h"
#include "train/output_folder.h"
#include "unsloth/config/load.h"
#include "unsloth/core/error.h"
#include "unsloth/core/interrupt.h"
#include "unsloth/core/log.h"
#include "unsloth/core/path_advice.h"
#include "unsloth/formats/base_mark.h"
#include "unsloth/formats/checkpoint_folder.h"
#include "unsloth/placement/agreement.h"
#include "unsloth/train/trainer.h"

namespace unsloth::train {
namespace {

namespace fs = std::filesystem;

}  // namespace

/// The state of the checkpoint that the run goes on from, to the last bit.
void Trainer::restore() {
    const formats::RunState& saved = setup_.resume()->state;
    if (saved.parameters != layout_fingerprint(model_->trained_by_all(), config().training.optim))
        throw usage_error(cat("the trained parameters are not laid out as in ", setup_.resume()->folder.string()),
                          "Use the model, lora and optim options of its run_config.json.");
    load_values(setup_.resume()->folder);
    progress_ = saved.progress;
    stepper_->restore(progress_.optimizer);
    if (plateau_ && progress_.plateau) plateau_->restore(*progress_.plateau);
    history_.rows = formats::read_trainer_state(setup_.resume()->folder).log_history;
    log::info("goes on from ", setup_.resume()->folder.string(), ", after step ", progress_.step);
    if (saved.cpu_threads != 0 && setup_.cpu_threads() != 0 && saved.cpu_threads != setup_.cpu_threads())
        log::warning("changed since the checkpoint: ", saved.cpu_threads, " CPU threads until now, ",
                     setup_.cpu_threads(),
                     " from here on: products are summed in another order, and losses equal those of an uninterrupted "
                     "run to rounding alone (OMP_NUM_THREADS=",
                     saved.cpu_threads, " keeps their bits)");
}

/// What a checkpoint holds of the parameters, to the last bit.
void Trainer::load_values(const fs::path& checkpoint) {
    weights::Parameters& parameters = *model_->parameters();
    if (!full()) restore_adapter(checkpoint, parameters);
    restore_optimizer(checkpoint, model_->trained_by_all(), parameters, config().training.optim,
                      /*with_values=*/full());
    model_->parameters_changed();
}

/// Where the best evaluation's checkpoint lies, or should: in this run's folder, or in that which it went on from.
fs::path Trainer::best_checkpoint() const {
    const std::string name = cat("checkpoint-", progress_.best.step);
    const fs::path own = fs::path(config().training.output_dir) / name;
    const bool is_old = setup_.resume() && progress_.best.step <= setup_.resume()->state.progress.step;
    return is_old && !fs::exists(own) ? setup_.resume()->folder.parent_path() / name : own;
}

/// The best evaluation's values take the last step's place, on the ranks that the result is made of.
void Trainer::load_best() {
    if (!config().training.load_best_model_at_end || !progress_.best.value) return;
    if (progress_.best.step == progress_.step) return;
    const weights::Holding& holding = model_->parameters()->holding();
    const bool alone = holding.holds_all() && !holding.has_copies();
    if (alone && !leads()) return;
    const comm::Busy loading(setup_.group(), "loading the best evaluation's checkpoint");
    fs::path folder = best_checkpoint();
    if (leads())
        if (const auto damage = formats::find_damage_of_own(folder)) {
            log::warning(config().training.output_dir, " gets the last step's values: ", folder.string(),
                         ", of the best evaluation, cannot be loaded: ", *damage);
            folder.clear();
        }
    if (!alone && setup_.group())
        folder = setup_.group()->gather(folder.string(), "the checkpoint of the best evaluation")[0];
    if (folder.empty()) return;
    load_values(folder);
    log::info("the result is that of step ", progress_.best.step, ", whose ", config::best_metric(config().training),
              " was the best: ", *progress_.best.value, " (training.load_best_model_at_end)");
}

bool Trainer::save_time_has_come() const {
    const double minutes = config().training.save_minutes;
    return minutes > 0 && std::chrono::steady_clock::now() - last_save_ >= std::chrono::duration<double>(60 * minutes);
}

/// The state after the last step whose result was read; nothing may be under way.
void Trainer::checkpoint() {
    last_save_ = std::chrono::steady_clock::now();
    agreed_save_ = false;
    require_same_values();
    const comm::Busy saving(saver_ ? setup_.group() : nullptr, cat("saving checkpoint-", progress_.step));
    if (std::exchange(saved_step_, progress_.step) == progress_.step) return;
    const auto agree = [this](const std::string& folder) {
        return setup_.group()->gather(folder, "the checkpoint's folder")[0];
    };
    const bool several = state_part().count() > 1;
    if (saver_)
        several ? saver_->checkpoint(moment(), agree) : saver_->checkpoint(moment());
    else if (several)
        agree("");
}

/// A checkpoint between two steps: training stands still until the state was copied.
void Trainer::save_while_training() {
    const auto start = std::chrono::steady_clock::now();
    checkpoint();
    stepper_->start_clock();
    const double seconds = seconds_since(start);
    summary_.save_seconds += seconds;
    time_left_.saved(seconds);
}

/// Ranks that trained apart without a word must not leave it in a checkpoint: nothing is saved.
void Trainer::require_same_values() {
    if (!setup_.group() || compared_step_ == progress_.step) return;
    if (model_->parameters()->share().size > 1 && model_->parameters()->holding().has_copies()) return;  // no two have
    placement::require_equal_hashes(*setup_.group(), placement::values_hash(model_->parameters()->values_P),
                                    progress_.step, model_->pipeline().stage().size);
    compared_step_ = progress_.step;
}

/// Waits for what the saver writes; whether it is complete.
bool Trainer::finish_saving() {
    const comm::Busy saving(saver_ ? setup_.group() : nullptr, cat("saving checkpoint-", progress_.step));
    return !saver_ || saver_->wait();
}

void Trainer::stop_for(int signal) {
    const auto start = std::chrono::steady_clock::now();
    checkpoint();
    save_result();
    const bool whole = finish_saving();
    summary_.save_seconds += seconds_since(start);
    if (setup_.group()) setup_.group()->barrier("the end of the interrupted run");
    throw Interrupted(
        signal,
        cat("stopped after step ", progress_.step, " of ", setup_.total_steps(), "; ", full() ? "model" : "adapter",
            " saved in ", config().training.output_dir,
            whole ? cat(", and checkpoint-", progress_.step, " to go on from (--resume_from_checkpoint auto)") : ""));
}

StatePart Trainer::state_part() const {
    return {model_->pipeline().stage(), model_->parameters()->share()};
}

RunFiles Trainer::run_files() const {
    RunFiles files;
    files.output_dir = config().training.output_dir;
    files.table = &model_->trained_by_all();
    if (!full()) files.lora = *setup_.plan().lora();
    files.base = config().model.path;
    files.rope_scaling = setup_.opened().rope_scaling;
    files.stand_ins = setup_.opened().file->stand_in_tensors();
    if (!full()) files.base_mark = formats::base_mark(*setup_.opened().file);
    files.spec = setup_.opened().file->spec;
    files.spec.dtype = setup_.saved_dtype();
    files.model_folder = setup_.opened().file->checkpoint.folder();
    files.tokenizer_files = setup_.opened().tokenizer_files();
    files.tokenizer_folder = setup_.opened().tokenizer_folder;
    files.config = config::config_to_json(setup_.effective_config());
    if (const spec::KernelTable& kernels = *setup_.plan().request().kernels; !kernels.choices.empty())
        files.kernels = spec::kernels_text(kernels);
    files.replaces = setup_.replaces();
    files.save_total_limit = config().training.save_total_limit;
    files.part = state_part();
    files.ranks = setup_.group() ? setup_.group()->size() : 1;
    files.holds_all = model_->parameters()->holds_all();
    files.in_place = model_->parameters()->holding().on_host;
    files.patience = std::chrono::seconds(config().distributed.ddp_timeout);
    return files;
}

RunMoment Trainer::moment() const {
    const config::TrainingOptions& t = config().training;
    RunMoment moment;
    formats::TrainerState& trainer = moment.trainer;
    trainer.epoch = progress_.epoch;
    trainer.eval_steps = t.eval_steps;
    trainer.global_step = progress_.step;
    trainer.log_history = history_.rows;
    trainer.logging_steps = t.logging_steps;
    trainer.max_steps = setup_.total_steps();
    trainer.num_input_tokens_seen = progress_.seen_tokens;
    trainer.num_train_epochs = t.num_train_epochs;
    trainer.save_steps = t.save_steps;
    trainer.train_batch_size = t.per_device_train_batch_size;
    if (progress_.best.value) {
        trainer.best_metric = progress_.best.value;
        trainer.best_global_step = progress_.best.step;
        if (t.load_best_model_at_end) trainer.best_model_checkpoint = best_checkpoint().string();
    }
    formats::RunState& run = moment.run;
    run.progress = progress_;
    run.progress.optimizer = stepper_->state();
    if (plateau_) run.progress.plateau = plateau_->state();
    run.per_device_train_batch_size = t.per_device_train_batch_size;
    run.gradient_accumulation_steps = t.gradient_accumulation_steps;
    run.world_size = setup_.data_ranks();
    run.cpu_threads = setup_.cpu_threads();
    run.data = setup_.data_fingerprint();
    run.parameters = layout_fingerprint(model_->trained_by_all(), t.optim);
    return moment;
}

void Trainer::save_result() {
    require_same_values();
    const comm::Busy saving(saver_ ? setup_.group() : nullptr, "saving the result");
    const weights::Parameters& parameters = *model_->parameters();
    const auto write = [this](const ReadValues& values) { saver_->result(moment().trainer, values); };
    if (!parameters.holds_all())
        with_gathered_values(setup_.group()->all(), model_->trained_by_all(), state_part(), parameters, setup_.device(),
                             write);
    else if (leads())
        write(values_in(parameters.values_P));
}

}  // namespace unsloth::train
