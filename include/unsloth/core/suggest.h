// "Did you mean …": the nearest known name by edit distance.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace unsloth {

/// Insertions, deletions, substitutions and swaps of neighbours that turn one text into the other, ignoring case.
int edit_distance(std::string_view from, std::string_view to);

/// Whether one may be a slip for the other: two edits apart at most, and one for each three letters.
bool is_like(std::string_view name, std::string_view candidate);

/// The candidates nearest to `name`: of those that are like it all that share the smallest distance (three at most).
std::vector<std::string> nearest(const std::string& name, const std::vector<std::string>& candidates);

/// "Did you mean a or b?", or nothing for no names. `prefix` precedes each name.
std::string did_you_mean(const std::vector<std::string>& names, const std::string& prefix = {});

}  // namespace unsloth
