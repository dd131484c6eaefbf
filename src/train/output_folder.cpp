#include "train/output_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "unsloth/core/error.h"
#include "unsloth/core/folder.h"
#include "unsloth/core/folder_lock.h"
#include "unsloth/core/path_advice.h"
#include "unsloth/formats/checkpoint_folder.h"
#include "unsloth/formats/result_folder.h"
#include "unsloth/placement/kernels.h"
#include "unsloth/report/page.h"
#include "unsloth/report/run.h"
#include "unsloth/tokenizer/tokenizer.h"
#include "unsloth/train/anomaly.h"

namespace unsloth::train {
namespace {

namespace fs = std::filesystem;

/// Files that a run adds rows to, or draws.
std::vector<std::string> records(const config::LoggingOptions& logging) {
    std::vector<std::string> names = {"metrics.jsonl", "answers.jsonl", report::samples_file, report::pictured_file,
                                      report::page_file};
    if (!logging.metrics_file.empty()) names.push_back(logging.metrics_file);
    return names;
}

/// {option, file or folder} of what a run reads besides its model.
std::vector<std::pair<std::string, std::string>> inputs_of(const config::Config& config) {
    std::vector<std::pair<std::string, std::string>> inputs;
    const auto add = [&](const char* option, const std::string& path) {
        if (!path.empty()) inputs.emplace_back(option, path);
    };
    const config::DataOptions& data = config.data;
    add("model.adapter_name_or_path", config.model.adapter_name_or_path.value_or(""));
    add("distill.teacher", config.distill.teacher.value_or(""));
    add("distill.teacher_adapter", config.distill.teacher_adapter.value_or(""));
    add("training.sample_prompts", config.training.sample_prompts.value_or(""));
    add("data.train_file", data.train_file);
    add("data.eval_file", data.eval_file.value_or(""));
    for (const config::DataSource& source : data.datasets) add("data.datasets", source.path);
    for (const auto& [name, file] : data.eval_files) add("data.eval_files", file);
    return inputs;
}

/// The ways to proceed, given the result that a folder holds.
std::string ways_on(const formats::HeldResult& held) {
    if (held.resumable)
        return "Resume it (training.resume_from_checkpoint auto), choose another training.output_dir, or say "
               "training.overwrite_output_dir true.";
    return cat(held.ours ? "It left no checkpoint to resume from (training.save_steps makes some). " : "",
               "Begin a new run from its weights (", formats::weights_option(held.weights),
               ") in another training.output_dir, or say training.overwrite_output_dir true, which removes it.");
}

/// The first folder on the way up that is there.
fs::path nearest_folder(fs::path place) {
    std::error_code failed;
    place = fs::absolute(place);
    while (!fs::exists(place, failed) && place.has_relative_path()) place = place.parent_path();
    return place;
}

}  // namespace

void require_own_output(const config::Config& config, const fs::path& model) {
    const fs::path out = config.training.output_dir;
    std::vector<fs::path> written{out};
    for (const formats::CheckpointFolder& checkpoint : formats::list_checkpoints(out))
        written.push_back(checkpoint.path);
    for (const std::string& name : records(config.logging)) written.push_back(out / name);
    const auto refuse = [&](const std::string& option, const fs::path& read) {
        std::error_code failed;
        for (const fs::path& place : written)
            if (fs::equivalent(place, read, failed))
                throw Error("output.same-file",
                            cat("training.output_dir ", out.string(), ": the run would write over ", place.string(),
                                ", which ", option, " names"),
                            "Choose another training.output_dir.");
    };
    refuse("model.path", model);
    for (const auto& [option, path] : inputs_of(config)) refuse(option, path);
}

void require_usable(const fs::path& output_dir) {
    const fs::path there = nearest_folder(output_dir);
    const Folder folder = Folder::named(there);
    int reason = folder.failure();
    if (folder.open() && ::faccessat(folder.fd(), ".", W_OK | X_OK, AT_EACCESS) != 0) reason = errno;
    std::error_code failed;
    const bool exists = fs::is_directory(output_dir, failed);
    if (reason != 0)
        throw Error("disk.cannot-write",
                    exists
                        ? cat("cannot write into ", output_dir.string(), ": ", std::strerror(reason))
                        : cat("training.output_dir: cannot create ", output_dir.string(), ": ", std::strerror(reason)),
                    exists ? "Choose another training.output_dir." : advice_on_creating(output_dir, reason));
    if (exists) require_unused(output_dir);
}

bool require_replaceable(const config::Config& config) {
    const fs::path folder = config.training.output_dir;
    if (config.lora.finetuning_type == config::FinetuningType::full && formats::has_foreign_config(folder))
        throw Error(
            "output.exists",
            cat("the run would write over ", (folder / "config.json").string(), ", which is no model's configuration"),
            "Move that file, or choose another training.output_dir.");
    const std::optional<formats::HeldResult> held = formats::find_result(folder);
    if (held && !config.training.overwrite_output_dir)
        throw Error("output.exists", cat(folder.string(), " holds ", held->what, " already"), ways_on(*held));
    return held || fs::exists(folder / "run_config.json");
}

namespace {

/// What is there of a run's state and records.
std::vector<std::string> state_entries(const Folder& folder) {
    std::vector<std::string> names = formats::result_entries(folder.path()).state;
    const auto add = [&](const std::string& name) { names.push_back(name); };
    std::ranges::for_each(records({}), add);
    std::ranges::for_each(
        std::initializer_list<const char*>{anomalies_folder, placement::kernels_file, report::facts_file}, add);
    std::erase_if(names, [&](const std::string& name) {
        const auto entry = folder.look(name);
        return !entry || !folder.owns(*entry);
    });
    return names;
}

}  // namespace

void remove_state(const fs::path& output_dir) {
    const Folder folder = Folder::named(output_dir);
    for (const std::string& name : state_entries(folder))
        if (!folder.remove(name))
            throw Error("disk.cannot-write",
                        cat("cannot remove ", (folder / name).string(), ": ", std::strerror(errno)),
                        "Remove it, or choose another training.output_dir.");
}

int64_t state_bytes(const fs::path& output_dir) {
    int64_t bytes = 0;
    std::error_code failed;
    for (const std::string& name : state_entries(Folder::named(output_dir))) {
        const fs::path place = output_dir / name;
        if (fs::is_regular_file(place, failed)) bytes += static_cast<int64_t>(fs::file_size(place, failed));
        for (const auto& entry : fs::recursive_directory_iterator(place, failed))
            if (entry.is_regular_file(failed)) bytes += static_cast<int64_t>(entry.file_size(failed));
    }
    return bytes;
}

std::vector<ResultFile> result_files(const fs::path& output_dir) {
    const Folder folder = Folder::named(output_dir);
    std::vector<ResultFile> files;
    const auto add = [&](const fs::path& name) {
        const Folder holder = folder.below(name.parent_path());
        const auto entry = holder.look(name.filename());
        if (entry && holder.owns(*entry)) files.push_back({name, entry->st_ino});
    };
    for (const std::string& name : formats::result_entries(output_dir).weights) add(name);
    for (const fs::path& file : tokenizer::Tokenizer::files_in(output_dir)) add(file.lexically_relative(output_dir));
    return files;
}

void remove_stale(const fs::path& output_dir, const std::vector<ResultFile>& before) {
    const Folder folder = Folder::named(output_dir);
    for (const ResultFile& file : before) {
        const Folder holder = folder.below(file.name.parent_path());
        const auto entry = holder.look(file.name.filename());
        if (entry && entry->st_ino == file.inode) holder.remove_or_warn(file.name.filename());
    }
}

}  // namespace unsloth::train
