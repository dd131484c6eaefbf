#include "commands/forecast.h"

#include <algorithm>
#include <filesystem>
#include <limits>

#include "unsloth/config/auto_values.h"
#include "unsloth/config/device_map.h"
#include "unsloth/config/load.h"
#include "unsloth/core/error.h"
#include "unsloth/core/log.h"
#include "unsloth/core/path_advice.h"
#include "unsloth/core/suggest.h"
#include "unsloth/core/text.h"
#include "unsloth/data/context_slice.h"
#include "unsloth/data/format.h"
#include "unsloth/data/run_tokenizer.h"
#include "unsloth/formats/described_model.h"
#include "unsloth/formats/hf_config.h"
#include "unsloth/formats/peft.h"
#include "unsloth/formats/shapes.h"
#include "unsloth/ops/device.h"
#include "unsloth/placement/layer_costs.h"
#include "unsloth/placement/parallel.h"
#include "unsloth/placement/rollout_rows.h"
#include "unsloth/placement/stages.h"
#include "unsloth/planner/exchange_time.h"
#include "unsloth/session/session.h"
#include "unsloth/spec/vision_spec.h"
#include "unsloth/train/answers.h"
#include "unsloth/train/rank_rule.h"
#include "unsloth/train/samples.h"

namespace unsloth::commands {

namespace fs = std::filesystem;

std::shared_ptr<const formats::WeightFile> open_or_describe(const config::Config& config) {
    const std::string &path = config.model.path, scaling = placement::rope_scaling_of(config);
    const auto scaled = [&](spec::ModelSpec spec) {
        if (!scaling.empty()) formats::set_rope_scaling(spec, scaling, "model.rope_scaling");
        return spec;
    };
    const std::vector<std::string> shapes = formats::builtin_shape_names();
    std::error_code ignored;
    if (!fs::exists(path, ignored) && std::find(shapes.begin(), shapes.end(), path) != shapes.end())
        return formats::describe_model(scaled(formats::builtin_shape(path)));
    const std::optional<fs::path> folder = formats::find_model_path(path, formats::ModelFiles::all_but_weights);
    if (!folder) {
        std::string meant = did_you_mean(nearest(path, shapes)), known;
        if (meant.empty()) meant = nearest_path(path);
        for (const std::string& shape : shapes) known += (known.empty() ? "" : ", ") + shape;
        throw Error("model.not-found", cat(path, ": no such model here"),
                    cat(meant, meant.empty() ? "" : " ",
                        "plan downloads nothing: name a folder that holds config.json, or one of ", known, "."));
    }
    if (fs::is_directory(*folder) && !fs::exists(*folder / "model.safetensors") &&
        !fs::exists(*folder / "model.safetensors.index.json")) {
        spec::ModelSpec spec = scaled(formats::read_model_spec(*folder));
        return formats::describe_model(std::move(spec), formats::read_quantization_config(*folder), *folder);
    }
    return std::make_shared<const formats::WeightFile>(formats::WeightFile::open(folder->string(), scaling));
}

config::LoadedConfig with_auto_values(config::LoadedConfig loaded, const spec::ModelSpec& spec, int64_t gpus) {
    config::Config& config = loaded.config;
    const config::TrainingOptions& t = config.training;
    if (!t.learning_rate) {
        const config::LearningRateRule rule = config::learning_rate_rule(config, spec);
        config.training.learning_rate = rule.rate;
        log::info("learning_rate auto: ", rule.reason);
    }
    if (config.lora.r != config::auto_rank) return loaded;
    config.lora.r = config::LoraOptions().r;
    if (config.lora.finetuning_type == config::FinetuningType::full) return loaded;
    if (const auto& adapter = config.model.adapter_name_or_path) {
        config.lora.r = formats::read_peft_config(formats::resolve_model_path(*adapter)).lora.r;
        return loaded;
    }
    std::optional<int64_t> targets;
    const int64_t length = config.model.max_seq_length > 0 ? config.model.max_seq_length : spec.usable_positions();
    if (t.max_steps > 0)
        targets = t.max_steps * t.per_device_train_batch_size * t.gradient_accumulation_steps * gpus * length;
    const train::RankRule rule = train::rank_rule(config, spec, placement::lora_spec(loaded), targets);
    config.lora.r = rule.r;
    log::info("r auto: ", rule.reason);
    return loaded;
}

spec::MemoryNeed Estimate::need() const {
    spec::MemoryNeed need = plan().need();
    if (!teacher) return need;
    const spec::MemoryNeed teachers = teacher->plan().need();
    return {need.device + teachers.device, need.host + teachers.host, need.there + teachers.there};
}

Target target_of(const engine_api::PlanRequest& request, const config::Config& config) {
    Target target;
    target.gpus = request.gpus;
    target.images = {request.images, request.image_size};
    if (request.gpu.empty() && request.gpu_memory_bytes == 0 && config.hardware.device == "cpu") {
        target.device = at::kCPU;
        target.machine = placement::machine_of(at::kCPU);
        target.memory = memory::device_memory(at::kCPU).total;
        return target;
    }
    planner::Card& card = target.machine.card;
    if (!request.gpu.empty()) {
        card = planner::find_card(request.gpu);
    } else if (request.gpu_memory_bytes > 0) {
        card = planner::card_of_memory(request.gpu_memory_bytes);
    } else if (const at::Device here = ops::choose_device("auto"); here.is_cuda()) {
        target.machine = placement::machine_of(here);
        card.memory_bytes = memory::device_memory(here).total;
    } else {
        throw Error("option.missing", "plan needs a card: this machine has no GPU",
                    "Name one (--gpu H200) or its memory (--gpu_memory 24GiB); or say --device cpu.");
    }
    target.memory = request.gpu_memory_bytes > 0 ? request.gpu_memory_bytes : card.memory_bytes;
    if (target.memory <= card.context_bytes)
        throw Error("memory.bad-limit",
                    cat("--gpu_memory ", human_bytes(target.memory), ": the driver and the libraries take ",
                        human_bytes(card.context_bytes), " of it"),
                    "A number without a unit is in bytes: --gpu_memory 24GiB.");
    target.machine.free = {target.memory - card.context_bytes, memory::device_memory(at::kCPU).total};
    return target;
}

Forecast::Forecast(config::LoadedConfig loaded, const Target& target, std::shared_ptr<const formats::WeightFile> file,
                   const Forecast* like)
    : loaded_(std::move(loaded)), target_(target), file_(std::move(file)) {
    (void)session::settle_length(loaded_.config.model, file_->spec);
    session::require_positions(loaded_, file_->spec);
    config::require_distributed(config());
    const comm::MeshShape mesh = placement::choose_mesh(config().distributed, static_cast<int>(target.gpus));
    if (mesh.pp > 1) placement::require_pipelined(config(), target.device, file_->spec.num_layers);
    copies_ = mesh.dp;
    if (target.gpus > 1 && target.device.is_cuda()) {
        communicator_bytes_ = planner::communicator_bytes(
            target.machine.card, comm::communicator_sizes(mesh, placement::several_chunks(config().distributed)));
        int64_t& free = target_.machine.free.device;
        free = std::max<int64_t>(0, free - communicator_bytes_);
    }
    const planner::Card& card = target_.machine.card;
    if (like != nullptr)
        teachers_file_ = like->teachers_file_, teacher_tokens_ = like->teacher_tokens_;
    else
        describe_teacher();
    model::LoadRequest request =
        placement::make_request(loaded_, file_->spec,
                                {.device = target.device,
                                 .ranks = placement::planned_ranks(mesh, target.device.is_cpu() || card.peer_reach),
                                 .teacher_tokens = teacher_tokens_});
    if (like != nullptr)
        answering_ = like->answering_, knows_prompts_ = like->knows_prompts_;
    else
        foresee_answers(request);
    const config::TrainingOptions& training = config().training;
    const bool int8 = dx_codes(request.coded) == spec::Codes::int8;
    if (target.device.is_cuda() && any(request.coded) && (int8 ? card.int8_products : card.fp8_products).empty())
        throw Error("device.unsupported",
                    cat("model.compute_dtype ", name_of(request.coded),
                        int8 ? " has no products on " : " is for H100 and H200, not for ", card.name),
                    "Leave compute_dtype out.");
    rows_ = training.per_device_train_batch_size;
    length_ = config().model.max_seq_length;
    micro_batches_ = training.gradient_accumulation_steps;
    if (training.max_tokens_per_batch > 0)
        rows_ = std::max<int64_t>(
            1, training.max_tokens_per_batch / placement::full_rows(config(), file_->spec, 1, length_).tokens);
    (void)target_.images.tokens(file_->spec, length_);
    request = sized(std::move(request), rows_, length_);
    given_ = std::make_shared<const model::ModelPlan>(like != nullptr ? like->given_->with(std::move(request))
                                                                      : model::ModelPlan(file_, std::move(request)));
    if (teachers_file_)
        teacher_ = std::make_shared<const session::TeacherPlan>(session::teachers_config(loaded_), teachers_file_,
                                                                given_->request(), choose_for_teacher());
}

void Forecast::describe_teacher() {
    if (!config::traits_of(config().training.objective).has_teacher) return;
    const config::DistillOptions& distill = config().distill;
    if (placement::teacher_is_file(config()))
        teacher_tokens_ = objective::TeacherFile(distill.teacher.value(), distill.temperature, distill.top_k,
                                                 file_->spec.vocab_size, target_.device)
                              .top_k();
    else
        teachers_file_ = open_or_describe(session::teachers_config(loaded_).config);
}

/// Prompts that can be read here; rows, and prompts without a tokenizer, count as the longest that there may be.
void Forecast::foresee_answers(const model::LoadRequest& request) {
    const config::TrainingOptions& training = config().training;
    const int64_t length = config().model.max_seq_length, positions = file_->spec.usable_positions();
    const auto up_to = [&](int64_t rows, int64_t prompt, int64_t answer) -> placement::Answering {
        return {rows, prompt, std::min(prompt + answer, positions)};
    };
    if (training.sample_prompts) {
        const session::OpenedModel opened{file_, data::run_tokenizer_folder(config(), file_->checkpoint.folder()), ""};
        knows_prompts_ = tokenizer::Tokenizer::exists(opened.tokenizer_folder);
        const config::DataFormat rows = config().data.format;  // of the examples, which are not read here
        const std::string format = rows == config::DataFormat::automatic ? "" : data::format_name(rows);
        answering_.push_back(knows_prompts_ ? train::Samples(config(), opened, format).needs()
                                            : up_to(1, length, training.sample_max_new_tokens));
    }
    if (training.eval_metric != config::AnswerMetric::none)
        answering_.push_back(
            up_to(train::answers_at_a_time, std::max<int64_t>(1, length - 1), training.eval_max_new_tokens));
    if (!config::samples_completions(training.objective) || config().grpo.replay_rollouts) return;
    const int64_t completion = config().grpo.max_completion_length;
    placement::Answering sampling =
        up_to(training.per_device_train_batch_size * config().grpo.slices(training.gradient_accumulation_steps),
              std::max<int64_t>(1, length - completion), completion);
    sampling.rows = placement::rows_in_flight(config(), file_, request, sampling, budget());
    answering_.push_back(sampling);
}

/// What is left of the machine.
placement::Machine Forecast::left_by(const std::optional<session::TeacherPlan>& teacher) const {
    placement::Machine machine = target_.machine;
    if (teacher) machine.taken = teacher->need();
    return machine;
}

session::TeacherPlan::Choose Forecast::choose_for_teacher() const {
    return [machine = target_.machine](const config::Config& of_teacher, model::ModelPlan& plan) {
        placement::choose_memory_use(of_teacher, plan, 1, machine);
    };
}

std::optional<session::TeacherPlan> Forecast::teacher_of(const model::LoadRequest& student) const {
    if (!teacher_) return std::nullopt;
    return teacher_->resized(student, choose_for_teacher());
}

int64_t Forecast::step_tokens() const {
    return placement::full_rows(config(), file_->spec, rows_, length_).tokens * micro_batches_ * copies_;
}

model::LoadRequest Forecast::sized(model::LoadRequest request, int64_t rows, int64_t length) const {
    data::BatchLimits limits = placement::full_rows(config(), file_->spec, rows, length);
    if (const spec::RowImages& images = target_.images; images.count > 0) {
        const spec::VisionSpec& vision = file_->spec.vision.value();
        limits.patches = images.patches(vision);
        limits.image_tokens = rows * std::min(length, images.count * vision.tokens_of(limits.patches));
    }
    placement::fit_to(request, file_->spec, data::slice_limits(limits, request.cp.place()), answering_);
    return request;
}

/// Of the tower's passes over a micro-batch's images. Adapters in it take the way back, too, which computes once more.
double Forecast::tower_ms() const {
    const spec::RowImages& images = target_.images;
    if (images.count == 0) return 0;
    const spec::VisionSpec& vision = file_->spec.vision.value();
    const int64_t patches = images.patches(vision), all = rows_ * images.count;
    constexpr double forward = 1, with_backward = 4;
    const double passes = given_->trains_tower() ? with_backward : forward,
                 rate = planner::rate_at(target_.machine.card.products, static_cast<double>(all * patches));
    return passes * static_cast<double>(all) * spec::vision_operations(vision, patches) / (rate * 1e12) * 1e3;
}

/// As one rank has the whole model, if there is a pipeline.
model::ModelPlan Forecast::plan(int64_t rows, int64_t length) const {
    return given_->with(sized(given_->request(), rows, length));
}

std::vector<model::ModelPlan> Forecast::stages(int64_t rows, int64_t length) const {
    std::vector<model::ModelPlan> plans = {plan(rows, length)};
    if (config().distributed.pp_size == 1) return plans;
    const model::ModelPlan whole = std::move(plans.front());
    plans.clear();
    const model::PipelineShape shape = placement::pipeline_shape(config(), whole.spec().num_layers, micro_batches_);
    const std::vector<spec::LayerRange> cut =
        placement::cut_stages(config(), whole, shape, target_.machine.card,
                              std::vector<int64_t>(static_cast<std::size_t>(shape.ranks), budget().device));
    std::size_t of_first = 0;
    for (int rank = 0; rank < shape.ranks; ++rank) {
        const spec::Stage stage{rank, shape.ranks, cut};
        const std::size_t layers = stage.layers(whole.spec().num_layers).size();
        if (stage.first()) of_first = layers;
        // With no more layers than the first stage, and fewer micro-batches in flight, it takes no more than that.
        if (!stage.first() && !stage.last() && layers <= of_first) continue;
        model::LoadRequest request = whole.request();
        request.pp = model::Pipeline(nullptr, stage, shape);
        plans.push_back(whole.with(std::move(request)));
    }
    return plans;
}

Estimate Forecast::choose() {
    if (regroups()) {
        const int64_t of_step = rows_ * micro_batches_;
        rows_ = placement::fastest_pass_rows(
            config(), {rows_, of_step, [&](int64_t rows) { return plan(rows, length_); }}, target_.machine);
        micro_batches_ = (of_step + rows_ - 1) / rows_;
        loaded_.config.training.micro_batch = config::PassRows::as_given;  // chosen
    }
    Estimate estimate;
    estimate.stages = stages(rows_, length_);
    estimate.teacher = teacher_of(estimate.plan().request());
    choose_for(estimate);
    if (!estimate.fits && estimate.teacher && estimate.teacher->move_to_host()) choose_for(estimate);
    for (std::size_t i = 0; i < estimate.stages.size(); ++i)
        if (estimate.stages[i].total_bytes() > estimate.plan().total_bytes()) estimate.fullest = i;
    if (target_.device.is_cpu()) return estimate;  // whose rates are not known
    for (const model::ModelPlan& stage : estimate.stages)
        estimate.step_ms =
            std::max(estimate.step_ms, placement::predicted_step_ms(stage, target_.machine.card, micro_batches_));
    estimate.step_ms += static_cast<double>(micro_batches_) * tower_ms();
    estimate.tokens_per_second = 1000 * static_cast<double>(step_tokens()) / estimate.step_ms;
    return estimate;
}

/// Chooses what the configuration leaves open, in what the teacher leaves of the machine.
void Forecast::choose_for(Estimate& estimate) const {
    const placement::Machine machine = left_by(estimate.teacher);
    const placement::MemoryBudget budget = placement::memory_budget(config(), target_.device, machine);
    estimate.fits = true;
    for (model::ModelPlan& stage : estimate.stages) {
        placement::choose_memory_use(config(), stage, micro_batches_, machine);
        estimate.fits = estimate.fits && placement::fits(stage, budget);
    }
}

double Forecast::least_step_ms() const {
    const model::ModelPlan whole = plan(rows_, length_);
    const int64_t of_step = rows_ * micro_batches_, stages = config().distributed.pp_size;
    double least = std::numeric_limits<double>::infinity();
    for (const int64_t rows : regroups() ? placement::pass_rows(rows_, of_step) : std::vector<int64_t>{rows_}) {
        const int64_t passes = regroups() ? (of_step + rows - 1) / rows : micro_batches_;
        planner::StepWork work = placement::step_work(whole, passes, whole.request().run);
        work.tokens = work.tokens * rows / rows_;
        work.head_rows = work.head_rows * rows / rows_;
        const planner::StepTime time(target_.machine.card, work);
        const double network =
            static_cast<double>(whole.spec().num_layers) * time.layer({.cached = true}, {}, 1).both() + time.outside();
        double ms = static_cast<double>(passes) * network;
        if (stages > 1)
            ms = ms / static_cast<double>(stages) /
                 (1 - model::pipeline_bubble(placement::pipeline_shape(config(), whole.spec().num_layers, passes)));
        least = std::min(least, ms);
    }
    return least;
}

}  // namespace unsloth::commands
