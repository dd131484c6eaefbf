#include "unsloth/train/save_policy.h"

#include <utility>

#include "train/gathered_values.h"
#include "train/output_folder.h"
#include "unsloth/config/load.h"
#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/interrupt.h"
#include "unsloth/core/log.h"
#include "unsloth/data/special_tokens.h"
#include "unsloth/formats/base_mark.h"
#include "unsloth/formats/checkpoint_folder.h"
#include "unsloth/formats/decision_calibration.h"
#include "unsloth/placement/agreement.h"
#include "unsloth/placement/kernels.h"
#include "unsloth/placement/parallel.h"

namespace unsloth::train {
namespace {

namespace fs = std::filesystem;

}  // namespace

SavePolicy::SavePolicy(const RunSetup& setup, TrainingState& state, RunReporter& reporter)
    : setup_(setup), state_(state), reporter_(reporter) {
    model::Model& model = *state_.model;
    if (placement::writes_part(setup_.mesh_shape(), model.parameters()->share(), setup_.environment().rank))
        saver_.emplace(run_files(), *state_.ctx, model.parameters()->saved(), model.parts().copies);
}

void SavePolicy::begin_folder() const {
    const fs::path folder = config().training.output_dir;
    if (setup_.replaces()) remove_state(folder);
    write_file_atomically(folder / "run_config.json", config::config_to_json(setup_.effective_config()));
    if (const spec::KernelTable& kernels = *setup_.plan().request().kernels; kernels.choices.empty()) {
        remove_or_warn(folder / placement::kernels_file);  // of the run that was there before
    } else {
        write_file_atomically(folder / placement::kernels_file, spec::kernels_text(kernels));
    }
}

/// Where the best evaluation's checkpoint is, or should be: in this run's folder, or in the one that it resumed from.
fs::path SavePolicy::best_checkpoint() const {
    const std::string name = cat("checkpoint-", state_.progress.best.step);
    const fs::path own = fs::path(config().training.output_dir) / name;
    const bool is_old = setup_.resume() && state_.progress.best.step <= setup_.resume()->state.progress.step;
    return is_old && !fs::exists(own) ? setup_.resume()->folder.parent_path() / name : own;
}

/// The best evaluation's values take the last step's place, on the ranks that the result is made of.
void SavePolicy::load_best() {
    if (!config().training.load_best_model_at_end || !state_.progress.best.value) return;
    if (state_.progress.best.step == state_.progress.step) return;
    const weights::ShardingPolicy& sharding = state_.model->parameters()->sharding();
    const bool alone = sharding.holds_all() && !sharding.has_copies();
    if (alone && !leads()) return;
    const comm::LongOperation loading(setup_.group(), "loading the best evaluation's checkpoint");
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
    state_.load_values(folder);
    loaded_ = folder;
    log::info("the result is that of step ", state_.progress.best.step, ", whose ",
              config::best_metric(config().training), " was the best: ", *state_.progress.best.value,
              " (training.load_best_model_at_end)");
}

/// decision_calibration.json of the values as they are; empty: no evaluation was of them.
std::string SavePolicy::calibration() const {
    const bool evaluated = state_.calibration && state_.calibrated_step == state_.progress.step;
    if (loaded_.empty() && evaluated) return formats::write_decision_calibration(*state_.calibration);
    fs::path folder = loaded_;
    if (folder.empty() && setup_.resume() && setup_.first_step() == state_.progress.step)
        folder = setup_.resume()->folder;  // no step was taken
    const fs::path file = folder / formats::decision_calibration_file;
    return !folder.empty() && fs::exists(file) ? read_file(file) : "";
}

/// What the result's decisions are scaled by, or why by nothing.
void SavePolicy::tell_calibration() const {
    const auto found = formats::read_decision_calibration(config().training.output_dir);
    if (!found)
        return log::info("no ", formats::decision_calibration_file, " was written: ",
                         setup_.evaluator() ? "no evaluation was of the result's values"
                                            : "there are no held-out rows (data.eval_file, data.val_size)");
    log::info(formats::decision_calibration_file, ": temperature ", found->temperature, ", fitted on ", found->rows,
              " held-out rows; log loss ", found->nll_before, " before and ", found->nll_after,
              " after, calibration error ", found->ece_before, " and ", found->ece_after);
}

bool SavePolicy::save_time_has_come() const {
    const double minutes = config().training.save_minutes;
    return minutes > 0 && std::chrono::steady_clock::now() - last_save_ >= std::chrono::duration<double>(60 * minutes);
}

bool SavePolicy::due(int64_t step) const {
    const bool by_steps = setup_.intervals().save.falls_on(step) && step < setup_.last_step();
    return by_steps || (setup_.group() ? agreed_ : save_time_has_come());
}

/// The state after the last step whose result was read; nothing may be in flight.
void SavePolicy::checkpoint() {
    start_clock();
    agreed_ = false;
    require_same_values();
    const comm::LongOperation saving(saver_ ? setup_.group() : nullptr,
                                     cat("saving checkpoint-", state_.progress.step));
    if (std::exchange(saved_step_, state_.progress.step) == state_.progress.step) return;
    const auto agree = [this](const std::string& folder) {
        return setup_.group()->gather(folder, "the checkpoint's folder")[0];
    };
    const bool several = state_.part().count() > 1;
    if (saver_)
        several ? saver_->checkpoint(moment(), agree) : saver_->checkpoint(moment());
    else if (several)
        agree("");
}

void SavePolicy::save_while_training() {
    const auto start = std::chrono::steady_clock::now();
    checkpoint();
    state_.stepper->start_clock();
    reporter_.saved(seconds_since(start));
}

void SavePolicy::require_same_values() {
    if (!setup_.group() || compared_step_ == state_.progress.step) return;
    if (state_.model->parameters()->share().size > 1 && state_.model->parameters()->sharding().has_copies())
        return;  // no two have
    placement::require_equal_hashes(*setup_.group(), placement::values_hash(state_.model->parameters()->values_P),
                                    state_.progress.step, state_.model->pipeline().stage().size);
    compared_step_ = state_.progress.step;
}

/// Waits for what the saver writes; whether it is complete.
bool SavePolicy::finish_saving() {
    const comm::LongOperation saving(saver_ ? setup_.group() : nullptr,
                                     cat("saving checkpoint-", state_.progress.step));
    return !saver_ || saver_->wait();
}

void SavePolicy::keep_result() {
    save_result();
    finish_saving();
}

void SavePolicy::finish() {
    const auto start = std::chrono::steady_clock::now();
    if (config::saves_checkpoints(config().training)) checkpoint();
    // A finished result whose checkpoint was not complete could not be resumed.
    finish_saving();
    load_best();
    save_result();
    if (config::learns_decisions(config().training.objective) && leads()) tell_calibration();
    reporter_.saved(seconds_since(start));
    if (setup_.group()) setup_.group()->barrier("the end of the run");
}

bool SavePolicy::pause() {
    const auto start = std::chrono::steady_clock::now();
    checkpoint();
    save_result();
    const bool whole = finish_saving();
    reporter_.saved(seconds_since(start));
    if (setup_.group()) setup_.group()->barrier("the end of the interrupted run");
    return whole;
}

void SavePolicy::stop_for(int signal) {
    const bool whole = pause();
    throw Interrupted(signal, cat("stopped after step ", state_.progress.step, " of ", setup_.total_steps(), "; ",
                                  full() ? "model" : "adapter", " saved in ", config().training.output_dir,
                                  whole ? cat(", and checkpoint-", state_.progress.step,
                                              " to resume from (--resume_from_checkpoint auto)")
                                        : ""));
}

RunFiles SavePolicy::run_files() const {
    RunFiles files;
    files.output_dir = config().training.output_dir;
    files.table = &state_.model->trained_by_all();
    if (!full()) files.lora = *setup_.plan().lora();
    files.base = config().model.path;
    files.rope_scaling = setup_.opened().rope_scaling;
    files.stand_ins = setup_.opened().file->stand_in_tensors();
    if (!full()) files.base_mark = formats::base_mark(*setup_.opened().file);
    files.spec = setup_.opened().file->spec;
    files.spec.dtype = setup_.saved_dtype();
    if (const auto& tokens = config().model.special_tokens;
        !tokens.empty() && tokenizer::Tokenizer::exists(setup_.opened().tokenizer_folder))
        data::set_special_ids(files.spec, tokens, setup_.opened().tokenizer());
    files.model_folder = setup_.opened().file->checkpoint.folder();
    files.tokenizer_files = setup_.opened().tokenizer_files();
    files.tokenizer_folder = setup_.opened().tokenizer_folder;
    files.config = config::config_to_json(setup_.effective_config());
    if (const spec::KernelTable& kernels = *setup_.plan().request().kernels; !kernels.choices.empty())
        files.kernels = spec::kernels_text(kernels);
    files.replaces = setup_.replaces();
    files.save_total_limit = config().training.save_total_limit;
    files.part = state_.part();
    files.ranks = setup_.group() ? setup_.group()->size() : 1;
    files.holds_all = state_.model->parameters()->holds_all();
    files.in_place = state_.model->parameters()->sharding().on_host();
    files.patience = std::chrono::seconds(config().distributed.ddp_timeout);
    return files;
}

RunMoment SavePolicy::moment() const {
    const config::TrainingOptions& t = config().training;
    RunMoment moment;
    formats::TrainerState& trainer = moment.trainer;
    trainer.epoch = state_.progress.epoch;
    trainer.eval_steps = setup_.intervals().eval.every;
    trainer.global_step = state_.progress.step;
    trainer.log_history = reporter_.history();
    trainer.logging_steps = setup_.intervals().log.every;
    trainer.max_steps = setup_.total_steps();
    trainer.num_input_tokens_seen = state_.progress.seen_tokens;
    trainer.num_train_epochs = t.num_train_epochs;
    trainer.save_steps = setup_.intervals().save.every;
    trainer.train_batch_size = t.per_device_train_batch_size;
    if (state_.progress.best.value) {
        trainer.best_metric = state_.progress.best.value;
        trainer.best_global_step = state_.progress.best.step;
        if (t.load_best_model_at_end) trainer.best_model_checkpoint = best_checkpoint().string();
    }
    formats::RunState& run = moment.run;
    run.progress = state_.progress;
    run.progress.optimizer = state_.stepper->state();
    if (state_.plateau) run.progress.plateau = state_.plateau->state();
    run.per_device_train_batch_size = t.per_device_train_batch_size;
    run.gradient_accumulation_steps = t.gradient_accumulation_steps;
    run.world_size = setup_.data_ranks();
    run.cpu_threads = setup_.cpu_threads();
    run.data = setup_.data_fingerprint();
    if (source_ != nullptr) moment.rollouts = source_->progress();
    moment.calibration = calibration();
    run.parameters = layout_fingerprint(state_.model->trained_by_all(), t.optim);
    return moment;
}

void SavePolicy::save_result() {
    require_same_values();
    const comm::LongOperation saving(saver_ ? setup_.group() : nullptr, "saving the result");
    const weights::Parameters& parameters = *state_.model->parameters();
    const auto write = [this](const ReadValues& values) { saver_->result(moment(), values); };
    if (!parameters.holds_all())
        with_gathered_values(setup_.group()->all(), state_.model->trained_by_all(), state_.part(), parameters,
                             setup_.device(), write);
    else if (leads())
        write(values_in(parameters.values_P));
}

}  // namespace unsloth::train
