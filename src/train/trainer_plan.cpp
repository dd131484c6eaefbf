// What a run is made of before its first step: rows, the plan that holds them, what a reference says of them.
#include <algorithm>
#include <chrono>
#include <utility>

#include "train/answers.h"
#include "train/references.h"
#include "unsloth/comm/peer_memory.h"
#include "unsloth/core/error.h"
#include "unsloth/core/hash.h"
#include "unsloth/core/log.h"
#include "unsloth/core/version.h"
#include "unsloth/data/format.h"
#include "unsloth/data/run_tokenizer.h"
#include "unsloth/formats/base_mark.h"
#include "unsloth/memory/plan.h"
#include "unsloth/report/run.h"
#include "unsloth/train/agreed_plan.h"
#include "unsloth/train/agreement.h"
#include "unsloth/train/kernels.h"
#include "unsloth/train/learning_rate.h"
#include "unsloth/train/recipe.h"
#include "unsloth/train/stages.h"
#include "unsloth/train/trainer.h"

namespace unsloth::train {
namespace {

using Clock = std::chrono::steady_clock;

/// The plan must hold these batches, too.
void widen(data::BatchLimits& limits, const data::BatchLimits& other) {
    limits.tokens = std::max(limits.tokens, other.tokens);
    limits.all_keys = std::max(limits.all_keys, other.all_keys);
    limits.segments = std::max(limits.segments, other.segments);
    limits.keys = std::max(limits.keys, other.keys);
    limits.longest = std::max(limits.longest, other.longest);
    limits.labels = std::max(limits.labels, other.labels);
}

}  // namespace

/// A rate that is left to the program is a number from here on.
void Trainer::settle_learning_rate() {
    std::optional<double>& rate = loaded_.config.training.learning_rate;
    if (rate) return;
    const LearningRateRule rule = learning_rate_rule(config(), opened_.file->spec);
    rate = rule.rate;
    log::info("learning_rate auto: ", rule.reason);
}

void Trainer::open_data() {
    data::TrainingData data =
        data::load_training_data(config(), opened_.limits(), encoder_maker(opened_, config()),
                                 data::run_encoder_fingerprint(opened_.tokenizer_folder, config().data));
    if (data.eval) eval_rows_ = std::move(*data.eval);
    data::LoaderOptions options = data::loader_options(config(), data_rank(), data_ranks());
    options.context = context();
    // Whether embeddings are trained may be the adapter folder's word: sorting the ids costs next to nothing.
    const auto& saved = config().lora.modules_to_save;
    options.order_tokens = full() || config().model.adapter_name_or_path ||
                           std::find(saved.begin(), saved.end(), "embed_tokens") != saved.end();
    data_fingerprint_ = data.train.fingerprint();
    if (resume_ && resume_->state.data != data_fingerprint_)
        throw Error("checkpoint.other-data", cat("the training rows are not those of ", resume_->folder.string()),
                    "Use the same files, format, template and tokenizer; or start a new run from its weights "
                    "with model.adapter_name_or_path.");
    if (config::compares_answers(config().training.objective) && config().preference.share_prompt) {
        data.train = data.train.with_shared_prompts();
        eval_rows_ = eval_rows_.with_shared_prompts();
    }
    if (config().training.objective == config::Objective::orpo) {
        data.train = data.train.with_learnt_prompts();
        eval_rows_ = eval_rows_.with_learnt_prompts();
    }
    loader_ = std::make_unique<data::StepLoader>(std::move(data.train), options);
    total_steps_ = loader_->total_steps(config().training.num_train_epochs, config().training.max_steps);
    if (resume_ && config().training.max_steps != 0) require_steps_left(*resume_, total_steps_);
    schedule_ = config::schedule_options(config().training, total_steps_);
    if (config().training.lr_scheduler_type == config::Schedule::reduce_lr_on_plateau) {
        if (eval_rows_.size() == 0 || config().training.eval_steps == 0)
            throw Error(
                "option.no-evaluation",
                "lr_scheduler_type reduce_lr_on_plateau follows the evaluation loss, and nothing is evaluated during "
                "the run",
                "Give data.eval_file, data.eval_files or data.val_size, and training.eval_steps.");
        plateau_.emplace(schedule_);
    }
}

void Trainer::make_plan() {
    if (config().training.objective == config::Objective::distill) {
        instruction_ = std::make_unique<Instruction>(loaded_, opened_, device_);
        instruction_->require(loader_->dataset(), "the training rows");
        instruction_->require(eval_rows_, "the evaluation's rows");
    }
    objective_ = objective::make_objective(config(), device_, references_, mesh_ ? mesh_->stage() : nullptr,
                                           instruction_ ? &instruction_->teacher() : nullptr);
    if (mesh_ && mesh_->pp() != nullptr) require_pipelined(config(), device_, opened_.file->spec.num_layers);
    Recipe recipe{.device = device_,
                  .kernels = kernel_table_of(resume_ ? resume_->folder.string() : "", config(), device_),
                  .held = held_memory(*opened_.file, device_),
                  .ranks = ranks_of(group_.get(), mesh_ ? &*mesh_ : nullptr),
                  .teacher_tokens = instruction_ ? instruction_->named_tokens() : 0};
    recipe.ranks.reach =
        divides_base(config()) && group_ && comm::can_share_memory(*group_, mesh_->copies_here(), device_);
    model::LoadRequest request = make_request(loaded_, recipe);
    UNSLOTH_CHECK(request.weighs == objective_->weighs(), "a plan for another objective");
    if (request.adapter && leads())
        formats::warn_of_other_base(formats::read_adapter(*request.adapter, opened_.file->spec), *opened_.file,
                                    config().model.path);
    const std::vector<Answering> answers = answering();  // on all ranks: their plans are alike
    choose_pass_rows(request, answers);
    data::BatchLimits limits = loader_->limits();
    if (eval_rows_.size() > 0) {
        const int64_t whole = std::max(limits.tokens * context().size, eval_rows_.stats().longest);
        evaluator_.emplace(eval_rows_, config().data.eval_files, whole, data_rank(), data_ranks(), group_.get(),
                           context());
        widen(limits, evaluator_->limits());
    }
    if (objective::needs_references(config())) plan_references(limits);
    fit_to(request, opened_.file->spec, limits, answers);
    if (instruction_) instruction_->plan(request, group_.get());
    plan_ = std::make_unique<model::ModelPlan>(opened_.file, request);
    if (mesh_ && mesh_->pp() != nullptr) {
        request.pp = plan_pipeline(config(), *plan_, *mesh_, *group_, loader_->passes_of_step());
        plan_ = std::make_unique<model::ModelPlan>(opened_.file, request);
    }
    choose_plan();
    TeacherPlan* const teacher = instruction_ ? instruction_->plan() : nullptr;
    if (teacher != nullptr && !fits_everywhere() && teacher->move_to_host()) {
        *plan_ = plan_->with(plan_->request());  // may find more of its base in host memory then
        choose_plan();
    }
    const bool of_base = config().preference.reference == config::Reference::base;
    if (reference_rows_ && of_base && config().model.adapter_name_or_path && plan_->lora() &&
        !plan_->lora()->modules_to_save.empty())
        throw Error(
            "option.unsupported",
            cat("preference.reference base is the model without adapters, and ", *config().model.adapter_name_or_path,
                " replaces ", plan_->lora()->modules_to_save.front(), " as a whole"),
            "Set preference.reference to initial.");
}

/// The plan of the part of the run that this one goes on from, as JSON; empty: there is none.
std::string Trainer::plan_before() const {
    return resume_ ? report::read_run_facts(resume_->folder.parent_path()).run_plan : "";
}

/// training.micro_batch auto.
void Trainer::choose_pass_rows(model::LoadRequest& request, const std::vector<Answering>& answering) {
    if (!may_regroup(config(), device_)) return;
    PassChoice choice;
    choice.given = config().training.per_device_train_batch_size;
    choice.of_step = loader_->rows_of_step();
    choice.plan_of = [&](int64_t rows) {
        loader_->set_pass_rows(rows);
        model::LoadRequest pass = request;
        fit_to(pass, opened_.file->spec, loader_->limits(), answering);
        return model::ModelPlan(opened_.file, pass);
    };
    const data::EpochCounts epoch = loader_->count_epoch(0);
    loader_->set_pass_rows(1);
    choice.usual = static_cast<double>(epoch.tokens) / static_cast<double>(loader_->rows_per_epoch()) /
                   static_cast<double>(loader_->limits().tokens * context().size);
    request.run.pass_rows = choose_pass_rows_together(config(), choice, device_, group_.get(), plan_before());
    loader_->set_pass_rows(request.run.pass_rows);
    log::info("passes     of ", request.run.pass_rows, " rows, ", loader_->passes_of_step(), " a step");
}

void Trainer::choose_plan() {
    choose_together(config(), *plan_, loader_->passes_of_step(), group_.get(), plan_before(), taken());
}

const model::ModelPlan* Trainer::teachers_plan() const {
    const TeacherPlan* const teacher = instruction_ ? instruction_->plan() : nullptr;
    return teacher != nullptr ? &teacher->plan() : nullptr;
}

/// By the teacher, if there is one: it is loaded first.
MemoryBudget Trainer::taken() const {
    const TeacherPlan* const teacher = instruction_ ? instruction_->plan() : nullptr;
    return teacher != nullptr ? teacher->need() : MemoryBudget{};
}

/// What the plan may take.
MemoryBudget Trainer::budget() const {
    Machine machine = machine_of(device_);
    machine.taken = taken();
    return memory_budget(config(), device_, machine);
}

/// Of all ranks alike.
bool Trainer::fits_everywhere() const {
    const bool own = fits(*plan_, budget());
    if (!group_) return own;
    const std::vector<std::string> all = group_->gather(own ? "fits" : "", "whether the plans fit");
    return std::all_of(all.begin(), all.end(), [](const std::string& answer) { return !answer.empty(); });
}

/// The rows that a reference is to score, in batches as the evaluation has them: the plan must hold these too. A run
/// that goes on scores those of its first steps, too: what a row gets may depend, by its last bits, on its batch.
void Trainer::plan_references(data::BatchLimits& limits) {
    reference_rows_.emplace(loader_->dataset().subset(loader_->rows_of_steps(0, total_steps_)), limits.tokens,
                            data_rank(), data_ranks());
    widen(limits, reference_rows_->limits());
}

/// Sampled prompts, and the rows whose answers evaluations judge.
std::vector<Answering> Trainer::answering() {
    const config::TrainingOptions& t = config().training;
    std::vector<Answering> needs;
    if (purpose_ != Purpose::trains) return needs;
    if (t.sample_prompts) {
        samples_ = std::make_unique<Samples>(config(), opened_, data::format_name(loader_->dataset().stats().format));
        needs.push_back(samples_->needs());
    }
    if (t.eval_metric == config::AnswerMetric::none) return needs;
    const AnswerRules rules{t.eval_metric,     t.eval_answer_regex,          t.eval_max_new_tokens,
                            answers_at_a_time, "training.eval_answer_regex", "training.eval_max_new_tokens"};
    answers_ = std::make_unique<AnswerEvaluator>(rules, eval_rows_, opened_, config().data.eval_files);
    needs.push_back(answers_->needs());
    return needs;
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
    for (const objective::References* references : {&references_, &eval_references_})
        if (const at::Tensor& values = references->values(); values.defined() && !values.isfinite().all().item<bool>())
            throw Error("numerics.not-finite", cat("the reference's log-probabilities are not finite", bad_weight()),
                        overflow_advice);
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
    std::string adapters = "none";
    if (scope != model::PolicyScope::base) {
        adapters = values_hash(model_->parameters()->values_P);
        if (!model_->parameters()->holds_all())  // each rank has its own
            for (const std::string& hash : group_->gather(std::exchange(adapters, ""), "the hashes of all ranks"))
                adapters += hash;
    }
    ContentHash kernels;
    kernels.add(spec::kernels_text(*request.kernels));
    cache.key = cat("references of ", version, " ", sample_hash(opened_.file->checkpoint), " ",
                    plan_->base_description(), " ", name_of(config().model.dtype), " adapters ", adapters, " ",
                    memory::describe_device(device_), " ", kernels.hex(), " ", request.sizes.deterministic, " tokens ",
                    request.sizes.tokens, " ranks ", environment_.world_size, " threads ", cpu_threads());
    return cache;
}

}  // namespace unsloth::train
