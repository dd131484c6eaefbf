#include "unsloth/config/load.h"

#include "config/commands.h"
#include "config/option_table.h"
#include "config/parse.h"
#include "config/render.h"
#include "config/settle.h"
#include "unsloth/core/error.h"

namespace unsloth::config {

LoadedConfig load_config(const std::optional<std::filesystem::path>& file, const std::vector<std::string>& flags) {
    LoadedConfig loaded;
    OptionSet options;
    declare_options(options, loaded.config);
    ParseRecord record;
    const auto assignments = parse_flags(flags, options, record);
    if (file) read_config_file(*file, options, record);
    apply(assignments, record);
    loaded.notes = std::move(record.notes);
    loaded.given = std::move(record.given);
    settle(loaded, record.problems);
    record.problems.raise();
    return loaded;
}

std::string config_to_json(const Config& config) {
    Config fresh;
    OptionSet options;
    declare_options(options, fresh);
    fresh = config;  // the options are bound to `fresh`
    return effective_json(options).dump(2) + "\n";
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

std::string shell_completion(const std::string& shell) {
    return completion_script(shell);
}

std::string manual_page() {
    return man_page();
}

std::string options_markdown() {
    Config config;
    OptionSet options;
    declare_options(options, config);
    std::string text = markdown_of_config(options);
    for (const auto& command : commands()) {
        CommandLine line;
        OptionSet own;
        declare_own_options(command, own, line);
        text += markdown_of_command(command, own);
    }
    return text;
}

std::string best_metric(const TrainingOptions& training) {
    const std::string& name = training.metric_for_best_model;
    return name.starts_with("eval_") ? name : "eval_" + name;
}

bool more_is_better(const TrainingOptions& training) {
    const std::string& name = training.metric_for_best_model;
    return training.greater_is_better.value_or(!name.ends_with("loss") && !name.ends_with("perplexity"));
}

}  // namespace unsloth::config
