#include "unsloth/config/load.h"

#include "config/commands.h"
#include "config/option_table.h"
#include "config/parse.h"
#include "config/render.h"
#include "config/settle.h"
#include "unsloth/core/error.h"

namespace unsloth {

LoadedConfig load_config(const std::optional<std::filesystem::path>& file, const std::vector<std::string>& flags) {
    LoadedConfig loaded;
    config::OptionSet options;
    config::declare_options(options, loaded.config);
    config::ParseRecord record;
    const auto assignments = config::parse_flags(flags, options, record);
    if (file) config::read_config_file(*file, options, record);
    config::apply(assignments, record);
    loaded.notes = std::move(record.notes);
    loaded.given = std::move(record.given);
    config::settle(loaded, record.problems);
    record.problems.raise();
    return loaded;
}

std::string config_to_json(const Config& config) {
    Config fresh;
    config::OptionSet options;
    config::declare_options(options, fresh);
    fresh = config;  // the options are bound to `fresh`
    return config::effective_json(options).dump(2) + "\n";
}

OnResume on_resume(const std::string& option) {
    Config config;
    config::OptionSet options;
    config::declare_options(options, config);
    const auto found = options.find(option);
    UNSLOTH_CHECK(found && found->option->resuming, option, " does not say whether a resumed run may change it");
    return *found->option->resuming;
}

std::string config_schema() {
    Config config;
    config::OptionSet options;
    config::declare_options(options, config);
    return config::json_schema(options).dump(2) + "\n";
}

std::string options_markdown() {
    Config config;
    config::OptionSet options;
    config::declare_options(options, config);
    std::string text = config::markdown_of_config(options);
    for (const auto& command : config::commands()) {
        CommandLine line;
        config::OptionSet own;
        config::declare_own_options(command, own, line);
        text += config::markdown_of_command(command, own);
    }
    return text;
}

}  // namespace unsloth
