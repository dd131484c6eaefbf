#include "app/as_trained.h"

#include <filesystem>
#include <optional>

#include "unsloth/config/load.h"
#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/log.h"
#include "unsloth/formats/checkpoint_folder.h"
#include "unsloth/report/run.h"

namespace unsloth::app {
namespace {

namespace fs = std::filesystem;

bool holds(const fs::path& folder, const char* file) {
    std::error_code failed;
    return fs::exists(folder / file, failed);
}

/// The configuration of the run that wrote this folder; nothing where it was none of this program's.
std::optional<config::Config> config_of_run(const fs::path& folder) {
    if (!holds(folder, config::run_config_file)) return std::nullopt;
    const fs::path file = folder / config::run_config_file;
    try {
        return config::load_config(file, {}).config;
    } catch (const Error& failure) {
        log::warning("what the run was trained with is not known, and the defaults hold: ", failure.what());
        return std::nullopt;
    }
}

std::string listed(const std::vector<std::string>& words) {
    std::string text;
    for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
    return text;
}

/// RUN/run_config.json names what the run began with: its result is meant.
void name_result(CommandLine& line) {
    config::Config& config = line.loaded.config;
    const fs::path file = line.config_file, folder = file.has_parent_path() ? file.parent_path() : fs::path(".");
    const bool full = config.lora.finetuning_type == config::FinetuningType::full;
    const char* const option = full ? "model.path" : "model.adapter_name_or_path";
    if (line.typed.contains(option) || !line.generate.adapters.typed.empty()) return;
    if (!holds(folder, full ? "config.json" : "adapter_config.json")) {
        std::string advice = "Name the base in a configuration of its own, or with --model.path and without the file.";
        if (const auto saved = formats::list_checkpoints(folder); !saved.empty())
            advice = cat("Its newest checkpoint has one: ", (saved.front().path / config::run_config_file).string());
        throw Error("run.no-result",
                    cat(file.string(), " is the configuration of a run that left no ", full ? "model" : "adapter",
                        " in ", folder.string()),
                    advice);
    }
    if (full)
        config.model.path = folder.string();
    else
        config.model.adapter_name_or_path = folder.string();
    log::info(file.string(), " is the configuration of a run: its ", full ? "model" : "adapter", " is taken, --",
              option, " ", folder.string());
}

/// A configuration that a run was started with says nothing of its result.
void tell_result(const CommandLine& line) {
    const config::Config& config = line.loaded.config;
    const fs::path out = config.training.output_dir;
    if (line.config_file.empty() || config.model.adapter_name_or_path || !line.generate.adapters.typed.empty() ||
        !line.loaded.is_given("training.output_dir") || !holds(out, "adapter_config.json"))
        return;
    log::info("without the adapter in ", out.string(),
              ", which training.output_dir names: "
              "--model.adapter_name_or_path ",
              out.string(), " takes it");
}

report::RunFacts facts_of_run(const fs::path& folder) {
    const bool is_checkpoint = !holds(folder, report::facts_file) && holds(folder, config::run_config_file);
    return report::read_run_facts(is_checkpoint ? folder / ".." : folder);
}

/// The folder with the result of the run that is used; empty: there is no such folder here.
fs::path result_folder(const CommandLine& line) {
    const config::ModelOptions& model = line.loaded.config.model;
    const auto& several = line.generate.adapters.folders;
    const fs::path place = model.adapter_name_or_path ? fs::path(*model.adapter_name_or_path)
                           : several.empty()          ? fs::path(model.path)
                                                      : fs::path(several.front().second);
    std::error_code failed;
    return fs::is_directory(place, failed) ? place : fs::path();
}

std::vector<config::OptionsToTake> options_to_take(Command command) {
    std::vector<config::OptionsToTake> all = {config::base_precision(),
                                              {{"model.dtype", "data.template", "data.image_max_pixels"}, {}},
                                              {{"data.chat_template_kwargs"}, {"data.template"}}};
    const std::vector<std::string> targets = {"data.train_on_prompt", "data.train_on_last_turn_only"};
    if (command != Command::generate && command != Command::serve) all.push_back({targets, targets});
    if (command == Command::evaluate) all.push_back({{"model.max_seq_length", "data.overflow_strategy"}, {}});
    return all;
}

/// All of them answer on one base, which is held as the first one's was.
void compare_others(const CommandLine& line) {
    const auto& several = line.generate.adapters.folders;
    for (std::size_t i = 1; i < several.size(); ++i) {
        const auto run = config_of_run(several[i].second);
        if (!run) continue;
        config::LoadedConfig here{line.loaded.config, {}, {}};
        if (const auto other = config::take_options(here, *run, {config::base_precision()}); !other.empty())
            log::warning("adapter ", several[i].first, " was trained with ", listed(other),
                         ": the base has other values here than it learned to correct");
    }
}

}  // namespace

void take_from_run(CommandLine& line) {
    if (fs::path(line.config_file).filename() == config::run_config_file)
        name_result(line);
    else
        tell_result(line);
    const fs::path folder = result_folder(line);
    if (folder.empty()) return;
    line.generate.rows = facts_of_run(folder).format;
    const auto run = config_of_run(folder);
    if (!run) return;
    if (const auto taken = config::take_options(line.loaded, *run, options_to_take(line.command)); !taken.empty())
        log::info("as ", (folder / config::run_config_file).string(), " says (flags win): ", listed(taken));
    compare_others(line);
}

void take_from_run(MergeRequest& request, const std::set<std::string>& given) {
    if (given.contains("load_in_4bit") || given.contains("precision")) return;
    const auto run = config_of_run(request.adapter);
    if (!run) return;
    request.load_in_4bit = run->model.load_in_4bit;
    request.precision = run->model.precision;
    if (run->model.load_in_8bit && request.precision.empty()) request.precision = {{"default", "int8"}};
    if (request.load_in_4bit || !request.precision.empty())
        log::info("merging into the values that the run trained on, as ", request.adapter, "/", config::run_config_file,
                  " says; --load_in_4bit false takes the base's own");
}

void pass_on_run(const fs::path& from, const fs::path& to) {
    const auto run = config_of_run(from);
    if (!run) return;
    // Fully trained as far as its readers go: there is no adapter, and no 16-bit weight is to be quantised.
    config::LoadedConfig passed_on;
    passed_on.config.lora.finetuning_type = config::FinetuningType::full;
    passed_on.config.model.load_in_4bit = false;
    config::take_options(passed_on, *run,
                         {{{"model.dtype", "data.template", "data.chat_template_kwargs"}, {}},
                          {{"data.train_on_prompt", "data.train_on_last_turn_only"}, {}}});
    write_file_atomically(to / config::run_config_file, config::config_to_json(passed_on.config));
    report::RunFacts facts;
    facts.format = facts_of_run(from).format;
    write_file_atomically(to / report::facts_file, report::run_facts_json(facts));
}

}  // namespace unsloth::app
