#include "unsloth/train/trainer.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <sstream>

#include "train/references.h"
#include "unsloth/config/load.h"
#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/interrupt.h"
#include "unsloth/core/log.h"
#include "unsloth/core/version.h"
#include "unsloth/data/describe.h"
#include "unsloth/data/prefetch.h"
#include "unsloth/data/run_tokenizer.h"
#include "unsloth/memory/plan.h"
#include "unsloth/ops/device.h"
#include "unsloth/ops/profiler.h"
#include "unsloth/planner/run_plan_text.h"
#include "unsloth/report/hardware_rate.h"
#include "unsloth/report/run.h"
#include "unsloth/spec/finite_sites.h"
#include "unsloth/train/agreed_plan.h"
#include "unsloth/train/agreement.h"
#include "unsloth/train/learning_rate.h"
#include "unsloth/train/parallel.h"

namespace unsloth::train {
namespace {

using Clock = std::chrono::steady_clock;

std::string count_text(int64_t count) {
    char text[32];
    const auto value = static_cast<double>(count);
    if (value >= 1e9)
        std::snprintf(text, sizeof text, "%.2f B", value / 1e9);
    else if (value >= 1e6)
        std::snprintf(text, sizeof text, "%.2f M", value / 1e6);
    else if (value >= 1e4)
        std::snprintf(text, sizeof text, "%.1f k", value / 1e3);
    else
        std::snprintf(text, sizeof text, "%lld", static_cast<long long>(count));
    return text;
}

/// The plan must hold these batches, too; their tokens are within the limits already.
void widen(data::BatchLimits& limits, const data::BatchLimits& other) {
    limits.segments = std::max(limits.segments, other.segments);
    limits.longest = std::max(limits.longest, other.longest);
    limits.labels = std::max(limits.labels, other.labels);
}

/// What tensor-parallel ranks do not do, beside what their weights' forms refuse.
void require_cuttable(const config::Config& config) {
    const std::string size = cat("distributed.tp_size ", config.distributed.tp_size, " does not go with ");
    if (config.training.sample_prompts)
        throw usage_error(size + "training.sample_prompts: a rank alone cannot answer", "Leave one of the two out.");
    if (config.model.dtype == spec::DType::f16)
        throw usage_error(size + "model.dtype float16: sums over ranks are in bf16 or fp32", "Use bfloat16.");
}

report::RunFacts facts_of(int64_t steps, const model::ModelPlan& plan, const data::Dataset& rows) {
    std::map<std::string, int64_t> groups;
    std::vector<const memory::Plan*> parts = {&plan.resident(), &plan.step()};
    if (plan.request().device.is_cpu()) parts.push_back(&plan.host());
    for (const memory::Plan* part : parts)
        for (const memory::Entry& entry : part->entries()) groups[entry.group] += entry.bytes;
    groups["recorded passes"] = plan.recorded_bytes();
    std::erase_if(groups, [](const auto& group) { return group.second == 0; });
    return {steps,
            plan.total_bytes(),
            {groups.begin(), groups.end()},
            report::row_lengths(rows.size(), [&](int64_t i) { return rows.tokens(i); }),
            planner::run_plan_json(plan.request().run)};
}

}  // namespace

Trainer::Trainer(const config::LoadedConfig& loaded, Purpose purpose)
    : loaded_(loaded),
      purpose_(purpose),
      environment_(comm::read_launch_environment()),
      device_(ops::choose_device(loaded.config.hardware.device, environment_.local_rank)) {
    if (!leads()) log::set_level(std::max(log::level(), log::Level::warning));
    if (environment_.local_world_size > 1 && config().hardware.device.rfind("cuda:", 0) == 0)
        throw usage_error(cat("hardware.device ", config().hardware.device, " would put all ",
                              environment_.local_world_size, " processes on one GPU"),
                          "Leave it at auto: each process takes the GPU of its number.");
    for (const std::string& note : loaded.notes) log::info(note);
    const comm::MeshShape mesh = choose_mesh(config().distributed, environment_.world_size);
    nccl_ = comm::set_nccl_environment(config().distributed.nccl);
    group_ = comm::make_group(environment_, device_, std::chrono::seconds(config().distributed.ddp_timeout));
    telling_others([this, mesh] {
        if (group_) mesh_.emplace(*group_, mesh);
        const comm::Busy starting(group_.get(), "looking for checkpoints and opening the model");
        opened_ = open_model(config());
        settle_learning_rate();
        if (purpose_ == Purpose::trains) require_own_output();
        open_output();
        const comm::Busy reading(group_.get(), "reading the data");
        open_data();
        require_agreement();
        make_plan();
        if (purpose_ == Purpose::trains) require_disk();
        if (resume_) require_same_run(effective_config(), *resume_);
    });
}

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
        throw usage_error(
            cat("rank ", rank, " was started differently from rank 0: \"", b, "\" instead of \"", a, "\""),
            "All ranks need the same configuration, model and data.");
    }
}

