// Rewards that need no process: closed formulas over a completion's text or ids.
//
// Sources: TRL's trl/rewards (think_format, repetition, overlong, cosine); Yeo et al., "Demystifying Long
// Chain-of-Thought Reasoning" (cosine, repetition); Yu et al., "DAPO" (overlong).
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "reward/options.h"
#include "unsloth/reward/rewards.h"

namespace unsloth::reward {

const std::vector<std::string>& built_in_names();

class BuiltIn {
  public:
    virtual ~BuiltIn() = default;
    /// One value a row. input Error where a column is missing.
    virtual Scores score(const Batch& batch) const = 0;
    /// Columns that it reads.
    virtual std::vector<std::string> columns() const { return {}; }
};

/// usage Error that names the entry for arguments that it does not allow.
std::unique_ptr<BuiltIn> make_built_in(const Entry& entry, int64_t max_completion_length);

/// The last number in a text; commas between digits do not count. nullopt: none.
std::optional<double> last_number(const std::string& text);

}  // namespace unsloth::reward
