#include "unsloth/train/resume.h"

#include <algorithm>
#include <set>

#include <nlohmann/json.hpp>

#include "unsloth/config/load.h"
#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/log.h"
#include "unsloth/formats/checkpoint_folder.h"

namespace unsloth::train {
namespace {

using nlohmann::ordered_json;

/// Options that say how a run is carried out, not what it computes; those of these sections too.
const std::set<std::string> of_no_matter = {"training.output_dir",
                                            "training.save_steps",
                                            "training.save_minutes",
                                            "training.save_total_limit",
                                            "training.save_grace_seconds",
                                            "training.overwrite_output_dir",
                                            "training.resume_from_checkpoint",
                                            "training.eval_on_start",
                                            "training.logging_steps",
                                            "training.gradient_checkpointing",
                                            "hardware.device",
                                            "hardware.weight_cache",
                                            "hardware.offload_embedding",
                                            "hardware.cuda_graphs"};
const std::set<std::string> sections_of_no_matter = {"logging", "distributed"};

/// Options that may be changed in the middle of a run: what was done stays what it was. Where data and model lie is
/// their own affair; that the rows are the same is looked at by themselves, and the rows of a step by their product.
const std::set<std::string> may_change = {"model.path",
                                          "model.adapter_name_or_path",
                                          "model.dtype",
                                          "model.compute_dtype",
                                          "data.train_file",
                                          "data.datasets",
                                          "data.eval_file",
                                          "training.per_device_train_batch_size",
                                          "training.gradient_accumulation_steps",
                                          "training.num_train_epochs",
                                          "training.max_steps",
                                          "training.learning_rate",
                                          "training.lr_scheduler_type",
                                          "training.lr_scheduler_kwargs",
                                          "training.warmup_steps",
                                          "training.warmup_ratio",
                                          "training.weight_decay",
                                          "training.max_grad_norm",
                                          "training.adam_beta1",
                                          "training.adam_beta2",
                                          "training.adam_epsilon",
                                          "training.deterministic",
                                          "training.eval_steps",
                                          "hardware.kernels"};

bool matters(const std::string& section, const std::string& key) {
    // How rows are read and kept, not which.
    const bool of_cache = section == "data" && (key.starts_with("cache") || key == "use_cache" || key == "workers");
    return !of_cache && sections_of_no_matter.count(section) == 0 && of_no_matter.count(section + "." + key) == 0;
}

int64_t rows_of_step(const TrainingOptions& training, int64_t batch, int64_t accumulation, int64_t ranks) {
    return (training.max_tokens_per_batch > 0 ? 1 : batch) * accumulation * ranks;
}

}  // namespace

ResumePoint read_resume_point(const std::filesystem::path& folder) {
    return {folder, read_run_state(folder)};
}

std::optional<ResumePoint> find_resume_point(const TrainingOptions& training) {
    const std::string wish = training.resume_from_checkpoint.value_or("false");
    if (wish == "false") return std::nullopt;
    if (wish != "auto" && wish != "true") {
        if (!std::filesystem::is_directory(wish))
            throw usage_error(cat("training.resume_from_checkpoint: there is no folder ", wish),
                              "Name a checkpoint-N folder, or auto.");
        if (const auto inside = list_checkpoints(wish); !inside.empty())
            throw usage_error(
                cat("training.resume_from_checkpoint: ", wish, " is a run's output folder, not a checkpoint"),
                cat("Name one in it, such as ", inside.front().path.string(),
                    "; or set output_dir to it and resume_from_checkpoint to auto."));
        if (const auto damage = find_damage(wish))
            throw input_error(cat(wish, " is no whole checkpoint: ", *damage),
                              "Try resume_from_checkpoint auto, which takes the newest whole one.");
        return read_resume_point(wish);
    }
    for (const CheckpointFolder& checkpoint : list_checkpoints(training.output_dir)) {
        const auto damage = find_damage(checkpoint.path);
        if (!damage) return read_resume_point(checkpoint.path);
        log::warning(checkpoint.path.string(), " is passed over: ", *damage);
    }
    if (wish == "true")
        throw usage_error(
            cat("training.resume_from_checkpoint is true, and ", training.output_dir, " holds no whole checkpoint"),
            "Set training.save_steps so that a run leaves some; auto starts from the beginning when there is none.");
    return std::nullopt;
}

void require_same_run(const Config& config, const ResumePoint& point) {
    const std::filesystem::path file = point.folder / "run_config.json";
    const ordered_json now = ordered_json::parse(config_to_json(config));
    const ordered_json before = ordered_json::parse(read_file(file), nullptr, /*allow_exceptions=*/false);
    if (!before.is_object()) throw input_error(cat(file.string(), " is no JSON object"));
    std::string forbidden;
    for (const auto& [section, options] : now.items()) {
        for (const auto& [key, value] : options.items()) {
            // A checkpoint of an older version may lack an option: it had no say then.
            if (!matters(section, key) || !before.contains(section) || !before[section].is_object() ||
                !before[section].contains(key))
                continue;
            const ordered_json& old = before[section][key];
            if (old == value) continue;
            const std::string name = section + "." + key,
                              change = cat(name, ": ", old.dump(), " until now, ", value.dump(), " from here on");
            if (may_change.count(name) != 0) {
                log::warning("changed since the checkpoint: ", change);
            } else {
                forbidden += "\n  " + change;
            }
        }
    }
    if (!forbidden.empty())
        throw usage_error(cat("the run cannot go on from ", point.folder.string(),
                              ": these options decide what its steps meant", forbidden),
                          "Use the options of the checkpoint's run_config.json, or start a new run from its weights "
                          "with model.adapter_name_or_path.");
}

int64_t accumulation_for(const TrainingOptions& training, const RunState& state, int world_size) {
    const int64_t before =
        rows_of_step(training, state.per_device_train_batch_size, state.gradient_accumulation_steps, state.world_size);
    const int64_t one = rows_of_step(training, training.per_device_train_batch_size, 1, world_size);
    const char* const what = training.max_tokens_per_batch > 0 ? " micro-batches" : " rows";
    if (one * training.gradient_accumulation_steps == before) return training.gradient_accumulation_steps;
    if (training.gradient_accumulation_steps != state.gradient_accumulation_steps || before % one != 0)
        throw usage_error(cat("a step of the checkpoint's run has ", before, what, " (",
                              state.per_device_train_batch_size, " on each of ", state.world_size, " ranks, ",
                              state.gradient_accumulation_steps, " times), and this run takes ", one, " at a time",
                              before % one == 0 ? cat(", ", training.gradient_accumulation_steps, " times") : ""),
                          before % one == 0
                              ? cat("Set training.gradient_accumulation_steps to ", before / one, ".")
                              : "Use a number of ranks and a per_device_train_batch_size that divide it.");
    log::warning("gradient_accumulation_steps is ", before / one, " instead of ", training.gradient_accumulation_steps,
                 ": a step keeps its ", before, what, " on ", world_size, " rank(s)");
    return before / one;
}

}  // namespace unsloth::train
