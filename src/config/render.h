// What is made from an OptionSet: JSON, JSON Schema, --help and docs/options.md.
#pragma once

#include <string>

#include "config/commands.h"
#include "config/option_set.h"

namespace unsloth::config {

/// The present values of all options that stand in a section.
Json effective_json(const OptionSet& options);

/// JSON Schema (draft 2020-12) of a configuration file: all that read_config_file accepts, as far as single options go.
Json json_schema(const OptionSet& options);

/// The options by section, with defaults, wrapped for a terminal.
std::string help_of_options(const OptionSet& options);

/// The head and the sections of docs/options.md.
std::string markdown_of_config(const OptionSet& options);

/// The part of docs/options.md about one command: its usage and its own options.
std::string markdown_of_command(const CommandInfo& command, const OptionSet& own_options);

/// `shell`: bash, zsh or fish.
std::string completion_script(const std::string& shell);

/// unsloth-train.1, in roff.
std::string man_page();

}  // namespace unsloth::config