/// A rate that is left to the program is a number from here on.
void Trainer::settle_learning_rate() {
    std::optional<double>& rate = loaded_.config.training.learning_rate;
    if (rate) return;
    const LearningRateRule rule = learning_rate_rule(config(), opened_.file->spec);
    rate = rule.rate;
    log::info("learning_rate auto: ", rule.reason);
}

// --- before the first step -----------------------------------------------------------------------------------------

void Trainer::open_data() {
    data::TrainingData data =
        data::load_training_data(config(), opened_.limits(), encoder_maker(opened_, config()),
                                 data::run_encoder_fingerprint(opened_.tokenizer_folder, config().data));
    if (data.eval) eval_rows_ = std::move(*data.eval);
    data::LoaderOptions options = data::loader_options(config(), data_rank(), data_ranks());
    // Whether embeddings are trained may be the adapter folder's word: sorting the ids costs next to nothing.
    const auto& saved = config().lora.modules_to_save;
    options.order_tokens = full() || config().model.adapter_name_or_path ||
                           std::find(saved.begin(), saved.end(), "embed_tokens") != saved.end();
    data_fingerprint_ = data.train.fingerprint();
    if (resume_ && resume_->state.data != data_fingerprint_)
        throw usage_error(cat("the training rows are not those of ", resume_->folder.string()),
                          "Use the same files, format, template and tokenizer; or start a new run from its weights "
                          "with model.adapter_name_or_path.");
    loader_ = std::make_unique<data::StepLoader>(std::move(data.train), options);
    total_steps_ = loader_->total_steps(config().training.num_train_epochs, config().training.max_steps);
    if (resume_) require_steps_left(*resume_, total_steps_);
    schedule_ = config::schedule_options(config().training, total_steps_);
    if (config().training.lr_scheduler_type == config::Schedule::reduce_lr_on_plateau) {
        if (eval_rows_.size() == 0 || config().training.eval_steps == 0)
            throw usage_error(
                "lr_scheduler_type reduce_lr_on_plateau follows the evaluation loss, and nothing is evaluated during "
                "the run",
                "Give data.eval_file, data.eval_files or data.val_size, and training.eval_steps.");
        plateau_.emplace(schedule_);
    }
}

void Trainer::make_plan() {
    model::LoadRequest request = load_request(loaded_, device_, /*trains=*/true);
    objective_ = objective::make_objective(config(), device_, references_, group_.get());
    if (mesh_) request.tp = model::TensorParallel(mesh_->tp());
    if (!request.tp.alone()) require_cuttable(config());
    request.weighs = objective_->weighs();
    request.share = optimizer_share(config().distributed, mesh_ ? &*mesh_ : nullptr);
    request.saves = (leads() || request.share.size > 1) && config::saves_checkpoints(config().training);
    data::BatchLimits limits = loader_->limits();
    if (eval_rows_.size() > 0) {
        limits.tokens = std::max(limits.tokens, eval_rows_.stats().longest);
        evaluator_.emplace(eval_rows_, config().data.eval_files, limits.tokens, data_rank(), data_ranks(),
                           group_.get());
        widen(limits, evaluator_->limits());
    }
    if (objective::needs_references(config())) plan_references(limits);
    model::ActivationSizes& sizes = request.sizes;
    if (config().training.sample_prompts && purpose_ == Purpose::trains) {  // on all ranks: their plans are alike
        samples_ = std::make_unique<Samples>(config(), opened_);
        limits.tokens = std::max(limits.tokens, samples_->longest());
        limits.longest = std::max(limits.longest, samples_->longest());
        sizes.cache_tokens = samples_->room();
    }
    sizes.tokens = limits.tokens;
    sizes.segments = limits.segments;
    sizes.longest = limits.longest;
    sizes.head_rows = limits.labels;
    request.run.head_tile = head_chunk_rows(opened_.file->spec, request.dtype, limits.labels);
    sizes.deterministic = config().training.deterministic;
    plan_ = std::make_unique<model::ModelPlan>(opened_.file, request);
    choose_together(config(), *plan_, config().training.gradient_accumulation_steps, group_.get(),
                    resume_ ? report::read_run_facts(resume_->folder.parent_path()).run_plan : "");
    const bool of_base = config().preference.reference == config::Reference::base;
    if (reference_rows_ && of_base && config().model.adapter_name_or_path && plan_->lora() &&
        !plan_->lora()->modules_to_save.empty())
        throw usage_error(
            cat("preference.reference base is the model without adapters, and ", *config().model.adapter_name_or_path,
                " replaces ", plan_->lora()->modules_to_save.front(), " as a whole"),
            "Set preference.reference to initial.");
}

