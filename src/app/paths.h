// Looks at a command's paths before it begins: what is wrong with them would otherwise be found after hours of work.
#pragma once

#include <filesystem>
#include <string>

#include "app/command_line/command_line.h"

namespace unsloth::app {

/// Usage Error where a file to write is one that another option names, or exists and --force is not given; runtime
/// Error, in the words of a failed write, where it cannot be created.
void require_outputs(const CommandLine& line);

/// Usage Error where a file to write exists and is not empty; `force`: it is replaced. `option`: the one that names it.
void refuse_existing(const std::string& file, bool force, const std::string& option);

/// Input Error for an error in a chat template that the configuration has or names.
void require_templates(const config::Config& config);

/// What the engine opens first must be there: opening the engine itself takes longer than to find out. Input Error, as
/// the engine has it.
void require_inputs(const CommandLine& line);

/// The folder's own name, whether or not the path ends with a slash.
std::string own_name(const std::filesystem::path& folder);

}  // namespace unsloth::app
