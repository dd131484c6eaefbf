#include "unsloth/data/batch.h"

#include <algorithm>
#include <limits>

#include "unsloth/core/error.h"

namespace unsloth::data {
namespace {

/// Whether token t of a row begins a segment.
bool begins_segment(const std::vector<int32_t>& positions, std::size_t t) {
    return t == 0 || positions[t] <= positions[t - 1];
}

/// A place of the last segment that is to predict a token.
void add_target(Batch& batch, int32_t place, int32_t label) {
    if (label == ignore_label) return;
    batch.target_index.push_back(place);
    batch.target_ids.push_back(is_prompt_label(label) ? prompt_label(label) : label);
    if (is_prompt_label(label)) batch.answer_starts.back() = static_cast<int32_t>(batch.target_index.size());
}

/// Of the segment that has just begun.
void share(Batch& batch, int32_t tokens) {
    batch.shared.push_back(tokens);
    if (tokens == 0) return;
    const std::size_t own = batch.segments.size() - 1;
    UNSLOTH_CHECK(batch.shared[own - 1] == 0 && tokens <= batch.segments[own] - batch.segments[own - 1], tokens,
                  " tokens shared with a segment of ", batch.segments[own] - batch.segments[own - 1]);
}

void append(Batch& batch, const Sample& sample) {
    const std::size_t T = sample.ids.size();
    UNSLOTH_CHECK(sample.labels.size() == T && sample.positions.size() == T, "row ", sample.row, ": lengths ", T, ", ",
                  sample.labels.size(), ", ", sample.positions.size());
    UNSLOTH_CHECK(sample.row >= 0 && sample.row <= std::numeric_limits<int32_t>::max(), "row ", sample.row);
    const int32_t dropout_row = sample.dropout_row.value_or(static_cast<int32_t>(sample.row));
    for (std::size_t t = 0; t < T; ++t) {
        const auto place = static_cast<int32_t>(batch.ids_T.size());
        if (begins_segment(sample.positions, t)) {
            batch.segments.push_back(place);
            batch.target_starts.push_back(static_cast<int32_t>(batch.target_index.size()));
            batch.answer_starts.push_back(batch.target_starts.back());
            share(batch, t == 0 ? 0 : sample.positions[t]);
            // The last shared token predicts how both segments go on.
            if (batch.shared.back() > 0)
                add_target(batch, batch.segments.end()[-2] + batch.shared.back() - 1, sample.labels[t]);
        }
        const bool ends_segment = t + 1 == T || begins_segment(sample.positions, t + 1);
        const int32_t target = ends_segment ? ignore_label : sample.labels[t + 1];
        batch.ids_T.push_back(sample.ids[t]);
        batch.targets_T.push_back(is_prompt_label(target) ? prompt_label(target) : target);
        batch.positions_T.push_back(sample.positions[t]);
        batch.row_T.push_back(dropout_row);
        batch.offset_T.push_back(static_cast<int32_t>(t));
        add_target(batch, place, target);
    }
    batch.rows.push_back(sample.row);
    batch.desirable.push_back(sample.desirable ? 1 : 0);
}

void reserve(Batch& batch, std::span<const Sample> samples) {
    std::size_t tokens = 0;
    for (const Sample& sample : samples) tokens += sample.ids.size();
    UNSLOTH_CHECK(tokens <= static_cast<std::size_t>(std::numeric_limits<int32_t>::max()), tokens,
                  " tokens in a batch");
    for (auto* field : {&batch.ids_T, &batch.targets_T, &batch.positions_T, &batch.row_T, &batch.offset_T})
        field->reserve(tokens);
}

}  // namespace

Batch make_batch(std::span<const Sample> samples) {
    Batch batch;
    reserve(batch, samples);
    for (const Sample& sample : samples) append(batch, sample);
    batch.segments.push_back(static_cast<int32_t>(batch.ids_T.size()));
    batch.labels = static_cast<int64_t>(batch.target_index.size());
    batch.target_starts.push_back(static_cast<int32_t>(batch.labels));
    for (std::size_t s = 1; s < batch.segments.size(); ++s)
        batch.longest = std::max(batch.longest, batch.length(s - 1));
    if (std::all_of(batch.shared.begin(), batch.shared.end(), [](int32_t tokens) { return tokens == 0; }))
        batch.shared.clear();
    return batch;
}

int64_t count_targets(const std::vector<int32_t>& labels, const std::vector<int32_t>& positions) {
    UNSLOTH_CHECK(labels.size() == positions.size(), labels.size(), " labels, ", positions.size(), " positions");
    int64_t targets = 0;
    for (std::size_t t = 1; t < labels.size(); ++t) targets += labels[t] != ignore_label && positions[t] > 0;
    return targets;
}

void cover_every_position(Batch& batch) {
    batch.target_index.clear();
    batch.target_ids.clear();
    for (int32_t t = 0; t < static_cast<int32_t>(batch.ids_T.size()); ++t) {
        const int32_t target = batch.targets_T[static_cast<std::size_t>(t)];
        batch.target_index.push_back(t);
        batch.target_ids.push_back(target == ignore_label ? 0 : target);
    }
    batch.labels = batch.tokens();
}

}  // namespace unsloth::data