/// The rows that a reference is to score, in batches as the evaluation has them: the plan must hold these too.
void Trainer::plan_references(data::BatchLimits& limits) {
    const int64_t first = resume_ ? resume_->state.progress.step : 0;
    reference_rows_.emplace(loader_->dataset().subset(loader_->rows_of_steps(first, total_steps_)), limits.tokens,
                            data_rank(), data_ranks());
    widen(limits, reference_rows_->limits());
}

/// Before the first step, and before a checkpoint's values replace those that the run began with.
void Trainer::score_references() {
    const Clock::time_point start = Clock::now();
    const bool of_base = config().preference.reference == config::Reference::base;
    const model::PolicyScope scope = of_base ? model::PolicyScope::base : model::PolicyScope::policy;
    const ReferenceCache cache = reference_cache(scope);
    references_ = train::score_references(*model_, device_, *reference_rows_, scope, group_.get(), cache);
    if (evaluator_)
        eval_references_ = train::score_references(*model_, device_, evaluator_->batches(), scope, group_.get(), cache);
    log::info("reference  ", of_base ? "base" : "initial", ": ", reference_rows_->dataset().size(),
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
    if (loader_->dataset().stats().tokens * bytes_of_token < cache.files.least_bytes) cache.files.folder.clear();
    const model::LoadRequest& request = plan_->request();
    const std::string adapters =
        scope == model::PolicyScope::base ? "none" : values_hash(model_->parameters()->values_P);
    cache.key =
        cat("references of ", version, " ", sample_hash(opened_.file->checkpoint), " ", plan_->base_description(), " ",
            name_of(config().model.dtype), " adapters ", adapters, " ", memory::describe_device(device_), " ",
            static_cast<int>(config().hardware.kernels), " ", request.sizes.deterministic, " tokens ",
            request.sizes.tokens, " ranks ", environment_.world_size, " threads ", cpu_threads());
    return cache;
}

namespace {

/// What the log says of a choice.
std::string describe_layers(const spec::RunPlan& run) {
    const spec::LayerPlan& layer = run.layers.front();
    const auto kept_alike = [&](const spec::LayerPlan& other) {
        return other.keep == layer.keep && other.activations_at == layer.activations_at;
    };
    if (!std::all_of(run.layers.begin(), run.layers.end(), kept_alike))
        return cat("of the layers ", planner::describe_keep(run),
                   ", in the words of gradient_checkpointing; what they do not keep is recomputed");
    const char* const what[] = {"every layer's activations",
                                "every layer's activations but its MLP's; those are recomputed",
                                "each layer's input and its attention's output; the rest is recomputed",
                                "each layer's input; the rest is recomputed"};
    return cat(what[static_cast<int>(layer.keep)], layer.activations_at == spec::Place::host ? ", in host memory" : "",
               " (gradient_checkpointing ", name_of(layer), ")");
}

}  // namespace

void Trainer::banner() const {
    const spec::ModelSpec& spec = opened_.file->spec;
    const weights::ParameterTable& table = *plan_->table();
    const int64_t trainable = table.trainable_elements(), total = opened_.file->tensors.parameters();
    char share[32];
    std::snprintf(share, sizeof share, "%.3f %%", 100.0 * static_cast<double>(trainable) / static_cast<double>(total));
    log::info("model      ", config().model.path, ": ", spec.model_type, ", ", spec.num_layers, " layers, hidden ",
              spec.hidden_size, ", ", count_text(total), " parameters; base: ", plan_->base_description());
    log::info("trainable  ", count_text(trainable), " parameters (", share, " of the model)",
              full() ? ", all of it" : "");
    if (group_ && device_.is_cuda())
        for (const std::string& setting : nccl_) log::info("nccl       ", setting);
    if (group_)
        log::info("ranks      ", environment_.world_size, ", ", environment_.local_world_size,
                  " on this machine, started by ", environment_.launcher,
                  data_ranks() < environment_.world_size
                      ? cat("; ", data_ranks(), " copies of the model, each over ", mesh_->shape().tp)
                      : "");
    log::info("device     ", memory::describe_device(device_), "; compute ", name_of(config().model.dtype),
              ", residual stream in the same type");
    log::info("data       ", data::describe(*loader_));
    if (config().training.max_steps == 0)
        log::info("steps      ", loader_->total_steps(config().training.num_train_epochs, -1), " without max_steps 0");
    else
        log::info("steps      ", total_steps_);
    log::info("keeps      ", describe_layers(plan_->request().run));
    if (const std::string places = describe_places(*plan_); !places.empty())
        log::info("weights    ", places, "; copied to the device ahead of use, for ", plan_->request().run.in_flight,
                  " micro-batches at a time");
    if (device_.is_cuda()) {
        const Machine machine = machine_of(device_);
        char predicted[64];
        std::snprintf(predicted, sizeof predicted, "%.0f ms a step of full rows",
                      predicted_step_ms(*plan_, machine.card, config().training.gradient_accumulation_steps));
        log::info("predicted  ", predicted, machine.known ? "" : ", by the rates of a card like this one");
    }
    log::info("memory plan\n", plan_->table_text());
    if (const auto doubt = doubt_learning_rate(config(), spec); doubt && leads()) log::warning(*doubt);
    if (spec.tie_word_embeddings && plan_->lora() && !plan_->lora()->modules_to_save.empty())
        log::warning(
            "embed_tokens and lm_head are tied in this model; modules_to_save trains its own copies, as PEFT does: "
            "after a merge the "
            "two are no longer tied");
}

void Trainer::load() {
    require_memory(opened_.file, *plan_, memory_budget(config(), device_));
    ctx_ = make_context(config(), device_);
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
    if (leads() || model_->parameters()->share().size > 1)
        saver_.emplace(run_files(), *ctx_, model_->parameters()->saved(), model_->parts().copies);
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
        summarise("error", text.substr(0, text.find('\n')));
        throw;
    }
}

