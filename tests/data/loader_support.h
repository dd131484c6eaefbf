// Rows by micro-batch.
#pragma once

#include "unsloth/data/loader.h"

#include "data/toy.h"
#include "unsloth/data/describe.h"
#include "unsloth/data/prefetch.h"

namespace unsloth::data {

using Rows = std::vector<int64_t>;

inline LoaderOptions loader_options(int64_t batch, int64_t accumulation, bool shuffle = false) {
    LoaderOptions options;
    options.per_device_train_batch_size = batch;
    options.gradient_accumulation_steps = accumulation;
    options.shuffle = shuffle;
    options.seed = 3407;
    return options;
}

/// Source rows of each micro-batch.
inline std::vector<Rows> rows_by_micro_batch(const StepBatch& step) {
    std::vector<Rows> rows;
    for (const Batch& batch : step.micro) rows.push_back(batch.rows);
    return rows;
}

inline Rows flat_rows(const std::vector<Rows>& parts) {
    Rows all;
    for (const Rows& part : parts) all.insert(all.end(), part.begin(), part.end());
    return all;
}

}  // namespace unsloth::data
