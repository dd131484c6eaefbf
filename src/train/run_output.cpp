// What a run finds in its output folder before it begins, and what it leaves there of its configuration.
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>

#include "train/output_folder.h"
#include "unsloth/core/error.h"
#include "unsloth/core/path_advice.h"
#include "unsloth/core/text.h"
#include "unsloth/formats/checkpoint_folder.h"
#include "unsloth/train/checkpoint.h"
#include "unsloth/train/run_setup.h"

namespace unsloth::train {
namespace {

namespace fs = std::filesystem;

/// The projections that have an adapter in some layer: PEFT's own config may say it by a regular expression.
std::vector<std::string> target_names(const spec::LoraSpec& lora, const spec::ModelSpec& spec) {
    std::vector<std::string> names;
    const std::vector<spec::LayerLora> layers = spec::resolve_lora(lora, spec);
    for (const spec::Projection p : spec.linears)
        if (std::any_of(layers.begin(), layers.end(), [&](const spec::LayerLora& layer) { return layer[p].r > 0; }))
            names.emplace_back(spec::name_of(p));
    return names;
}

}  // namespace

spec::DType RunSetup::saved_dtype() const {
    return full() && config().model.dtype != spec::DType::f32 ? opened_.file->spec.dtype : spec::DType::f32;
}

/// Takes the output folder for this run, and finds what it resumes from. With max_steps 0 nothing is written: the same
/// is refused.
void RunSetup::open_output() {
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
    if (group_) chosen = group_->gather(chosen, "the checkpoint to resume from")[0];
    if (chosen.empty()) return;
    resume_ = read_resume_point(chosen);
    training.gradient_accumulation_steps = accumulation_for(training, resume_->state, data_ranks());
}

/// On the rank that leads.
void RunSetup::take_output() {
    const fs::path folder = config().training.output_dir;
    if (config().training.max_steps == 0) return require_usable(folder);
    if (const Folder made = Folder::made(folder); !made.open())
        throw Error("disk.cannot-write",
                    cat("training.output_dir: cannot create ", folder.string(), ": ", std::strerror(made.failure())),
                    advice_on_creating(folder, made.failure()));
    lock_.emplace(folder);
    formats::remove_unfinished_checkpoints(folder);
}

/// Room for the result and the first checkpoint; those that follow are saved only where there is some.
void RunSetup::require_disk() const {
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
    const bool in_parts = full() || plan_->request().sharding.has_copies() || !plan_->request().pp.alone();
    // In addition to a result: values and moments, of tied embeddings both ends' of a pipeline. The values of a LoRA
    // that one rank holds are its result.
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
                cat("not enough room in ", t.output_dir, ": ", human_bytes(result + checkpoint), " are needed (",
                    full() ? "model " : "adapter ", human_bytes(result),
                    saves ? cat(", first checkpoint ", human_bytes(checkpoint)) : "", "), ",
                    human_bytes(static_cast<int64_t>(space.available)), " are free"),
                cat("Free some, or choose another training.output_dir",
                    saves ? "; with save_steps 0 no checkpoint is saved." : "."));
}

int64_t RunSetup::cpu_threads() const {
    return device_.is_cpu() ? at::get_num_threads() : 0;
}

config::Config RunSetup::effective_config() const {
    config::Config effective = config();
    if (config().model.adapter_name_or_path && plan_->lora()) {
        const spec::LoraSpec& lora = *plan_->lora();
        effective.lora.r = lora.r;
        effective.lora.lora_alpha = lora.lora_alpha;
        effective.lora.lora_dropout = lora.lora_dropout;
        effective.lora.use_rslora = lora.use_rslora;
        effective.lora.use_dora = lora.use_dora;
        effective.lora.serve_grid = lora.serve_grid;
        effective.lora.vision = !spec::resolve_tower_lora(lora, opened_.file->spec).empty();
        effective.lora.target_modules = target_names(lora, opened_.file->spec);
        effective.lora.target_parameters = lora.target_parameters;
        effective.lora.modules_to_save = lora.modules_to_save;
        effective.lora.rank_pattern = lora.rank_pattern;
        effective.lora.alpha_pattern = lora.alpha_pattern;
        if (!lora.layers_to_transform.empty()) effective.lora.layers_to_transform = lora.layers_to_transform;
    }
    return effective;
}

}  // namespace unsloth::train
