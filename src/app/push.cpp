// `push`, and the upload at a run's end.
#include <filesystem>
#include <set>

#include "app/commands.h"
#include "app/paths.h"
#include "app/upload.h"
#include "unsloth/core/error.h"
#include "unsloth/core/interrupt.h"
#include "unsloth/core/log.h"
#include "unsloth/core/text.h"
#include "unsloth/formats/result_folder.h"
#include "unsloth/hub/push.h"
#include "unsloth/report/model_card.h"
#include "unsloth/tokenizer/tokenizer.h"

namespace unsloth::app {
namespace {

namespace fs = std::filesystem;

/// Weights, configurations and tokenizer. What a run says of itself (paths, rows, metrics) stays here; its model card
/// has what readers need.
std::vector<std::string> files_to_push(const fs::path& folder) {
    const std::vector<std::string> weights = formats::weight_files(folder);
    std::set<std::string> names(weights.begin(), weights.end());
    if (!names.contains("adapter_config.json") && !names.contains("config.json"))
        throw Error("model.not-found", cat(folder.string(), " has no adapter and no model to upload"),
                    "Name a folder with adapter_config.json or config.json and its weights.");
    for (const fs::path& file : tokenizer::Tokenizer::files_in(folder))
        names.insert(file.lexically_relative(folder).generic_string());
    names.insert(report::model_card_file);
    return {names.begin(), names.end()};
}

hub::PushTarget target_of(const config::TrainingOptions& training) {
    return {.repository = training.hub_model_id.value_or(own_name(training.output_dir)),
            .is_private = training.hub_private_repo};
}

void push_folder(const fs::path& folder, const hub::PushTarget& target, const std::string& message) {
    std::vector<std::string> files = files_to_push(folder);
    hub::PushTarget full = target;
    full.repository = hub::require_pushable(target, /*creates=*/true);
    if (!report::write_model_card(folder, full.repository))
        log::info((folder / report::model_card_file).string(), " is not of this program: uploaded as it is");
    const bool adapter = fs::exists(folder / "adapter_config.json");
    const hub::Pushed pushed = hub::push(
        {.target = full,
         .folder = folder,
         .files = std::move(files),
         .message = message.empty() ? cat("Upload ", adapter ? "adapter" : "model", " with unsloth-train") : message});
    if (pushed.files == 0)
        log::info("the hub has all ", pushed.unchanged_files, " files already: ", pushed.page);
    else
        log::info("uploaded ", pushed.files, pushed.files == 1 ? " file" : " files", " (", human_size(pushed.bytes),
                  " of large ones): ", pushed.page);
}

}  // namespace

void require_upload(const config::Config& config) {
    const hub::PushTarget target = target_of(config.training);
    const bool trains = config.training.max_steps != 0;
    log::info("training.push_to_hub: the result goes to ", hub::require_pushable(target, trains));
}

bool upload_result(const config::Config& config) {
    const hub::PushTarget target = target_of(config.training);
    const std::string& folder = config.training.output_dir;
    const std::string again =
        cat("unsloth-train push ", folder, " --repo ", target.repository, target.is_private ? "" : " --private false");
    try {
        push_folder(folder, target, "");
        return true;
    } catch (const Interrupted&) {
        log::warning("the run is complete and saved in ", folder, "; its upload is not. To upload it: ", again);
        throw;
    } catch (const std::exception& failure) {
        log::error("the run is complete and saved in ", folder, ", but it was not uploaded: ", failure.what());
        log::error("To upload it: ", again);
        return false;
    }
}

void run_push(const CommandLine& line) {
    install_interrupt_handlers("Stopping the upload");
    const PushOptions& push = line.push;
    if (!fs::is_directory(push.folder))
        throw Error("model.not-found", cat(push.folder, " is no folder"), "Name the folder of a model or an adapter.");
    push_folder(push.folder, {push.repo, push.is_private, push.branch}, push.message);
}

}  // namespace unsloth::app
