#include "unsloth/train/trainer.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <utility>

#include "train/output_folder.h"
#include "train/references.h"
#include "train/row_file.h"
#include "unsloth/config/load.h"
#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/hash.h"
#include "unsloth/core/interrupt.h"
#include "unsloth/core/log.h"
#include "unsloth/core/version.h"
#include "unsloth/data/format.h"
#include "unsloth/memory/plan.h"
#include "unsloth/ops/device.h"
#include "unsloth/ops/profiler.h"
#include "unsloth/placement/agreement.h"
#include "unsloth/placement/kernels.h"
#include "unsloth/placement/loading.h"
#include "unsloth/placement/parallel.h"
#include "unsloth/planner/run_plan_text.h"
#include "unsloth/report/hardware_rate.h"
#include "unsloth/report/run.h"
#include "unsloth/report/sinks.h"
#include "unsloth/train/learning_rate.h"

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

Trainer::Trainer(const config::LoadedConfig& loaded, Purpose purpose) : setup_(loaded, purpose) {}

Trainer::~Trainer() = default;

void Trainer::load() {
    placement::require_memory(setup_.plan(), setup_.budget());
    if (setup_.instruction()) setup_.instruction()->load(setup_.group());
    ctx_ = placement::make_context(config(), setup_.plan());
    model_ = std::make_unique<model::Model>(
        *ctx_, setup_.plan().load(*ctx_, placement::load_share(setup_.group(), setup_.plan())));
    if (setup_.reference_rows()) score_references();
    objective_ = objective::make_objective(config(), setup_.device(), references_,
                                           setup_.mesh() ? setup_.mesh()->stage() : nullptr,
                                           setup_.instruction() ? &setup_.instruction()->teacher() : nullptr);
    UNSLOTH_CHECK(setup_.plan().request().weighs == objective_->weighs(), "a plan for another objective");
    if (config().training.lr_scheduler_type == config::Schedule::reduce_lr_on_plateau)
        plateau_.emplace(setup_.schedule());
    const config::TrainingOptions& t = config().training;
    StepSettings settings;
    settings.objective = objective_.get();
    settings.adamw = adamw_settings(config());
    settings.max_grad_norm = t.max_grad_norm;
    settings.seed = static_cast<uint64_t>(t.seed);
    settings.group = setup_.group();
    settings.bucket_bytes = placement::bucket_bytes(config(), setup_.group());
    settings.loss_scaling = config().model.dtype == spec::DType::f16;
    settings.skip_on_spike = t.skip_on_spike;
    stepper_ = std::make_unique<Stepper>(*ctx_, *model_, settings);
    hardware_rate_ = report::dense_bf16_rate(ops::device_name(setup_.device()));
    if (setup_.resume()) restore();
    if (placement::writes_part(setup_.mesh_shape(), model_->parameters()->share(), setup_.environment().rank))
        saver_.emplace(run_files(), *ctx_, model_->parameters()->saved(), model_->parts().copies);
}

/// Before the first step, and before a checkpoint's values replace those that the run began with.
void Trainer::score_references() {
    const Clock::time_point start = Clock::now();
    const bool of_base = config().preference.reference == config::Reference::base;
    const model::PolicyScope scope = of_base ? model::PolicyScope::base : model::PolicyScope::policy;
    const ReferenceCache cache = reference_cache(scope);
    references_ =
        train::score_references(*model_, setup_.device(), *setup_.reference_rows(), scope, setup_.group(), cache);
    if (setup_.evaluator())
        eval_references_ = train::score_references(*model_, setup_.device(), setup_.evaluator()->batches(), scope,
                                                   setup_.group(), cache);
    for (const objective::References* references : {&references_, &eval_references_})
        if (const at::Tensor& values = references->values(); values.defined() && !values.isfinite().all().item<bool>())
            throw runtime_failure(cat("the reference's log-probabilities are not finite", bad_weight()),
                                  session::overflow_advice);
    log::info("reference  ", of_base ? "base" : "initial", ": ", setup_.reference_rows()->dataset().size(),
              model_->counts().qkv > 0 ? " rows scored in " : " rows from the cache in ",
              duration_text(seconds_since(start)));
}

