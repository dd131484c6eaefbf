// The commands, and the options that belong to one command alone.
#pragma once

#include <string>
#include <vector>

#include "config/option_set.h"
#include "unsloth/config/command_line.h"

namespace unsloth::config {

/// An argument that is no flag and ends so is a configuration file.
inline constexpr const char* config_ending = ".json";

struct CommandInfo {
    Command command;
    std::string name;
    std::string usage;    ///< what follows the name in the usage line
    std::string summary;  ///< one line
    bool takes_config;    ///< reads --config FILE and every --section.key
    void (*declare)(OptionSet& options, CommandLine& line);
};

/// In the order of --help; help and version are not among them.
const std::vector<CommandInfo>& commands();

/// By name; usage Error with a suggestion when unknown.
const CommandInfo& command_named(const std::string& name);

/// The options of the command itself: its own, and --config or --log_level.
void declare_own_options(const CommandInfo& command, OptionSet& options, CommandLine& line);

}  // namespace unsloth::config
