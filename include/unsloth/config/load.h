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

/// Options to take from another configuration where they are not set here, nor any of `unless`.
struct OptionsToTake {
    std::vector<std::string> options, unless;  ///< full names
};
/// Takes them; "model.load_in_4bit false" of each whose value changed.
std::vector<std::string> take_options(LoadedConfig& loaded, const Config& from, const std::vector<OptionsToTake>& all);
/// How a run holds its base: model.load_in_4bit, model.load_in_8bit and model.precision, which go together.
OptionsToTake base_precision();
/// The file of a run's whole configuration in its output_dir and in its checkpoints.
inline constexpr const char* run_config_file = "run_config.json";

/// usage Error for what the sizes of `distributed` do not allow, as load_config() has it: where they changed since.
void require_distributed(const Config& config);

/// The whole configuration as indented JSON that load_config reads back to the same values; ends in a newline.
std::string config_to_json(const Config& config);

/// A configuration that an earlier version wrote, with options under the names that they have today; a text that is no
/// JSON object stays as it is.
std::string with_present_names(const std::string& json);

/// What a resumed run may do with an option.
enum class OnResume {
    immutable,  ///< nothing: the completed steps depend on it
    logged,     ///< change it from here on, and the log reports it
    mutable_    ///< change it without a report: it only affects how the run is executed
};
/// Of the option of this full name ("lora.r"); CheckError when there is none.
OnResume on_resume(const std::string& option);

/// A JSON Schema (draft 2020-12) of configuration files; ends in a newline.
std::string config_schema();

}  // namespace unsloth::config