/// Named by the model's values, how it computes, and how many rows share a batch: what bits depend on.
ReferenceCache Trainer::reference_cache(model::PolicyScope scope) const {
    ReferenceCache cache;
    if (!config().preference.cache_reference) return cache;
    cache.files = data::cache_options(config().data.cache_dir);
    cache.files.max_bytes = static_cast<int64_t>(config().data.cache_max_gib * static_cast<double>(int64_t{1} << 30));
    constexpr int64_t bytes_of_token = 4;  // of text, about: the bound is on the data's files
    if (setup_.loader().dataset().stats().tokens * bytes_of_token < cache.files.least_bytes) cache.files.folder.clear();
    const model::LoadRequest& request = setup_.plan().request();
    std::string adapters = "none";
    if (scope != model::PolicyScope::base) {
        adapters = placement::values_hash(model_->parameters()->values_P);
        if (!model_->parameters()->holds_all())  // each rank has its own
            for (const std::string& hash :
                 setup_.group()->gather(std::exchange(adapters, ""), "the hashes of all ranks"))
                adapters += hash;
    }
    ContentHash kernels;
    kernels.add(spec::kernels_text(*request.kernels));
    cache.key =
        cat("references of ", version, " ", placement::sample_hash(setup_.opened().file->checkpoint), " ",
            setup_.plan().base_description(), " ", name_of(config().model.dtype), " adapters ", adapters, " ",
            memory::describe_device(setup_.device()), " ", kernels.hex(), " ", request.sizes.deterministic, " tokens ",
            request.sizes.tokens, " ranks ", setup_.environment().world_size, " threads ", setup_.cpu_threads());
    return cache;
}

/// From here on the folder is this run's.
void Trainer::begin_folder() const {
    const std::filesystem::path folder = config().training.output_dir;
    if (setup_.replaces()) remove_state(folder);
    write_file_atomically(folder / "run_config.json", config::config_to_json(setup_.effective_config()));
    if (const spec::KernelTable& kernels = *setup_.plan().request().kernels; kernels.choices.empty()) {
        remove_or_warn(folder / placement::kernels_file);  // of the run that was there before
    } else {
        write_file_atomically(folder / placement::kernels_file, spec::kernels_text(kernels));
    }
}

double Trainer::learning_rate(int64_t step) const {
    const config::TrainingOptions& t = config().training;
    if (plateau_) return plateau_->learning_rate();
    return *t.learning_rate * schedule_multiplier(t.lr_scheduler_type, setup_.schedule(), step - 1);
}

// --- the loop ------------------------------------------------------------------------------------------------------

void Trainer::run() {
    try {
        setup_.telling_others([this] { run_together(); });
    } catch (const Interrupted& stopped) {
        summarise(cat("SIG", ::sigabbrev_np(stopped.signal())), "");
        throw;
    } catch (const std::exception& failure) {
        const std::string text = failure.what();
        summarise("error", text.substr(0, text.find('\n')));
        throw;
    }
}

