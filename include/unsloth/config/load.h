// From a JSON file and command-line flags to one validated configuration, and back to text.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "unsloth/config/config.h"

namespace unsloth::config {

/// Defaults, then the file, then the flags ("--section.key", "VALUE", …; also --key where it is unique, --key=VALUE,
/// dashes for underscores). The file is JSON with // and /* */ comments. Settles what depends on other options (full
/// training turns load_in_4bit off; a given warmup_ratio replaces the default warmup_steps) and checks the whole.
/// Usage Error for anything unknown, of a wrong type, out of range or contradictory. Which options must be present
/// depends on the command and is not checked here.
LoadedConfig load_config(const std::optional<std::filesystem::path>& file, const std::vector<std::string>& flags);

/// usage Error for what the sizes of `distributed` do not go with, as load_config() has it: where they changed since.
void require_distributed(const Config& config);

/// The whole configuration as indented JSON that load_config reads back to the same values; ends in a newline.
std::string config_to_json(const Config& config);

/// What a run that goes on from a checkpoint may do with an option.
enum class OnResume {
    fixed,  ///< nothing: it decides what the steps already taken meant
    told,   ///< change it from here on, and the log says so
    free    ///< change it without a word: it only says how the run is carried out
};
/// Of the option of this full name ("lora.r"); CheckError when there is none.
OnResume on_resume(const std::string& option);

/// A JSON Schema (draft 2020-12) of configuration files; ends in a newline.
std::string config_schema();

/// docs/options.md.
std::string options_markdown();

/// A script that completes command lines in `shell`: bash, zsh or fish.
std::string shell_completion(const std::string& shell);

/// The manual page unsloth-train.1, in roff.
std::string manual_page();

}  // namespace unsloth::config
