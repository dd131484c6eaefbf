#include "unsloth/config/load.h"

#include <algorithm>

#include "unsloth/config/option_table.h"
#include "unsloth/config/parse.h"
#include "unsloth/config/render.h"
#include "unsloth/config/validate.h"
#include "unsloth/core/error.h"

namespace unsloth::config {

LoadedConfig load_config(const std::optional<std::filesystem::path>& file, const std::vector<std::string>& flags) {
    LoadedConfig loaded;
    OptionSet options;
    declare_options(options, loaded.config);
    ParseRecord record;
    auto assignments = parse_flags(flags, options, record);
    if (file) read_config_file(*file, options, record);
    settle_shared_keys(assignments, options);
    config::apply(assignments, record);
    loaded.notes = std::move(record.notes);
    loaded.given = std::move(record.given);
    validate(loaded, options, record.errors);
    record.errors.raise();
    return loaded;
}

std::vector<std::string> take_options(LoadedConfig& loaded, const Config& from, const std::vector<OptionsToTake>& all) {
    Config to, source;
    OptionSet ours, theirs;
    declare_options(ours, to), declare_options(theirs, source);
    to = loaded.config, source = from;  // the options are bound to these
    std::vector<std::string> taken;
    for (const auto& [options, unless] : all) {
        if (std::any_of(unless.begin(), unless.end(), [&](const std::string& name) { return loaded.is_given(name); }))
            continue;
        for (const std::string& name : options) {
            const auto here = ours.find(name), there = theirs.find(name);
            UNSLOTH_CHECK(here && there, "no option ", name);
            const Json value = there->option->get();
            if (loaded.is_given(name) || value == here->option->get()) continue;
            here->option->set(value);
            taken.push_back(cat(name, " ", value.is_string() ? value.get<std::string>() : value.dump()));
        }
    }
    loaded.config = to;
    return taken;
}

OptionsToTake base_precision() {
    const std::vector<std::string> names = {"model.load_in_4bit", "model.load_in_8bit", "model.precision"};
    return {names, names};
}

std::string config_to_json(const Config& config) {
    Config fresh;
    OptionSet options;
    declare_options(options, fresh);
    fresh = config;  // the options are bound to `fresh`
    return effective_json(options).dump(2) + "\n";
}

std::string with_present_names(const std::string& json) {
    const Json written = Json::parse(json, nullptr, /*allow_exceptions=*/false);
    if (!written.is_object()) return json;
    Config config;
    OptionSet options;
    declare_options(options, config);
    Json present = Json::object();
    for (const auto& [section, content] : written.items()) {
        if (!content.is_object()) {
            present[section] = content;
            continue;
        }
        for (const auto& [key, value] : content.items()) {
            const auto found = options.find(cat(section, ".", key));
            const bool renamed = found && found->alias != nullptr && !found->alias->when_true;
            if (renamed) {
                present[found->option->section][found->option->key] = value;
            } else {
                present[section][key] = value;
            }
        }
    }
    return present.dump(2) + "\n";
}

OnResume on_resume(const std::string& option) {
    Config config;
    OptionSet options;
    declare_options(options, config);
    const auto found = options.find(option);
    UNSLOTH_CHECK(found && found->option->resuming, option, " does not say whether a resumed run may change it");
    return *found->option->resuming;
}

std::string config_schema() {
    Config config;
    OptionSet options;
    declare_options(options, config);
    return json_schema(options).dump(2) + "\n";
}

std::string best_metric(const TrainingOptions& training) {
    const std::string& given = training.metric_for_best_model;
    const std::string name = given.starts_with("eval_") ? given : "eval_" + given;
    // Completions of held-out prompts have rewards, and no loss.
    return name == "eval_loss" && samples_completions(training.objective) ? "eval_reward" : name;
}

bool more_is_better(const TrainingOptions& training) {
    const std::string name = best_metric(training);
    return training.greater_is_better.value_or(!name.ends_with("loss") && !name.ends_with("perplexity"));
}

}  // namespace unsloth::config