void Trainer::run_together() {
    banner();
    const std::filesystem::path folder = config().training.output_dir;
    if (const std::filesystem::path trace = std::filesystem::path(config().logging.profile).parent_path();
        !trace.empty() && !std::filesystem::is_directory(trace))
        throw usage_error(cat("logging.profile: there is no folder ", trace.string()),
                          "Create it, or name a file in one that exists.");
    if (leads()) report::require_sinks(config(), folder, ops::pci_address(setup_.device()));
    if (config().training.max_steps == 0) {
        placement::require_memory(setup_.plan(), setup_.budget());
        if (leads() && config().logging.progress == config::ProgressStyle::json) print_plan();
        log::info("max_steps 0: everything is valid and planned; nothing was trained");
        return;
    }
    std::optional<comm::Busy> starting;
    starting.emplace(setup_.group(), "loading the model");
    const Clock::time_point start = Clock::now();
    load();
    require_same_values();
    if (leads()) begin_folder();
    summary_.load_seconds = seconds_since(start);
    char text[96];
    std::snprintf(text, sizeof text, "%.1f", summary_.load_seconds);
    log::info("loaded in ", text, " s");
    const config::TrainingOptions& t = config().training;
    time_left_ = TimeLeft({setup_.total_steps(), t.eval_steps, t.save_steps, t.save_minutes,
                           setup_.evaluator() ? setup_.evaluator()->tokens() : 0});
    if (leads()) {
        write_file_atomically(folder / report::facts_file,
                              report::run_facts_json(facts_of(setup_.total_steps(), setup_.plan(),
                                                              setup_.teachers_plan(), setup_.loader().dataset())));
        observers_.push_back(make_console(config(), ops::pci_address(setup_.device())));
        observers_.push_back(make_metrics(config(), progress_.step, ops::pci_address(setup_.device())));
    }
    starting.reset();
    if (progress_.evaluation_due || (t.eval_on_start && progress_.step == 0)) {
        maybe_evaluate(progress_.step);
        answer_prompts(progress_.step);
    }
    if (!stops_early()) {  // one that had stopped, and goes on from there, has as little to gain
        RowSource rows(setup_.loader(), setup_.total_steps());
        loop(rows);
    }
    if (stops_early()) {
        tell_early_stop();
    } else {
        maybe_evaluate(setup_.total_steps());
        answer_prompts(setup_.total_steps());
    }
    const Clock::time_point saving = Clock::now();
    if (config::saves_checkpoints(t)) checkpoint();
    // A finished result whose checkpoint was not complete would be one that nothing can go on from.
    finish_saving();
    load_best();
    save_result();
    summary_.save_seconds += seconds_since(saving);
    if (setup_.group()) setup_.group()->barrier("the end of the run");
    summarise("finished", "");
    std::snprintf(text, sizeof text, ": %lld tokens in %.1f s, %.0f tok/s; loss %.4f",
                  static_cast<long long>(summary_.tokens), summary_.train_seconds, summary_.tokens_per_second(),
                  summary_.train_loss.value_or(std::nan("")));
    log::info("done: ", progress_.step, " steps",
              summary_.steps == progress_.step ? "" : cat(", ", summary_.steps, " of them now"),
              summary_.steps > 0 ? text : "", "; ", full() ? "model" : "adapter", " in ", folder.string());
    tell_memory();
}

void Trainer::loop(StepSource& source) {
    const config::TrainingOptions& t = config().training;
    last_save_ = Clock::now();
    stepper_->start_clock();
    const auto drain = [&](bool must) {
        while (const std::optional<StepResult> result = stepper_->take(must)) report(*result);
    };
    for (int64_t step = progress_.step + 1; step <= setup_.total_steps(); ++step) {
        const data::StepBatch batch = source.next(step);
        const bool dropped = !issue(batch, step);
        drain(false);
        // Ranks stop, and save, together: at the step whose result says that one was sent a signal, or asks for it.
        const int signal = setup_.group() ? agreed_signal_ : interrupt_requested();
        const bool evaluates = t.eval_steps > 0 && step % t.eval_steps == 0 && step < setup_.total_steps() && !dropped;
        const bool by_steps = t.save_steps > 0 && step % t.save_steps == 0 && step < setup_.total_steps();
        bool saves = by_steps || (setup_.group() ? agreed_save_ : save_time_has_come());
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
    return leads() && step == std::min(profiled_step, setup_.total_steps()) && !config().logging.profile.empty();
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
    if (setup_.group() == nullptr && 2 * step_seconds_ > grace)
        options.abandon = [&](double left) { return interrupt_requested() != 0 && left * step_seconds_ > grace; };
    return stepper_->issue(batch, step, rate, options);
}

}  // namespace unsloth::train
