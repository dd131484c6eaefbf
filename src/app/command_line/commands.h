// The commands, and the options that belong to one command alone.
#pragma once

#include <string>
#include <vector>

#include "app/command_line/command_line.h"

namespace unsloth::app {

/// Whether an argument that is no flag is a configuration file, by its ending.
bool names_config_file(const std::string& argument);

/// What a command reads of a configuration, by sections and full names. Of a file it takes the rest without a word: a
/// run's configuration is given to many commands.
struct ConfigUse {
    std::vector<std::string> names;
    std::vector<std::string> but;  ///< options of these sections that it does not read

    bool reads(const Option& option) const;
    /// "`model` but `model.compute_dtype`, `data.template`".
    std::string in_words() const;
};

struct CommandInfo {
    Command command;
    std::string name;
    std::string usage;    ///< what follows the name in the usage line
    std::string summary;  ///< one line
    ConfigUse use;        ///< empty: it takes no --config
    void (*declare)(OptionSet& options, CommandLine& line);
    /// Runs it to the end; the exit code. `arguments`: those that `line` was read from.
    int (*run)(const CommandLine& line, const std::vector<std::string>& arguments);
    bool alone = false;  ///< in one process: several ranks would each do the whole work

    bool takes_config() const { return !use.names.empty(); }
};

/// In the order of --help; help and version are not among them.
const std::vector<CommandInfo>& commands();

/// By name; usage Error with a suggestion when unknown.
const CommandInfo& command_named(const std::string& name);

/// The options of the command itself: its own, and --config or --log_level.
void declare_own_options(const CommandInfo& command, OptionSet& options, CommandLine& line);

/// The same, and the options of a configuration, of which those that it does not read are marked.
void declare_all_options(const CommandInfo& command, OptionSet& options, CommandLine& line);

/// "It is an option of unsloth-train launch." for a name that no option of this command has, but another command's
/// own; empty where there is none.
std::string advice_on_foreign_option(const std::string& name);

}  // namespace unsloth::app
