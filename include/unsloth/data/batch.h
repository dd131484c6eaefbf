// What the data module yields and the step consumes: plain vectors, no LibTorch.
#pragma once

#include <cstdint>
#include <vector>

namespace unsloth {

inline constexpr int32_t ignore_label = -100;

/// One sequence ready to train on.
struct Sample {
    int64_t row = 0;                 ///< index of the row in its source file, from 0
    std::vector<int32_t> ids;
    std::vector<int32_t> labels;     ///< in place: labels[t] belongs to ids[t]; ignore_label is not trained
    std::vector<int32_t> positions;  ///< position ids; a fall back to 0 starts a new segment
};

/// A micro-batch: tokens are flat, T of them, rows one after another without padding.
struct Batch {
    std::vector<int32_t> ids_T;
    std::vector<int32_t> targets_T;    ///< what position t must predict: the label of t + 1 within its segment, or ignore_label
    std::vector<int32_t> positions_T;
    std::vector<int32_t> row_T;        ///< source row of each token (dropout's counter)
    std::vector<int32_t> offset_T;     ///< token's index in its source row
    std::vector<int32_t> segments;     ///< [S + 1] offsets into T; attention never crosses them
    std::vector<int64_t> rows;         ///< source rows, in order (for messages)
    int64_t labels = 0;                ///< targets that are not ignore_label

    int64_t tokens() const { return static_cast<int64_t>(ids_T.size()); }
};

/// All micro-batches of one optimizer step on this rank.
struct StepBatch {
    std::vector<Batch> micro;
    int64_t labels = 0;
    int64_t tokens = 0;
    double epoch = 0;        ///< after this step, in epochs (fractional)
    uint32_t epoch_index = 0;  ///< the epoch the step began in
};

/// Joins samples into one micro-batch: shifts labels into targets (the first token of a segment is never a target),
/// finds segments where a position falls back to 0, and concatenates.
Batch make_batch(const std::vector<const Sample*>& samples);

}  // namespace unsloth
