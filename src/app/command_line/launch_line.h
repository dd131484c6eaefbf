// The command line of `launch`: its own options, followed by the command line of every rank.
#pragma once

#include <string>
#include <vector>

#include "app/command_line/commands.h"

namespace unsloth::app {

/// Fills line.launch and, from the ranks' configuration, line.log_level. Usage Error for what either part of the line
/// has wrong, so that an error is reported once and not by every rank.
void read_launch(const CommandInfo& command, const std::vector<std::string>& arguments, CommandLine& line);

}  // namespace unsloth::app
