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
#include "unsloth/train/agreement.h"
#include "unsloth/train/trainer.h"

namespace unsloth::train {
namespace {

namespace fs = std::filesystem;

/// The projections that have an adapter in some layer: PEFT's own config may say it by a regular expression.
std::vector<std::string> target_names(const spec::LoraSpec& lora, const spec::ModelSpec& spec) {
    std::vector<std::string> names;
    const std::vector<spec::LayerLora> layers = spec::resolve_lora(lora, spec);
    for (std::size_t p = 0; p < spec::projection_count; ++p)
        if (std::any_of(layers.begin(), layers.end(), [&](const spec::LayerLora& layer) { return layer[p].r > 0; }))
            names.emplace_back(spec::projection_names[p]);
    return names;
}

}  // namespace

spec::DType Trainer::saved_dtype() const {
    return full() && config().model.dtype != spec::DType::f32 ? opened_.file->spec.dtype : spec::DType::f32;
}

/// Room for the result and the first checkpoint; those that follow are saved only where there is some.
void Trainer::require_disk() const {
    if (!leads()) return;
    constexpr int64_t texts = 1 << 20;
    const config::TrainingOptions& t = config().training;
    const weights::ParameterTable& table = *plan_->table();
    int64_t result = texts;
    for (const fs::path& file : opened_.tokenizer_files()) result += static_cast<int64_t>(fs::file_size(file));
    for (const weights::Parameter& p : table.parameters())
        result += p.elements() * static_cast<int64_t>(spec::size_of(saved_dtype()));
    for (const formats::TensorView* stand_in : opened_.file->stand_in_tensors())
        result += static_cast<int64_t>(stand_in->data.size());
    const bool saves = config::saves_checkpoints(t);
    const bool in_parts = full() || plan_->request().holding.has_copies() || !plan_->request().pp.alone();
    // Beside a result values and moments, of tied embeddings both ends' of a pipeline; the values of a LoRA that one
    // rank holds are its result.
    int64_t checkpoint = result - (in_parts ? 0 : table.flat_elements() * static_cast<int64_t>(sizeof(float)));
    const StatePart part{plan_->request().pp.stage(), {}};
    for (int number = 0; number < part.count(); ++number) {
        memory::Plan copies;
        weights::Parameters::plan_copies(part.with_number(number).table(table), t.optim, {}, copies);
        for (const memory::Entry& copy : copies.entries()) checkpoint += copy.bytes;
    }
    if (!saves) checkpoint = 0;

    fs::path place = fs::absolute(t.output_dir);
    std::error_code failed;
    while (!fs::exists(place, failed) && place.has_relative_path()) place = place.parent_path();
    const fs::space_info space = fs::space(place, failed);
    const int64_t freed = replaces_ ? state_bytes(t.output_dir) : 0;
    if (failed || space.available >= static_cast<std::uintmax_t>(std::max<int64_t>(0, result + checkpoint - freed)))
        return;
    throw Error("disk.full",
                cat("not enough room in ", t.output_dir, ": ", memory::human_bytes(result + checkpoint),
                    " are needed (", full() ? "model " : "adapter ", memory::human_bytes(result),
                    saves ? cat(", first checkpoint ", memory::human_bytes(checkpoint)) : "", "), ",
                    memory::human_bytes(static_cast<int64_t>(space.available)), " are free"),
                cat("Free some, or choose another training.output_dir",
                    saves ? "; with save_steps 0 no checkpoint is saved." : "."));
}

/// Takes the output folder for this run, and finds what it goes on from. With max_steps 0 nothing is written: the same
/// is refused.
void Trainer::open_output() {
    config::TrainingOptions& training = loaded_.config.training;
    if (purpose_ == Purpose::examines) {
        resume_ = find_resume_point(training);
        if (resume_) training.gradient_accumulation_steps = accumulation_for(training, resume_->state, data_ranks());
        return;
    }
    std::string chosen;
    if (leads()) {
        take_output();
        if (const std::optional<ResumePoint> point = find_resume_point(training)) {
            require_nothing_lost(training, *point);
            chosen = point->folder.string();
        }
        replaces_ = chosen.empty() && require_replaceable(config());
    }
    if (group_) chosen = group_->gather(chosen, "the checkpoint to go on from")[0];
    if (chosen.empty()) return;
    resume_ = read_resume_point(chosen);
    training.gradient_accumulation_steps = accumulation_for(training, resume_->state, data_ranks());
}

/// On the rank that leads.
void Trainer::take_output() {
    const fs::path folder = config().training.output_dir;
    if (config().training.max_steps == 0) return require_usable(folder);
    if (const Folder made = Folder::made(folder); !made.open())
        throw Error("disk.cannot-write",
                    cat("training.output_dir: cannot create ", folder.string(), ": ", std::strerror(made.failure())),
                    advice_on_creating(folder, made.failure()));
    lock_.emplace(folder);
    formats::remove_unfinished_checkpoints(folder);
}

/// The state of the checkpoint that the run goes on from, to the last bit.
void Trainer::restore() {
    const formats::RunState& saved = resume_->state;
    if (saved.parameters != layout_fingerprint(model_->trained_by_all(), config().training.optim))
        throw Error("checkpoint.other-options",
                    cat("the trained parameters are not laid out as in ", resume_->folder.string()),
                    "Use the model, lora and optim options of its run_config.json.");
    load_values(resume_->folder);
    progress_ = saved.progress;
    stepper_->restore(progress_.optimizer);
    if (plateau_ && progress_.plateau) plateau_->restore(*progress_.plateau);
    history_.rows = formats::read_trainer_state(resume_->folder).log_history;
    log::info("goes on from ", resume_->folder.string(), ", after step ", progress_.step);
    if (saved.cpu_threads != 0 && cpu_threads() != 0 && saved.cpu_threads != cpu_threads())
        log::warning("changed since the checkpoint: ", saved.cpu_threads, " CPU threads until now, ", cpu_threads(),
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
    const bool is_old = resume_ && progress_.best.step <= resume_->state.progress.step;
    return is_old && !fs::exists(own) ? resume_->folder.parent_path() / name : own;
}

/// The best evaluation's values take the last step's place, on the ranks that the result is made of.
void Trainer::load_best() {
    if (!config().training.load_best_model_at_end || !progress_.best.value) return;
    if (progress_.best.step == progress_.step) return;
    const weights::Holding& holding = model_->parameters()->holding();
    const bool alone = holding.holds_all() && !holding.has_copies();
    if (alone && !leads()) return;
    const comm::Busy loading(group_.get(), "loading the best evaluation's checkpoint");
    fs::path folder = best_checkpoint();
    if (leads())
        if (const auto damage = formats::find_damage_of_own(folder)) {
            log::warning(config().training.output_dir, " gets the last step's values: ", folder.string(),
                         ", of the best evaluation, cannot be loaded: ", *damage);
            folder.clear();
        }
    if (!alone && group_) folder = group_->gather(folder.string(), "the checkpoint of the best evaluation")[0];
    if (folder.empty()) return;
    load_values(folder);
    log::info("the result is that of step ", progress_.best.step, ", whose ", config::best_metric(config().training),
              " was the best: ", *progress_.best.value, " (training.load_best_model_at_end)");
}

/// Among how many threads products on the CPU are divided, on which their rounding depends; 0 on a GPU.
int64_t Trainer::cpu_threads() const {
    return device_.is_cpu() ? at::get_num_threads() : 0;
}

/// The configuration with what an adapter folder decided, so that a run started from the written file does not
/// contradict it.
config::Config Trainer::effective_config() const {
    config::Config effective = config();
    if (config().model.adapter_name_or_path && plan_->lora()) {
        const spec::LoraSpec& lora = *plan_->lora();
        effective.lora.r = lora.r;
        effective.lora.lora_alpha = lora.lora_alpha;
        effective.lora.lora_dropout = lora.lora_dropout;
        effective.lora.use_rslora = lora.use_rslora;
        effective.lora.use_dora = lora.use_dora;
        effective.lora.target_modules = target_names(lora, opened_.file->spec);
        effective.lora.modules_to_save = lora.modules_to_save;
        effective.lora.rank_pattern = lora.rank_pattern;
        effective.lora.alpha_pattern = lora.alpha_pattern;
        if (!lora.layers_to_transform.empty()) effective.lora.layers_to_transform = lora.layers_to_transform;
    }
    return effective;
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
    const comm::Busy saving(saver_ ? group_.get() : nullptr, cat("saving checkpoint-", progress_.step));
    if (std::exchange(saved_step_, progress_.step) == progress_.step) return;
    const auto agree = [this](const std::string& folder) {
        return group_->gather(folder, "the checkpoint's folder")[0];
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
    if (!group_ || compared_step_ == progress_.step) return;
    if (model_->parameters()->share().size > 1 && model_->parameters()->holding().has_copies()) return;  // no two have
    require_equal_hashes(*group_, values_hash(model_->parameters()->values_P), progress_.step,
                         model_->pipeline().stage().size);
    compared_step_ = progress_.step;
}

/// Waits for what the saver writes; whether it is complete.
bool Trainer::finish_saving() {
    const comm::Busy saving(saver_ ? group_.get() : nullptr, cat("saving checkpoint-", progress_.step));
    return !saver_ || saver_->wait();
}

void Trainer::stop_for(int signal) {
    const auto start = std::chrono::steady_clock::now();
    checkpoint();
    save_result();
    const bool whole = finish_saving();
    summary_.save_seconds += seconds_since(start);
    if (group_) group_->barrier("the end of the interrupted run");
    throw Interrupted(
        signal,
        cat("stopped after step ", progress_.step, " of ", total_steps_, "; ", full() ? "model" : "adapter",
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
    if (!full()) files.lora = *plan_->lora();
    files.base = config().model.path;
    files.rope_scaling = opened_.rope_scaling;
    files.stand_ins = opened_.file->stand_in_tensors();
    if (!full()) files.base_mark = formats::base_mark(*opened_.file);
    files.spec = opened_.file->spec;
    files.spec.dtype = saved_dtype();
    files.model_folder = opened_.file->checkpoint.folder();
    files.tokenizer_files = opened_.tokenizer_files();
    files.tokenizer_folder = opened_.tokenizer_folder;
    files.config = config::config_to_json(effective_config());
    if (const spec::KernelTable& kernels = *plan_->request().kernels; !kernels.choices.empty())
        files.kernels = spec::kernels_text(kernels);
    files.replaces = replaces_;
    files.save_total_limit = config().training.save_total_limit;
    files.part = state_part();
    files.ranks = group_ ? group_->size() : 1;
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
    trainer.max_steps = total_steps_;
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
    run.world_size = data_ranks();
    run.cpu_threads = cpu_threads();
    run.data = data_fingerprint_;
    run.parameters = layout_fingerprint(model_->trained_by_all(), t.optim);
    return moment;
}

void Trainer::save_result() {
    require_same_values();
    const comm::Busy saving(saver_ ? group_.get() : nullptr, "saving the result");
    const weights::Parameters& parameters = *model_->parameters();
    const auto write = [this](const ReadValues& values) { saver_->result(moment().trainer, values); };
    if (!parameters.holds_all())
        with_gathered_values(group_->all(), model_->trained_by_all(), state_part(), parameters, device_, write);
    else if (leads())
        write(values_in(parameters.values_P));
}

}  // namespace unsloth::train
