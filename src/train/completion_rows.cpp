#include "train/completion_rows.h"

#include <nlohmann/json.hpp>

#include "unsloth/core/json.h"
#include "unsloth/train/json_number.h"

namespace unsloth::train {

void add_completions(RowFile& file, int64_t step, const rollouts::GroupSource& source,
                     const rollouts::ScoredGroups& groups, std::span<const double> advantages,
                     std::span<const std::string> sets) {
    std::size_t place = 0;
    for (std::size_t g = 0; g < groups.groups.size(); ++g)
        for (const rollouts::GroupCompletion& one : groups.groups[g].completions) {
            nlohmann::ordered_json row{{"step", step}, {"prompt", nullptr}, {"completion", nullptr}};
            if (one.text) row["completion"] = *one.text;
            if (groups.groups[g].prompt_text) row["prompt"] = *groups.groups[g].prompt_text;
            if (!sets.empty() && !sets[g].empty()) row["set"] = sets[g];
            const auto& names = source.reward_names();
            for (std::size_t k = 0; k < names.size(); ++k) row[names[k]] = number(groups.scores[k][place]);
            for (const auto& [name, values] : groups.extra)
                row[name] = try_parse_json<nlohmann::ordered_json>(values[place]);
            if (!advantages.empty()) row["advantage"] = number(advantages[place]);
            file.add(row);
            ++place;
        }
}

}  // namespace unsloth::train
