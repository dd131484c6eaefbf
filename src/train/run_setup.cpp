#include "unsloth/train/run_setup.h"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <utility>

#include "train/output_folder.h"
#include "unsloth/comm/peer_memory.h"
#include "unsloth/config/load.h"
#include "unsloth/core/error.h"
#include "unsloth/core/interrupt.h"
#include "unsloth/core/log.h"
#include "unsloth/data/format.h"
#include "unsloth/data/run_tokenizer.h"
#include "unsloth/formats/base_mark.h"
#include "unsloth/objective/objective.h"
#include "unsloth/ops/device.h"
#include "unsloth/placement/agreed_plan.h"
#include "unsloth/placement/agreement.h"
#include "unsloth/placement/kernels.h"
#include "unsloth/placement/loading.h"
#include "unsloth/placement/parallel.h"
#include "unsloth/placement/rollout_rows.h"
#include "unsloth/placement/stages.h"
#include "unsloth/report/run.h"
#include "unsloth/rollouts/generation.h"
#include "unsloth/rollouts/replay.h"
#include "unsloth/rollouts/sampled_groups.h"

namespace unsloth::train {
namespace {

/// The plan must hold these batches, too.
void widen(data::BatchLimits& limits, const data::BatchLimits& other) {
    limits.tokens = std::max(limits.tokens, other.tokens);
    limits.all_keys = std::max(limits.all_keys, other.all_keys);
    limits.sequences = std::max(limits.sequences, other.sequences);
    limits.segments = std::max(limits.segments, other.segments);
    limits.keys = std::max(limits.keys, other.keys);
    limits.longest = std::max(limits.longest, other.longest);
    limits.labels = std::max(limits.labels, other.labels);
    limits.patches = std::max(limits.patches, other.patches);
    limits.image_tokens = std::max(limits.image_tokens, other.image_tokens);
    limits.copies = std::max(limits.copies, other.copies);
}

}  // namespace

RunSetup::RunSetup(const config::LoadedConfig& loaded, Purpose purpose)
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
    const comm::MeshShape mesh = placement::choose_mesh(config().distributed, environment_.world_size);
    nccl_ = comm::set_nccl_environment(config().distributed.nccl);
    group_ = comm::make_group(environment_, device_, std::chrono::seconds(config().distributed.ddp_timeout));
    telling_others([this, mesh] {
        if (group_) mesh_.emplace(*group_, mesh, placement::several_chunks(config().distributed));
        const comm::LongOperation starting(group_.get(), "looking for checkpoints and opening the model");
        opened_ = session::open_model(config());
        if (session::settle_length(loaded_.config.model, opened_.file->spec))
            log::info("max_seq_length null: rows of up to ", config().model.max_seq_length,
                      " tokens, the positions that the model has");
        session::require_positions(loaded_, opened_.file->spec);
        if (purpose_ == Purpose::trains) require_own_output(config(), opened_.file->checkpoint.folder());
        open_output();
        settle_learning_rate();
        const comm::LongOperation reading(group_.get(), "reading the data");
        open_data();
        settle_rank();
        require_agreement();
        make_plan();
        if (purpose_ == Purpose::trains) require_disk();
        if (resume_) require_same_run(effective_config(), *resume_);
    });
}

