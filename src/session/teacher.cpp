#include "unsloth/session/teacher.h"

#include <algorithm>

#include "unsloth/config/device_map.h"
#include "unsloth/core/error.h"
#include "unsloth/core/hash.h"
#include "unsloth/core/text.h"
#include "unsloth/formats/base_mark.h"
#include "unsloth/formats/checkpoint.h"
#include "unsloth/formats/finite.h"
#include "unsloth/formats/peft.h"
#include "unsloth/placement/agreed_plan.h"
#include "unsloth/placement/loading.h"
#include "unsloth/placement/recipe.h"

namespace unsloth::session {
namespace {

std::optional<tokenizer::Tokenizer> tokenizer_of(const OpenedModel& opened) {
    if (!tokenizer::Tokenizer::exists(opened.tokenizer_folder)) return std::nullopt;
    return opened.tokenizer();
}

/// With the student's device, kernels and processes; passes are as long as the student's.
model::LoadRequest teachers_request(const config::LoadedConfig& of_teacher, const formats::WeightFile& file,
                                    const model::LoadRequest& student) {
    placement::Recipe recipe{.work = placement::Work::passes,
                             .device = student.device,
                             .kernels = student.kernels,
                             .held = student.held ? placement::held_memory(file, student.device) : nullptr,
                             .tails_may_stay = false};
    recipe.ranks.here.resize(static_cast<std::size_t>(student.processes));
    return placement::make_request(of_teacher, file.spec, recipe);
}

model::LoadRequest sized_for(const model::LoadRequest& student, const spec::ModelSpec& spec,
                             model::LoadRequest request) {
    const model::ActivationSizes& sizes = student.sizes;
    placement::fit_to(
        request, spec,
        {.tokens = sizes.tokens, .segments = sizes.segments, .longest = sizes.longest, .labels = sizes.head_rows});
    request.run.head_tile = student.run.head_tile;  // whose chunks ask for its rows
    return request;
}

constexpr const char* same_ids = "A student learns the teacher's probabilities id by id: take a teacher of its family.";

/// Where both have a tokenizer it says what ids mean, and the matrices may have more rows than it has ids; else the
/// matrices' sizes are all there is to compare.
void require_same_vocabulary(const OpenedModel& student, const OpenedModel& teacher, const std::string& name) {
    const auto own = tokenizer_of(student), other = tokenizer_of(teacher);
    if (!own || !other) {
        if (student.file->spec.vocab_size == teacher.file->spec.vocab_size) return;
        throw Error("teacher.vocabulary",
                    cat("the teacher ", name, " has a vocabulary of ", teacher.file->spec.vocab_size,
                        " ids, the student one of ", student.file->spec.vocab_size),
                    same_ids);
    }
    const auto both = static_cast<int32_t>(std::min(own->vocab_size(), other->vocab_size()));
    for (int32_t id = 0; id < both; ++id)
        if (own->token(id) != other->token(id))
            throw Error("teacher.vocabulary",
                        cat("the teacher ", name, " has another vocabulary: id ", id, " is \"", other->token(id),
                            "\", the student's is \"", own->token(id), "\""),
                        same_ids);
    if (own->vocab_size() != other->vocab_size())
        throw Error("teacher.vocabulary",
                    cat("the teacher ", name, " has tokens for ", other->vocab_size(), " ids, the student for ",
                        own->vocab_size()),
                    same_ids);
}

}  // namespace

config::LoadedConfig teachers_config(const config::LoadedConfig& run) {
    config::LoadedConfig teacher = run;
    const config::DistillOptions& distill = run.config.distill;
    config::ModelOptions& model = teacher.config.model;
    model.path = distill.teacher.value();
    model.adapter_name_or_path = distill.teacher_adapter;
    model.load_in_4bit = distill.teacher_load_in_4bit;
    model.load_in_8bit = false;
    model.precision.clear();
    model.compute_dtype = spec::CodedProducts::none;
    model.device_map = distill.teacher_device_map;
    return teacher;
}

std::string vocabulary_hash(const OpenedModel& opened) {
    const auto tokenizer = tokenizer_of(opened);
    if (!tokenizer) return "";
    ContentHash hash;
    for (int32_t id = 0; id < static_cast<int32_t>(tokenizer->vocab_size()); ++id) hash.add_field(tokenizer->token(id));
    return hash.hex();
}

TeacherSetup::TeacherSetup(const config::LoadedConfig& run, const OpenedModel& student, at::Device device)
    : of_teacher_(teachers_config(run)), device_(device) {
    const config::DistillOptions& distill = run.config.distill;
    const std::string& name = distill.teacher.value();
    if (placement::teacher_is_file(run.config)) {
        if (distill.teacher_adapter)
            throw Error(
                "option.no-effect",
                "distill.teacher_adapter only applies to a teacher that is a model, and distill.teacher is a file",
                "Leave it out: the file says what base and adapter said.");
        file_ = std::make_unique<objective::TeacherFile>(name, distill.temperature, distill.top_k,
                                                         student.file->spec.vocab_size, device);
        const auto& metadata = file_->metadata();
        const auto made_with = metadata.find(objective::teacher_file::vocabulary);
        const std::string own = vocabulary_hash(student), other = made_with == metadata.end() ? "" : made_with->second;
        const auto size = metadata.find(objective::teacher_file::vocabulary_size);
        const bool known = !own.empty() && !other.empty();
        if (known && own != other)
            throw Error("teacher.vocabulary",
                        cat(name, " was made with a tokenizer whose ids mean other tokens than the student's"),
                        same_ids);
        if (!known && size != metadata.end() && size->second != cat(student.file->spec.vocab_size))
            throw Error("teacher.vocabulary",
                        cat(name, " is of a vocabulary of ", size->second, " ids, the student has one of ",
                            student.file->spec.vocab_size),
                        same_ids);
        return;
    }
    if (distill.top_k > 0)
        throw Error("option.no-effect",
                    "distill.top_k only applies to a teacher's file, and distill.teacher is a model",
                    "Leave it out, or let `unsloth-train score --top_k N` write a file.");
    opened_ = open_model(of_teacher_.config);
    require_same_vocabulary(student, opened_, name);
    formats::require_finite(*opened_.file, of_teacher_.config.model.dtype);
}

objective::Teacher& TeacherSetup::teacher() {
    if (file_) return *file_;
    return words_;
}

void TeacherSetup::require(const data::Dataset& rows, const std::string& what) const {
    if (file_) file_->require(rows, what);
}

void TeacherSetup::plan(const model::LoadRequest& student, comm::Group* group) {
    if (file_) return;
    if (const auto& path = of_teacher_.config.model.adapter_name_or_path) {
        const formats::Adapter adapter = formats::read_adapter(formats::resolve_model_path(*path), opened_.file->spec);
        formats::require_finite(adapter);
        if (group == nullptr || group->rank() == 0)
            formats::warn_of_other_base(adapter, *opened_.file, of_teacher_.config.model.path);
    }
    plan_.emplace(of_teacher_, opened_.file, student,
                  [group](const config::Config& of_teacher, model::ModelPlan& plan) {
                      placement::choose_together(of_teacher, plan, 1, group, "");
                  });
}

TeacherPlan::TeacherPlan(config::LoadedConfig of_teacher, std::shared_ptr<const formats::WeightFile> file,
                         const model::LoadRequest& student, const Choose& choose)
    : of_teacher_(std::move(of_teacher)),
      plan_(file, sized_for(student, file->spec, teachers_request(of_teacher_, *file, student))) {
    finish(student, choose);
}

TeacherPlan TeacherPlan::resized(const model::LoadRequest& student, const Choose& choose) const {
    TeacherPlan other = *this;
    model::LoadRequest request = plan_.request();
    request.run = {};
    other.plan_ = plan_.with(sized_for(student, plan_.spec(), std::move(request)));
    other.finish(student, choose);
    return other;
}

void TeacherPlan::finish(const model::LoadRequest& student, const Choose& choose) {
    choose(of_teacher_.config, plan_);
    const std::shared_ptr<memory::HeldMemory>& held = plan_.request().held;
    if (held && held->owner() == student.held->owner()) students_ = student.held;
    tell_student();
}

/// It is loaded after this, and finds then what both have.
void TeacherPlan::tell_student() const {
    if (students_) students_->expect(plan_.common());
}

bool TeacherPlan::move_to_host() {
    if (!plan_.request().device.is_cuda() || !config::DeviceMap(of_teacher_.config.model).automatic()) return false;
    spec::RunPlan run = plan_.request().run;
    for (spec::LayerPlan& layer : run.layers)
        if (layer.weights_at == spec::Place::device) layer.weights_at = spec::Place::host;
    plan_.set_run(std::move(run));
    tell_student();
    return true;
}

placement::MemoryBudget TeacherPlan::need() const {
    const spec::MemoryNeed need = plan_.need();
    return {need.device, plan_.request().device.is_cuda() ? need.host - need.there : 0};
}

void TeacherSetup::load(comm::Group* group) {
    if (!plan_) return;
    const model::ModelPlan& plan = plan_->plan();
    ctx_ = placement::make_context(of_teacher_.config, plan);
    model_ = std::make_unique<model::Model>(*ctx_, plan.load(*ctx_, placement::load_share(group, plan)));
    words_.set(*model_);
}

std::string TeacherSetup::describe() const {
    const std::string& name = of_teacher_.config.model.path;
    if (file_) return cat(name, ": ", file_->top_k(), " tokens of each target");
    const model::ModelPlan& plan = plan_->plan();
    const std::string places = placement::describe_places(plan);
    return cat(name, ": ", opened_.file->spec.model_type, ", ", opened_.file->spec.num_layers, " layers, hidden ",
               opened_.file->spec.hidden_size, "; ", plan.base_description(), "; ", human_bytes(plan.total_bytes()),
               places.empty() ? "" : "; ", places);
}

}  // namespace unsloth::session
