#include "unsloth/train/training_state.h"

#include <chrono>
#include <utility>

#include "train/bad_step.h"
#include "train/references.h"
#include "unsloth/core/error.h"
#include "unsloth/core/hash.h"
#include "unsloth/core/log.h"
#include "unsloth/core/version.h"
#include "unsloth/memory/plan.h"
#include "unsloth/placement/agreement.h"
#include "unsloth/placement/loading.h"
#include "unsloth/placement/parallel.h"
#include "unsloth/train/learning_rate.h"
#include "unsloth/train/run_record.h"

namespace unsloth::train {

TrainingState::TrainingState(const RunSetup& setup) : setup_(setup) {
    placement::require_memory(setup_.plan(), setup_.budget());
    if (setup_.teacher()) setup_.teacher()->load(setup_.group());
    ctx = placement::make_context(config(), setup_.plan());
    model = std::make_unique<model::Model>(
        *ctx, setup_.plan().load(*ctx, placement::load_share(setup_.group(), setup_.plan())));
    if (setup_.reference_rows()) score_references();
    if (needs_initial_values()) initial_values = model->parameters()->values_P.cpu().clone();
    objective = objective::make_objective(config(), setup_.device(), references,
                                          setup_.mesh() ? setup_.mesh()->stage() : nullptr,
                                          setup_.teacher() ? &setup_.teacher()->teacher() : nullptr,
                                          setup_.rollout_order() ? setup_.rollout_order()->rows_of_step() : 0);
    UNSLOTH_CHECK(setup_.plan().request().sizes.objective.weighs == objective->weighs(),
                  "a plan for another objective");
    if (config().training.lr_scheduler_type == config::Schedule::reduce_lr_on_plateau)
        plateau.emplace(setup_.schedule());
    const config::TrainingOptions& t = config().training;
    StepSettings settings;
    settings.objective = objective.get();
    settings.adamw = adamw_settings(config());
    settings.max_grad_norm = t.max_grad_norm;
    settings.seed = static_cast<uint64_t>(t.seed);
    settings.group = setup_.group();
    settings.bucket_bytes = placement::bucket_bytes(config(), setup_.group());
    settings.loss_scaling = config().model.dtype == spec::DType::f16;
    settings.skip_on_spike = t.skip_on_spike;
    stepper = std::make_unique<Stepper>(*ctx, *model, settings);
    if (setup_.resume()) restore();
}

/// A new adapter is the base at the start, which needs no copy.
bool TrainingState::needs_initial_values() const {
    const bool fresh = !config().model.adapter_name_or_path && config().lora.modules_to_save.empty();
    return setup_.rollout_order() != nullptr && config().grpo.beta > 0 && !fresh &&
           config().grpo.reference == config::Reference::initial;
}

/// Before the first step, and before a checkpoint's values replace those that the run began with.
void TrainingState::score_references() {
    const auto start = std::chrono::steady_clock::now();
    const bool of_base = config().preference.reference == config::Reference::base;
    const model::PolicyScope scope = of_base ? model::PolicyScope::base : model::PolicyScope::policy;
    const ReferenceCache cache = reference_cache(scope);
    references =
        train::score_references(*model, setup_.device(), *setup_.reference_rows(), scope, setup_.group(), cache);
    if (setup_.evaluator())
        eval_references = train::score_references(*model, setup_.device(), setup_.evaluator()->batches(), scope,
                                                  setup_.group(), cache);
    for (const objective::References* scored : {&references, &eval_references})
        if (const at::Tensor& values = scored->values(); values.defined() && !values.isfinite().all().item<bool>())
            throw Error("numerics.not-finite",
                        cat("the reference's log-probabilities are not finite", bad_weight(setup_)),
                        session::overflow_advice);
    log::info("reference  ", of_base ? "base" : "initial", ": ", setup_.reference_rows()->dataset().size(),
              model->counts().qkv > 0 ? " rows scored in " : " rows from the cache in ",
              duration_text(seconds_since(start)));
}

/// Named by the model's values, how it computes, and how many rows share a batch: what bits depend on.
ReferenceCache TrainingState::reference_cache(model::PolicyScope scope) const {
    ReferenceCache cache;
    if (!config().preference.cache_reference) return cache;
    cache.files = data::cache_options(config().data.cache_dir);
    cache.files.max_bytes = static_cast<int64_t>(config().data.cache_max_gib * static_cast<double>(int64_t{1} << 30));
    constexpr int64_t bytes_of_token = 4;  // of text, about: the bound is on the data's files
    if (setup_.loader().dataset().stats().tokens * bytes_of_token < cache.files.least_bytes) cache.files.folder.clear();
    const model::LoadRequest& request = setup_.plan().request();
    std::string adapters = "none";
    if (scope != model::PolicyScope::base) {
        adapters = placement::values_hash(model->parameters()->values_P);
        if (!model->parameters()->holds_all())  // each rank has its own
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

double TrainingState::learning_rate(int64_t step) const {
    const config::TrainingOptions& t = config().training;
    if (plateau) return plateau->learning_rate();
    return *t.learning_rate * schedule_multiplier(t.lr_scheduler_type, setup_.schedule(), step - 1);
}

/// The state of the checkpoint that the run resumes from, to the last bit.
void TrainingState::restore() {
    const formats::RunState& saved = setup_.resume()->state;
    if (saved.parameters != layout_fingerprint(model->trained_by_all(), config().training.optim))
        throw Error("checkpoint.other-options",
                    cat("the trained parameters are not laid out as in ", setup_.resume()->folder.string()),
                    "Use the model, lora and optim options of its run_config.json.");
    load_values(setup_.resume()->folder);
    progress = saved.progress;
    stepper->restore(progress.optimizer);
    if (plateau && progress.plateau) plateau->restore(*progress.plateau);
    log::info("resuming from ", setup_.resume()->folder.string(), " at step ", progress.step + 1);
    if (saved.cpu_threads != 0 && setup_.cpu_threads() != 0 && saved.cpu_threads != setup_.cpu_threads())
        log::warning("changed since the checkpoint: ", saved.cpu_threads, " CPU threads until now, ",
                     setup_.cpu_threads(),
                     " from here on: products are summed in another order, and losses equal those of an uninterrupted "
                     "run to rounding alone (OMP_NUM_THREADS=",
                     saved.cpu_threads, " keeps their bits)");
}

void TrainingState::load_values(const std::filesystem::path& checkpoint) {
    weights::Parameters& parameters = *model->parameters();
    if (!setup_.full()) restore_adapter(checkpoint, parameters);
    restore_optimizer(checkpoint, model->trained_by_all(), parameters, config().training.optim,
                      /*with_values=*/setup_.full());
    model->parameters_changed();
}

StatePart TrainingState::part() const {
    return {model->pipeline().stage(), model->parameters()->share()};
}

}  // namespace unsloth::train