void Trainer::run_together() {
    banner();
    if (config().training.max_steps == 0) {
        require_memory(opened_.file, *plan_, memory_budget(config(), device_));
        log::info("max_steps 0: everything is valid and planned; nothing was trained");
        return;
    }
    const std::filesystem::path folder = config().training.output_dir;
    if (const std::filesystem::path trace = std::filesystem::path(config().logging.profile).parent_path();
        !trace.empty() && !std::filesystem::is_directory(trace))
        throw usage_error(cat("logging.profile: there is no folder ", trace.string()),
                          "Create it, or name a file in one that exists.");
    std::optional<comm::Busy> starting;
    starting.emplace(group_.get(), "loading the model");
    if (leads()) write_file_atomically(folder / "run_config.json", config::config_to_json(effective_config()));
    const Clock::time_point start = Clock::now();
    load();
    require_same_values();
    summary_.load_seconds = seconds_since(start);
    char text[96];
    std::snprintf(text, sizeof text, "%.1f", summary_.load_seconds);
    log::info("loaded in ", text, " s");
    const config::TrainingOptions& t = config().training;
    time_left_ =
        TimeLeft({total_steps_, t.eval_steps, t.save_steps, t.save_minutes, evaluator_ ? evaluator_->tokens() : 0});
    if (leads()) {
        write_file_atomically(folder / report::facts_file,
                              report::run_facts_json(facts_of(total_steps_, *plan_, loader_->dataset())));
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
