// `bench --check`: runs benchmarks one after another and compares each with its regression threshold (floors.h).
#pragma once

#include <string>
#include <vector>

#include "app/command_line/command_line.h"

namespace unsloth::app {

/// Runs the rows of line.bench.floors with `arguments` of the command line added, and prints of each figure the rate,
/// the ceiling that was measured in the same run, their share and its floor. Runtime Error that names what is below its
/// floor or could not be run, with what can be seen of the reason; usage Error where nothing has a floor on this card.
void check_floors(const CommandLine& line, const std::vector<std::string>& arguments);

}  // namespace unsloth::app
