#include "unsloth/train/resume.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "unsloth/config/load.h"
#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/log.h"
#include "unsloth/formats/checkpoint_folder.h"
#include "unsloth/formats/result_folder.h"
#include "unsloth/formats/trainer_state.h"

namespace unsloth::train {
namespace {

using nlohmann::ordered_json;

int64_t rows_of_step(const config::TrainingOptions& training, int64_t batch, int64_t accumulation, int64_t ranks) {
    return (training.max_tokens_per_batch > 0 ? 1 : batch) * accumulation * ranks;
}

}  // namespace

ResumePoint read_resume_point(const std::filesystem::path& folder) {
    return {folder, formats::read_run_state(folder)};
}

namespace {

/// Whose checkpoint it is that cannot be resumed, where that is known.
[[noreturn]] void refuse_foreign(const std::string& option, const std::filesystem::path& folder,
                                 const std::string& what) {
    throw Error(
        "checkpoint.not-found", cat(option, ": ", folder.string(), " is ", what, ", which cannot be resumed here"),
        cat("A new run can begin from its weights, with new optimizer states: ", formats::weights_option(folder), "."));
}

ResumePoint named_point(const std::string& wish) {
    constexpr const char* option = "training.resume_from_checkpoint";
    if (!std::filesystem::is_directory(wish))
        throw Error("checkpoint.not-found", cat(option, ": there is no folder ", wish),
                    "Name a checkpoint-N folder, or auto.");
    if (const auto inside = formats::list_checkpoints(wish); !inside.empty()) {
        const std::filesystem::path& newest = inside.front().path;
        if (formats::is_trainer_checkpoint(newest))
            refuse_foreign(option, newest, "a checkpoint of transformers' Trainer");
        throw Error("checkpoint.not-found", cat(option, ": ", wish, " is a run's output folder, not a checkpoint"),
                    cat("Name one in it, such as ", newest.string(),
                        "; or set output_dir to it and resume_from_checkpoint to auto."));
    }
    if (formats::is_trainer_checkpoint(wish)) {
        const bool ours = std::filesystem::exists(std::filesystem::path(wish) / "run_config.json");
        refuse_foreign(option, wish, ours ? "the result of a run" : "a checkpoint of transformers' Trainer");
    }
    if (const auto damage = formats::find_damage(wish)) {
        const auto held = formats::find_result(wish);
        if (held && !held->ours) refuse_foreign(option, wish, held->what);
        throw Error("checkpoint.incomplete", cat(wish, " is not a complete checkpoint: ", *damage),
                    "Try resume_from_checkpoint auto, which takes the newest complete one.");
    }
    return read_resume_point(wish);
}

}  // namespace

std::optional<ResumePoint> find_resume_point(const config::TrainingOptions& training) {
    const std::string wish = training.resume_from_checkpoint.value_or("false");
    if (wish == "false") return std::nullopt;
    if (wish != "auto" && wish != "true") return named_point(wish);
    for (const formats::CheckpointFolder& checkpoint : formats::foreign_checkpoints(training.output_dir))
        log::warning(checkpoint.path.string(),
                     " is skipped: it belongs to another user. To take it, name it with "
                     "training.resume_from_checkpoint");
    for (const formats::CheckpointFolder& checkpoint : formats::list_checkpoints(training.output_dir)) {
        const auto damage = formats::is_trainer_checkpoint(checkpoint.path)
                                ? std::string("it is a checkpoint of transformers' Trainer")
                                : formats::find_damage(checkpoint.path);
        if (!damage) return read_resume_point(checkpoint.path);
        log::warning(checkpoint.path.string(), " is skipped: ", *damage);
    }
    if (wish == "true")
        throw Error(
            "checkpoint.not-found",
            cat("training.resume_from_checkpoint is true, and ", training.output_dir, " holds no complete checkpoint"),
            "Set training.save_steps so that a run leaves some; auto starts from the beginning when there is none.");
    return std::nullopt;
}

void require_nothing_lost(const config::TrainingOptions& training, const ResumePoint& point) {
    namespace fs = std::filesystem;
    const fs::path out = training.output_dir, from = fs::canonical(point.folder);
    const auto held = formats::find_result(out);
    if (!held) return;
    std::error_code failed;
    if (!fs::equivalent(from.parent_path(), out, failed))
        throw Error("checkpoint.would-replace",
                    cat(out.string(), " holds ", held->what, " already, which a run that resumes from ",
                        point.folder.string(), " would replace"),
                    cat("Choose another training.output_dir",
                        held->resumable ? ", or resume the run in it (training.resume_from_checkpoint auto)." : "."));
    std::optional<formats::TrainerState> result;
    if (fs::exists(out / formats::trainer_state_file)) result = formats::read_trainer_state(out);
    if (training.resume_from_checkpoint == "auto" || training.resume_from_checkpoint == "true") {
        // A stopped run recomputes the steps after the newest complete checkpoint; a finished run does not.
        if (!result || result->global_step <= point.state.progress.step || result->global_step < result->max_steps)
            return;
        throw Error(
            "checkpoint.would-replace",
            cat(out.string(), " holds the result of a finished run of ", result->global_step,
                " steps, which a run that resumes from ", point.folder.string(), " would replace"),
            cat(training.max_steps > result->global_step ? "" : "Nothing is left to do. ", "To take the steps after ",
                point.state.progress.step, " again, name that checkpoint and another training.output_dir."));
    }
    const std::vector<formats::CheckpointFolder> checkpoints = formats::list_checkpoints(out);
    const int64_t reached = std::max(result ? result->global_step : 0, checkpoints.empty() ? 0 : checkpoints[0].step);
    if (reached > point.state.progress.step)
        throw Error("checkpoint.would-replace",
                    cat("the run in ", out.string(), " has reached step ", reached, ": to resume from ",
                        point.folder.string(), " would replace what it left and cut its metrics"),
                    "Resume at its end (training.resume_from_checkpoint auto), or choose another "
                    "training.output_dir.");
}

void require_steps_left(const ResumePoint& point, int64_t total_steps) {
    if (point.state.progress.step <= total_steps) return;
    throw Error("checkpoint.other-options",
                cat(point.folder.string(), " is of step ", point.state.progress.step,
                    ", and this run is to end at step ", total_steps),
                cat("Set training.max_steps (or num_train_epochs) to ", point.state.progress.step,
                    " steps or more, or resume from an earlier checkpoint."));
}

void require_same_run(const config::Config& config, const ResumePoint& point) {
    const std::filesystem::path file = point.folder / "run_config.json";
    const ordered_json now = ordered_json::parse(config::config_to_json(config));
    const ordered_json before =
        ordered_json::parse(config::with_present_names(read_file(file)), nullptr, /*allow_exceptions=*/false);
    if (!before.is_object()) throw Error("json.wrong-value", cat(file.string(), " is no JSON object"));
    std::string forbidden;
    for (const auto& [section, options] : now.items()) {
        for (const auto& [key, value] : options.items()) {
            // A checkpoint of an older version may lack an option: it had no say then.
            if (!before.contains(section) || !before[section].is_object() || !before[section].contains(key)) continue;
            const ordered_json& old = before[section][key];
            if (old == value) continue;
            const std::string name = section + "." + key,
                              change = cat(name, ": ", old.dump(), " until now, ", value.dump(), " from here on");
            if (name == "training.max_steps" && value == 0) continue;  // only checks
            switch (config::on_resume(name)) {
                case config::OnResume::immutable:
                    forbidden += "\n  " + change;
                    break;
                case config::OnResume::logged:
                    log::warning("changed since the checkpoint: ", change);
                    break;
                case config::OnResume::mutable_:
                    break;
            }
        }
    }
    if (!forbidden.empty())
        throw Error("checkpoint.other-options",
                    cat("the run cannot resume from ", point.folder.string(),
                        ": these options decide what its steps meant", forbidden),
                    "Use the options of the checkpoint's run_config.json, or start a new run from its weights "
                    "with model.adapter_name_or_path.");
}

namespace {

/// Discarded where the file holds no JSON.
ordered_json config_before(const ResumePoint& point) {
    return ordered_json::parse(config::with_present_names(read_file(point.folder / "run_config.json")), nullptr,
                               /*allow_exceptions=*/false);
}

}  // namespace

bool evaluates_as_before(const config::Config& config, const ResumePoint& point) {
    const ordered_json now = ordered_json::parse(config::config_to_json(config)), before = config_before(point);
    const auto is_same = [&](const char* section, const char* key) {
        const auto old = before.is_object() ? before.find(section) : before.end();
        // A checkpoint of an older version may lack an option: it had no say then.
        return old == before.end() || !old->is_object() || !old->contains(key) || (*old)[key] == now[section][key];
    };
    return is_same("data", "eval_file") && is_same("data", "eval_split") && is_same("data", "eval_files") &&
           is_same("training", "eval_metric") && is_same("training", "eval_answer_regex") &&
           is_same("training", "eval_max_new_tokens");
}

std::optional<double> number_before(const ResumePoint& point, const std::string& section, const std::string& key) {
    const ordered_json before = config_before(point);
    if (!before.is_object() || !before.contains(section) || !before[section].is_object()) return std::nullopt;
    const auto found = before[section].find(key);
    if (found == before[section].end() || !found->is_number()) return std::nullopt;
    return found->get<double>();
}

int64_t accumulation_for(const config::TrainingOptions& training, const formats::RunState& state, int world_size) {
    const int64_t before =
        rows_of_step(training, state.per_device_train_batch_size, state.gradient_accumulation_steps, state.world_size);
    const int64_t one = rows_of_step(training, training.per_device_train_batch_size, 1, world_size);
    const char* const what = training.max_tokens_per_batch > 0 ? " micro-batches" : " rows";
    if (one * training.gradient_accumulation_steps == before) return training.gradient_accumulation_steps;
    if (training.gradient_accumulation_steps != state.gradient_accumulation_steps || before % one != 0)
        throw Error("checkpoint.other-options",
                    cat("a step of the checkpoint's run has ", before, what, " (", state.per_device_train_batch_size,
                        " on each of ", state.world_size, " ranks, ", state.gradient_accumulation_steps,
                        " times), and this run takes ", one, " at a time",
                        before % one == 0 ? cat(", ", training.gradient_accumulation_steps, " times") : ""),
                    before % one == 0 ? cat("Set training.gradient_accumulation_steps to ", before / one, ".")
                                      : "Use a number of ranks and a per_device_train_batch_size that divide it.");
    log::warning("gradient_accumulation_steps is ", before / one, " instead of ", training.gradient_accumulation_steps,
                 ": a step keeps its ", before, what, " on ", world_size, " rank(s)");
    return before / one;
}

}  // namespace unsloth::train
