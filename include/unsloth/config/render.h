// What is made from an OptionSet: JSON, JSON Schema, --help and docs/reference/options.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "unsloth/config/option_set.h"

namespace unsloth::config {

/// The present values of all options that stand in a section.
Json effective_json(const OptionSet& options);

/// JSON Schema (draft 2020-12) of a configuration file: all that read_config_file accepts, as far as single
/// options and their relations go.
Json json_schema(const OptionSet& options);

/// `head`, then `text` in lines of help's width; further lines begin after `indent` spaces. Ends with '\n'.
std::string wrapped_help(std::string head, std::string_view text, std::size_t indent);

/// The options by section, with defaults, wrapped for a terminal.
std::string help_of_options(const OptionSet& options);

/// The options that are most used (Option::brief), a line of at most 80 columns each.
std::string help_of_most_used(const OptionSet& options);

/// The head and the sections of docs/reference/options.
std::string markdown_of_config(const OptionSet& options);

/// The rows of such a table of options, with its head.
std::string markdown_table(const std::vector<const Option*>& options);

}  // namespace unsloth::config
