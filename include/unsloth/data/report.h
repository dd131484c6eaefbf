// What a run would see of its data: the figures of `unsloth-train data`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "unsloth/core/error.h"
#include "unsloth/data/loader.h"
#include "unsloth/data/show.h"
#include "unsloth/data/training_data.h"

namespace unsloth::data {

/// Rows of a length between `from` and `to`, both included, in tokens.
struct LengthBin {
    int64_t from = 0, to = 0, rows = 0;
};

/// A set of rows as it is trained or evaluated on.
struct SetReport {
    std::string source;  ///< the files' path; for rows held out of the training files, which part of them
    bool held_out = false;
    config::DataFormat format = config::DataFormat::automatic;
    // Of the files. Of a part of the training rows: the same figures as those of the training set.
    int64_t read = 0;
    int64_t bad = 0;        ///< dropped: malformed
    int64_t masked = 0;     ///< dropped: all labels masked
    int64_t too_long = 0;   ///< dropped: more than max_seq_length tokens
    int64_t too_short = 0;  ///< dropped: fewer than data.min_length tokens
    int64_t dropped_duplicates = 0;
    // Of the rows that are left for this set.
    int64_t rows = 0, tokens = 0, trained_tokens = 0;
    int64_t truncated = 0;
    int64_t split = 0, pieces = 0;                              ///< rows of the files that became several, and how many
    int64_t shortest = 0, median = 0, p95 = 0, longest = 0;     ///< tokens of a row
    int64_t duplicates = 0;                                     ///< rows whose ids are those of an earlier row
    std::vector<std::pair<int64_t, int64_t>> first_duplicates;  ///< {row, the earlier row}, the first few
    int64_t images = 0, image_tokens = 0;
    std::vector<LengthBin> lengths;  ///< from 0 on, of equal width, without a gap
};

/// How training rows make steps, on one device.
struct StepsReport {
    LoaderOptions options;
    int64_t rows_per_epoch = 0;  ///< packed rows with packing
    EpochCounts first_epoch;
    int64_t steps_per_epoch = 0, total_steps = 0;
};

struct DataReport {
    SetReport train;
    std::optional<SetReport> eval;
    int64_t shared = 0;                ///< evaluation rows whose ids are those of a training row
    std::optional<StepsReport> steps;  ///< absent when nothing can be trained on
    std::vector<std::string> warnings;
    std::string refusal;                ///< why a run with this configuration would stop; empty: it would not
    std::optional<ErrorId> refusal_id;  ///< of that error

    std::vector<std::pair<std::string, Sample>> samples;  ///< {"training" | "evaluation" | "masked", row} to show
};

/// Of data that was loaded with RefusedRows::set_aside; `refusal` says what the configuration's own way to load it
/// answers, empty where that loads it. Shows up to `shown` rows: the first of the training set, of the evaluation set
/// one, of those whose labels are all masked up to `shown`. Time and memory are linear in the rows.
DataReport make_report(const TrainingData& data, const config::Config& config, const std::optional<Error>& refusal,
                       int64_t shown);

/// For people; ends in a newline. `tokenizer` may be null: rows are shown as ids.
std::string report_text(const DataReport& report, const tokenizer::Tokenizer* tokenizer, Marks marks);
/// An object {train, eval, shared, steps, warnings, refusal, refusal_id, rows}; ends in a newline.
std::string report_json(const DataReport& report, const tokenizer::Tokenizer* tokenizer);

}  // namespace unsloth::data
