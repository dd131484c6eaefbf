// "Did you mean …": the nearest known name by edit distance.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace unsloth::config {

/// Insertions, deletions, substitutions and swaps of neighbours that turn one text into the other, ignoring case.
int edit_distance(std::string_view from, std::string_view to);

/// The candidates nearest to `name`: all that share the smallest distance (three at most), none when even that is more
/// than a third of the name's length (at least 2).
std::vector<std::string> nearest(const std::string& name, const std::vector<std::string>& candidates);

/// "Did you mean a or b?", or nothing for no names. `prefix` stands before each name.
std::string did_you_mean(const std::vector<std::string>& names, const std::string& prefix = {});

}  // namespace unsloth::config
