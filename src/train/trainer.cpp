#include "unsloth/train/trainer.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <sstream>

#include "train/answers.h"
#include "train/output_folder.h"
#include "train/row_file.h"
#include "unsloth/config/load.h"
#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/interrupt.h"
#include "unsloth/core/log.h"
#include "unsloth/data/format.h"
#include "unsloth/data/prefetch.h"
#include "unsloth/memory/plan.h"
#include "unsloth/ops/device.h"
#include "unsloth/ops/profiler.h"
#include "unsloth/planner/run_plan_text.h"
#include "unsloth/report/hardware_rate.h"
#include "unsloth/report/run.h"
#include "unsloth/report/sinks.h"
#include "unsloth/spec/finite_sites.h"
#include "unsloth/train/agreement.h"
#include "unsloth/train/kernels.h"
#include "unsloth/train/learning_rate.h"
#include "unsloth/train/memory_use.h"
#include "unsloth/train/parallel.h"
#include "unsloth/train/stages.h"

namespace unsloth::train {
namespace {

using Clock = std::chrono::steady_clock;

report::RunFacts facts_of(int64_t steps, const model::ModelPlan& plan, const model::ModelPlan* teacher,
                          const data::Dataset& rows) {
    std::map<std::string, int64_t> groups = plan.groups();
    const int64_t teachers = teacher != nullptr ? teacher->total_bytes() : 0;
    if (teachers > 0) groups["teacher"] = teachers;
    return {steps,
            plan.total_bytes() + teachers,
            {groups.begin(), groups.end()},
            report::row_lengths(rows.size(), [&](int64_t i) { return rows.tokens(i); }),
            planner::run_plan_json(plan.request().run),
            data::format_name(rows.stats().format)};
}

}  // namespace

Trainer::Trainer(const config::LoadedConfig& loaded, Purpose purpose)
    : loaded_(loaded),
      purpose_(purpose),
      environment_(comm::read_launch_environment()),
      device_(ops::choose_device(loaded.config.hardware.device, environment_.local_rank)) {
    if (!leads()) log::set_level(std::max(log::level(), log::Level::warning));
    if (environment_.local_world_size > 1 && config().hardware.device.rfind("cuda:", 0) == 0)
        throw Error("device.shared-by-ranks",
                    cat("hardware.device ", config().hardware.device, " would put all ", environment_.local_world_size,
                        " processes on one GPU"),
                    "Leave it at auto: each process takes the GPU of its number.");
    for (const std::string& note : loaded.notes) log::info(note);
    const comm::MeshShape mesh = choose_mesh(config().distributed, environment_.world_size);
    nccl_ = comm::set_nccl_environment(config().distributed.nccl);
    group_ = comm::make_group(environment_, device_, std::chrono::seconds(config().distributed.ddp_timeout));
    telling_others([this, mesh] {
        if (group_) mesh_.emplace(*group_, mesh, several_chunks(config().distributed));
        const comm::Busy starting(group_.get(), "looking for checkpoints and opening the model");
        opened_ = open_model(config());
        require_positions(loaded_, opened_.file->spec);
        settle_learning_rate();
        if (purpose_ == Purpose::trains) require_own_output(config(), opened_.file->checkpoint.folder());
        open_output();
        const comm::Busy reading(group_.get(), "reading the data");
        open_data();
        require_agreement();
        make_plan();
        if (purpose_ == Purpose::trains) require_disk();
        if (resume_) require_same_run(effective_config(), *resume_);
    });
}

Trainer::~Trainer() = default;

/// An error of this rank ends all of them, with its reason.
void Trainer::telling_others(const std::function<void()>& work) const {
    try {
        work();
    } catch (const Interrupted&) {
        throw;
    } catch (const std::exception& error) {
        const auto* const known = dynamic_cast<const Error*>(&error);
        // What fails on the device when a rank is lost follows from that.
        if (group_ && (known == nullptr || known->kind() == ErrorKind::runtime)) group_->check();
        if (group_) group_->announce(error.what());
        throw;
    }
}

/// Ranks that train on different things would sum gradients that do not belong together.
void Trainer::require_agreement() const {
    if (group_ == nullptr) return;
    const data::DatasetStats& stats = loader_->dataset().stats();
    const std::string own = cat("data: ", loader_->dataset().size(), " rows, ", stats.tokens, " tokens, ",
                                stats.trained_tokens, " of them targets\n", "rows: ", data_fingerprint_, "\n",
                                "checkpoint: ", resume_ ? resume_->state.progress.step : 0, "\n",
                                "model: ", opened_.file->tensors.parameters(), " parameters, ",
                                opened_.file->tensors.quantised_linears(), " linears in 4 bit, samples of the values ",
                                sample_hash(opened_.file->checkpoint), "\n", config::config_to_json(config()));
    const std::vector<std::string> all = group_->gather(own, "the comparison of configurations");
    for (std::size_t rank = 1; rank < all.size(); ++rank) {
        if (all[rank] == all[0]) continue;
        std::istringstream first(all[0]), other(all[rank]);
        std::string a, b;
        while (std::getline(first, a) && std::getline(other, b) && a == b) {
        }
        throw Error("rank.started-differently",
                    cat("rank ", rank, " was started differently from rank 0: \"", b, "\" instead of \"", a, "\""),
                    "All ranks need the same configuration, model and data.");
    }
}

void Trainer::load() {
    require_memory(*plan_, budget());
    if (instruction_) instruction_->load(group_.get());
    ctx_ = make_context(config(), *plan_);
    model_ = std::make_unique<model::Model>(*ctx_, plan_->load(*ctx_, load_share(group_.get(), *plan_)));
    if (reference_rows_) score_references();
    const config::TrainingOptions& t = config().training;
    StepSettings settings;
    settings.objective = objective_.get();
    settings.adamw = adamw_settings(config());
    settings.max_grad_norm = t.max_grad_norm;
    settings.seed = static_cast<uint64_t>(t.seed);
    settings.group = group_.get();
    settings.bucket_bytes = bucket_bytes(config(), group_.get());
    settings.loss_scaling = config().model.dtype == spec::DType::f16;
    settings.skip_on_spike = t.skip_on_spike;
    stepper_ = std::make_unique<Stepper>(*ctx_, *model_, settings);
    hardware_rate_ = report::dense_bf16_rate(ops::device_name(device_));
    if (resume_) restore();
    if (writes_part(mesh_shape(), model_->parameters()->share(), environment_.rank))
        saver_.emplace(run_files(), *ctx_, model_->parameters()->saved(), model_->parts().copies);
}

/// From here on the folder is this run's.
void Trainer::begin_folder() const {
    const std::filesystem::path folder = config().training.output_dir;
    if (replaces_) remove_state(folder);
    write_file_atomically(folder / "run_config.json", config::config_to_json(effective_config()));
    if (const spec::KernelTable& kernels = *plan_->request().kernels; kernels.choices.empty()) {
        remove_or_warn(folder / kernels_file);  // of the run that was there before
    } else {
        write_file_atomically(folder / kernels_file, spec::kernels_text(kernels));
    }
}

double Trainer::learning_rate(int64_t step) const {
    const config::TrainingOptions& t = config().training;
    if (plateau_) return plateau_->learning_rate();
    return *t.learning_rate * schedule_multiplier(t.lr_scheduler_type, schedule_, step - 1);
}

// --- the loop ------------------------------------------------------------------------------------------------------

void Trainer::run() {
    try {
        telling_others([this] { run_together(); });
    } catch (const Interrupted& stopped) {
        summarise(cat("SIG", ::sigabbrev_np(stopped.signal())), "");
        throw;
    } catch (const std::exception& failure) {
        const std::string text = failure.what();
        const auto* const known = dynamic_cast<const Error*>(&failure);
        const ErrorId id = known != nullptr ? known->id() : ErrorId("library.failed");
        summarise("error", text.substr(0, text.find('\n')), std::string(id.name()));
        throw;
    }
}

void Trainer::run_together() {
    banner();
    const std::filesystem::path folder = config().training.output_dir;
    if (const std::filesystem::path trace = std::filesystem::path(config().logging.profile).parent_path();
        !trace.empty() && !std::filesystem::is_directory(trace))
        throw Error("option.invalid-value", cat("logging.profile: there is no folder ", trace.string()),
                    "Create it, or name a file in one that exists.");
    if (leads()) report::require_sinks(config(), folder, ops::pci_address(device_));
    if (config().training.max_steps == 0) {
        require_memory(*plan_, budget());
        if (leads() && config().logging.progress == config::ProgressStyle::json) print_plan();
        log::info("max_steps 0: everything is valid and planned; nothing was trained");
        return;
    }
    std::optional<comm::Busy> starting;
    starting.emplace(group_.get(), "loading the model");
    const Clock::time_point start = Clock::now();
    load();
    require_same_values();
    if (leads()) begin_folder();
    summary_.load_seconds = seconds_since(start);
    char text[96];
    std::snprintf(text, sizeof text, "%.1f", summary_.load_seconds);
    log::info("loaded in ", text, " s");
    const config::TrainingOptions& t = config().training;
    time_left_ =
        TimeLeft({total_steps_, t.eval_steps, t.save_steps, t.save_minutes, evaluator_ ? evaluator_->tokens() : 0});
    if (leads()) {
        write_file_atomically(
            folder / report::facts_file,
            report::run_facts_json(facts_of(total_steps_, *plan_, teachers_plan(), loader_->dataset())));
        observers_.push_back(make_console(config(), ops::pci_address(device_)));
        observers_.push_back(make_metrics(config(), progress_.step, ops::pci_address(device_)));
    }
    starting.reset();
    if (progress_.evaluation_due || (t.eval_on_start && progress_.step == 0)) {
        maybe_evaluate(progress_.step);
        answer_prompts(progress_.step);
    }
    if (!stops_early()) loop();  // one that had stopped, and goes on from there, has as little to gain
    if (stops_early()) {
        tell_early_stop();
    } else {
        maybe_evaluate(total_steps_);
        answer_prompts(total_steps_);
    }
    const Clock::time_point saving = Clock::now();
    if (config::saves_checkpoints(t)) checkpoint();
    // A finished result whose checkpoint was not complete would be one that nothing can go on from.
    finish_saving();
    load_best();
    save_result();
    summary_.save_seconds += seconds_since(saving);
    if (group_) group_->barrier("the end of the run");
    summarise("finished", "");
    std::snprintf(text, sizeof text, ": %lld tokens in %.1f s, %.0f tok/s; loss %.4f",
                  static_cast<long long>(summary_.tokens), summary_.train_seconds, summary_.tokens_per_second(),
                  summary_.train_loss.value_or(std::nan("")));
    log::info("done: ", progress_.step, " steps",
              summary_.steps == progress_.step ? "" : cat(", ", summary_.steps, " of them now"),
              summary_.steps > 0 ? text : "", "; ", full() ? "model" : "adapter", " in ", folder.string());
    tell_memory();
}

void Trainer::loop() {
    const config::TrainingOptions& t = config().training;
    data::Prefetcher batches([this](int64_t step) { return loader_->step(step); }, progress_.step,
                             std::max(progress_.step, total_steps_));
    last_save_ = Clock::now();
    stepper_->start_clock();
    int64_t step = progress_.step;
    const auto drain = [&](bool must) {
        while (const std::optional<StepResult> result = stepper_->take(must)) report(*result);
    };
    while (std::optional<data::StepBatch> batch = batches.next()) {
        ++step;
        const bool dropped = !issue(*batch, step);
        drain(false);
        // Ranks stop, and save, together: at the step whose result says that one was sent a signal, or asks for it.
        const int signal = group_ ? agreed_signal_ : interrupt_requested();
        const bool evaluates = t.eval_steps > 0 && step % t.eval_steps == 0 && step < total_steps_ && !dropped;
        const bool by_steps = t.save_steps > 0 && step % t.save_steps == 0 && step < total_steps_;
        bool saves = by_steps || (group_ ? agreed_save_ : save_time_has_come());
        if (signal == 0 && !evaluates && !saves && !profiles(step)) continue;
        drain(true);
        if (evaluates) maybe_evaluate(step);
        if (evaluates && signal == 0 && agreed_signal_ == 0) answer_prompts(step);
        if (signal != 0) stop_for(signal);
        if (evaluates && stops_early()) return;
        saves = saves || (evaluates && t.load_best_model_at_end && progress_.best.step == step);
        if (saves) save_while_training();
        stepper_->start_clock();
    }
    drain(true);
}

/// Whether this process looks into the step's time, which takes a while itself.
bool Trainer::profiles(int64_t step) const {
    constexpr int64_t profiled_step = 3;  // the first two find algorithms and fill caches
    return leads() && step == std::min(profiled_step, total_steps_) && !config().logging.profile.empty();
}

/// Issues a step; false when a signal came and the step would have taken longer than there is time.
bool Trainer::issue(const data::StepBatch& batch, int64_t step) {
    const double rate = learning_rate(step), grace = config().training.save_grace_seconds;
    if (profiles(step)) {
        ops::profile(*ctx_, config().logging.profile, [&] { stepper_->issue(batch, step, rate); });
        return true;
    }
    IssueOptions options{.save_due = leads() && save_time_has_come(),
                         .layer_norms = config().logging.layer_norms && is_logged(step)};
    // A short step is done sooner than it could be dropped.
    if (group_ == nullptr && 2 * step_seconds_ > grace)
        options.abandon = [&](double left) { return interrupt_requested() != 0 && left * step_seconds_ > grace; };
    return stepper_->issue(batch, step, rate, options);
}

}  // namespace unsloth::train