void RunSetup::telling_others(const std::function<void()>& work) const {
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
void RunSetup::require_agreement() const {
    if (group_ == nullptr) return;
    const data::DatasetStats& stats = loader_->dataset().stats();
    const std::string own = cat(
        "data: ", loader_->dataset().size(), " rows, ", stats.tokens, " tokens, ", stats.trained_tokens,
        " of them targets\n", "rows: ", data_fingerprint_, "\n",
        "checkpoint: ", resume_ ? resume_->state.progress.step : 0, "\n", "model: ", opened_.file->tensors.parameters(),
        " parameters, ", opened_.file->tensors.quantised_linears(), " linears in 4 bit, samples of the values ",
        placement::sample_hash(opened_.file->checkpoint), "\n", config::config_to_json(config()));
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

/// What a resumed run must find again.
static void require_same_rows(const std::optional<ResumePoint>& resume, const std::string& fingerprint) {
    if (resume && resume->state.data != fingerprint)
        throw Error("checkpoint.other-data", cat("the training rows are not those of ", resume->folder.string()),
                    "Use the same files, format, template and tokenizer; or start a new run from its weights "
                    "with model.adapter_name_or_path.");
}

void RunSetup::open_data() {
    if (config::samples_completions(config().training.objective)) return open_rollouts();
    data::TrainingData data =
        data::load_training_data(config(), opened_.limits(), session::encoder_maker(opened_, config()),
                                 data::run_encoder_fingerprint(opened_.tokenizer_folder, config().data));
    if (data.eval) eval_rows_ = std::move(*data.eval);
    data::LoaderOptions options = data::loader_options(config(), data_rank(), data_ranks());
    options.context = context();
    // Whether embeddings are trained may be the adapter folder's word: sorting the ids costs next to nothing.
    const auto& saved = config().lora.modules_to_save;
    options.order_tokens = full() || config().model.adapter_name_or_path ||
                           std::find(saved.begin(), saved.end(), "embed_tokens") != saved.end();
    data_fingerprint_ = data.train.fingerprint();
    require_same_rows(resume_, data_fingerprint_);
    if (placement::shares_prompts(config(), opened_.file->spec)) {
        data.train = data.train.with_shared_prompts();
        eval_rows_ = eval_rows_.with_shared_prompts();
    }
    if (config::traits_of(config().training.objective).learns_prompts) {
        data.train = data.train.with_trained_prompts();
        eval_rows_ = eval_rows_.with_trained_prompts();
    }
    if (may_keep_features()) {
        kept_ = std::make_shared<model::KeptFeatures>();
        data.train.set_kept(kept_);
        eval_rows_.set_kept(kept_);
    }
    loader_ = std::make_unique<data::StepLoader>(std::move(data.train), options);
    settle_steps(loader_->total_steps(config().training.num_train_epochs, config().training.max_steps),
                 loader_->steps_per_epoch());
    if (config().training.lr_scheduler_type == config::Schedule::reduce_lr_on_plateau)
        if (eval_rows_.size() == 0 || !config::evaluates_between_steps(config().training))
            throw Error(
                "option.no-evaluation",
                "lr_scheduler_type reduce_lr_on_plateau follows the evaluation loss, and nothing is evaluated during "
                "the run",
                "Give data.eval_file, data.eval_files or data.val_size, and training.eval_steps or evals_per_epoch.");
}

void RunSetup::settle_steps(int64_t total, int64_t of_epoch) {
    total_steps_ = total;
    epoch_steps_ = of_epoch;
    intervals_ = config::step_intervals(config().training, total, of_epoch);
    if (resume_ && config().training.max_steps != 0) require_steps_left(*resume_, total_steps_);
    schedule_ = config::schedule_options(config().training, total_steps_);
    last_step_ = config::last_step(config().training, total_steps_);
}

/// Completions are sampled, or read with their rewards.
void RunSetup::open_rollouts() {
    const config::TrainingOptions& t = config().training;
    const spec::ModelSpec& spec = opened_.file->spec;
    const bool shares = placement::shares_prompts(config(), spec);
    order_.emplace(config(), data_ranks(), shares);
    if (!shares)
        log::info(
            "passes     have the prompt of each completion again: gated delta nets resume from no other row's state");
    groups_ = config().grpo.replay_rollouts
                  ? rollouts::open_replay(config(), *order_, {spec.vocab_size, config().model.max_seq_length})
                  : rollouts::open_sampled(config(), *order_, opened_, data_rank(), data_ranks());
    data_fingerprint_ = groups_->fingerprint();
    require_same_rows(resume_, data_fingerprint_);
    data::LoaderOptions options = data::loader_options(config(), data_rank(), data_ranks());
    options.shuffle = false;
    options.order_tokens = config().model.adapter_name_or_path || full() || !config().lora.modules_to_save.empty();
    loader_ = std::make_unique<data::StepLoader>(groups_->longest_rows(), options);
    const int64_t epoch = groups_->generations_of_epoch();
    const double epochs = groups_->repeats() ? t.num_train_epochs : 1;
    settle_steps(t.max_steps >= 0 ? t.max_steps
                                  : order_->steps(static_cast<int64_t>(std::ceil(epochs * static_cast<double>(epoch)))),
                 std::max<int64_t>(1, order_->steps(epoch)));
}

void RunSetup::make_plan() {
    if (config::traits_of(config().training.objective).has_teacher) {
        teacher_ = std::make_unique<session::TeacherSetup>(loaded_, opened_, device_);
        teacher_->require(loader_->dataset(), "the training rows");
        teacher_->require(eval_rows_, "the evaluation's rows");
    }
    if (mesh_ && mesh_->pp() != nullptr) placement::require_pipelined(config(), device_, opened_.file->spec.num_layers);
    placement::Recipe recipe{
        .device = device_,
        .kernels = placement::kernel_table_of(resume_ ? resume_->folder.string() : "", config(), device_),
        .held = placement::held_memory(*opened_.file, device_),
        .ranks = placement::ranks_of(group_.get(), mesh_ ? &*mesh_ : nullptr),
        .teacher_tokens = teacher_ ? teacher_->named_tokens() : 0};
    recipe.ranks.reach =
        placement::divides_base(config()) && group_ && comm::can_share_memory(*group_, mesh_->copies_here(), device_);
    model::LoadRequest request = placement::make_request(loaded_, opened_.file->spec, recipe);
    if (request.adapter && leads())
        formats::warn_of_other_base(formats::read_adapter(*request.adapter, opened_.file->spec), *opened_.file,
                                    config().model.path);
    const std::vector<placement::Answering> answers = answering(request);  // on all ranks: their plans are alike
    choose_pass_rows(request, answers);
    data::BatchLimits limits = row_limits();
    if (eval_rows_.size() > 0) {
        const int64_t whole = std::max(limits.tokens * context().size, eval_rows_.stats().longest);
        evaluator_.emplace(eval_rows_, config().data.eval_files, whole, data_rank(), data_ranks(), group_.get(),
                           context());
        widen(limits, evaluator_->limits());
    }
    if (objective::needs_references(config())) plan_references(limits);
    if (limits.patches > 0) require_images();
    placement::fit_to(request, opened_.file->spec, limits, answers);
    if (teacher_) teacher_->plan(request, group_.get());
    plan_ = std::make_unique<model::ModelPlan>(opened_.file, request);
    if (limits.patches == 0 && plan_->trains_tower())
        throw Error("option.no-effect", "adapters in the tower (lora.vision) are trained by images, and no row has one",
                    "Leave lora.vision out, or give rows with images.");
    if (mesh_ && mesh_->pp() != nullptr) {
        request.pp = placement::plan_pipeline(config(), *plan_, *mesh_, *group_, loader_->passes_of_step());
        plan_ = std::make_unique<model::ModelPlan>(opened_.file, request);
    }
    choose_plan();
    session::TeacherPlan* const teacher = teacher_ ? teacher_->plan() : nullptr;
    if (teacher != nullptr && !fits_everywhere() && teacher->move_to_host()) {
        *plan_ = plan_->with(plan_->request());  // may find more of its base in host memory then
        choose_plan();
    }
    plan_kept_features();
    const bool of_base = config().preference.reference == config::Reference::base;
    if (reference_rows_ && of_base && config().model.adapter_name_or_path && plan_->lora() &&
        !plan_->lora()->modules_to_save.empty())
        throw Error(
            "option.unsupported",
            cat("preference.reference base is the model without adapters, and ", *config().model.adapter_name_or_path,
                " replaces ", plan_->lora()->modules_to_save.front(), " as a whole"),
            "Set preference.reference to initial.");
}

/// Refuses options that do not support rows with images.
void RunSetup::require_images() const {
    if (teacher_ && !placement::teacher_is_file(config()))
        throw Error("option.unsupported", "distill.teacher is a model, and the rows have images",
                    "Write a teacher's file first: unsloth-train score --top_k reads images.");
}

/// The plan of the part of the run that this one resumes, as JSON; empty: there is none.
std::string RunSetup::plan_before() const {
    return resume_ ? report::read_run_facts(resume_->folder.parent_path()).run_plan : "";
}

/// Of a pass over training rows.
data::BatchLimits RunSetup::row_limits() const {
    if (!order_) return loader_->limits();
    return rollouts::pass_limits(loader_->dataset(), *order_, data_ranks(), loader_->pass_rows());
}

/// training.micro_batch auto.
void RunSetup::choose_pass_rows(model::LoadRequest& request, const std::vector<placement::Answering>& answering) {
    if (!placement::may_regroup(config(), device_, opened_.file->spec)) return;
    placement::PassChoice choice;
    choice.given = config().training.per_device_train_batch_size;
    choice.of_step = loader_->rows_of_step();
    choice.plan_of = [&](int64_t rows) {
        loader_->set_pass_rows(rows);
        model::LoadRequest pass = request;
        placement::fit_to(pass, opened_.file->spec, row_limits(), answering);
        return model::ModelPlan(opened_.file, pass);
    };
    const data::EpochCounts epoch = loader_->count_epoch(0);
    loader_->set_pass_rows(1);
    choice.usual = static_cast<double>(epoch.tokens) / static_cast<double>(loader_->rows_per_epoch()) /
                   static_cast<double>(row_limits().tokens * context().size);
    request.run.pass_rows =
        placement::choose_pass_rows_together(config(), choice, device_, group_.get(), plan_before());
    loader_->set_pass_rows(request.run.pass_rows);
    log::info("passes     of ", request.run.pass_rows, " rows, ", loader_->passes_of_step(), " a step");
}

void RunSetup::choose_plan() {
    placement::choose_together(config(), *plan_, loader_->passes_of_step(), group_.get(), plan_before(), taken());
}

const model::ModelPlan* RunSetup::teachers_plan() const {
    const session::TeacherPlan* const teacher = teacher_ ? teacher_->plan() : nullptr;
    return teacher != nullptr ? &teacher->plan() : nullptr;
}

placement::MemoryBudget RunSetup::taken() const {
    const session::TeacherPlan* const teacher = teacher_ ? teacher_->plan() : nullptr;
    return teacher != nullptr ? teacher->need() : placement::MemoryBudget{};
}

placement::MemoryBudget RunSetup::budget() const {
    placement::Machine machine = placement::machine_of(device_);
    machine.taken = taken();
    return placement::memory_budget(config(), device_, machine);
}

/// Of all ranks alike.
bool RunSetup::fits_everywhere() const {
    const bool own = placement::fits(*plan_, budget());
    if (!group_) return own;
    const std::vector<std::string> all = group_->gather(own ? "fits" : "", "whether the plans fit");
    return std::all_of(all.begin(), all.end(), [](const std::string& answer) { return !answer.empty(); });
}

/// The rows that a reference is to score, in batches as the evaluation has them: the plan must hold these too. A run
/// that resumes scores those of its first steps, too: a row's score may depend, by its last bits, on its batch.
void RunSetup::plan_references(data::BatchLimits& limits) {
    reference_rows_.emplace(loader_->dataset().subset(loader_->rows_of_steps(0, total_steps_)), limits.tokens,
                            data_rank(), data_ranks());
    widen(limits, reference_rows_->limits());
}

/// As many completions at a time as all ranks have room for.
placement::Answering RunSetup::sampling(const model::LoadRequest& request, placement::Answering needs) {
    const int64_t asked = needs.rows;
    needs.rows = placement::rows_in_flight(config(), opened_.file, request, needs, budget());
    if (group_)
        for (const std::string& rows : group_->gather(std::to_string(needs.rows), "how many completions fit"))
            needs.rows = std::min<int64_t>(needs.rows, std::stoll(rows));
    rows_in_flight_ = needs.rows;
    if (needs.rows < asked)
        log::info("rollouts   ", needs.rows, " of ", asked, " completions are sampled at a time; others follow");
    return needs;
}

/// Sampled prompts, and the rows whose answers evaluations judge.
std::vector<placement::Answering> RunSetup::answering(const model::LoadRequest& request) {
    const config::TrainingOptions& t = config().training;
    std::vector<placement::Answering> needs;
    if (purpose_ != Purpose::trains) return needs;
    if (groups_)
        if (const auto rollouts = groups_->needs()) needs.push_back(sampling(request, *rollouts));
    if (t.sample_prompts) {
        samples_ = std::make_unique<Samples>(config(), opened_, data::format_name(loader_->dataset().stats().format));
        needs.push_back(samples_->needs());
    }
    if (t.eval_metric == config::AnswerMetric::none) return needs;
    const AnswerRules rules{t.eval_metric,     t.eval_answer_regex,          t.eval_max_new_tokens,
                            answers_at_a_time, "training.eval_answer_regex", "training.eval_max_new_tokens"};
    answers_ = std::make_unique<CompletionEvaluator>(rules, eval_rows_, opened_, config().data.eval_files);
    needs.push_back(answers_->needs());
    return needs;
}

}  // namespace unsloth::train
