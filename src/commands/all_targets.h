// Rows of which every token is asked for, whatever their labels.
#pragma once

#include <algorithm>

#include "unsloth/data/batch.h"

namespace unsloth::commands {

/// The row with every token a target that the model gives a logit of: ids from `vocabulary` on have none.
inline data::Sample all_targets(const data::Sample& sample, int64_t vocabulary) {
    data::Sample all = sample;
    all.labels = all.ids;
    std::ranges::replace_if(all.labels, [&](int32_t id) { return id >= vocabulary; }, data::ignore_label);
    return all;
}

}  // namespace unsloth::commands
