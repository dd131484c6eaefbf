// What the ids of errors mean.
#pragma once

#include <string>

namespace unsloth::app {

/// One id with its exit code, meaning and remedy. `name` may be written as it is printed: "error[data.empty]:". Usage
/// Error for an unknown one, with the nearest names.
std::string explanation(std::string name);

/// All ids with their meanings, one a line.
std::string error_ids_list();

/// All ids as a Markdown table.
std::string error_ids_markdown();

}  // namespace unsloth::app
