#include "unsloth/data/batch.h"

#include <algorithm>
#include <limits>

#include "unsloth/core/error.h"

namespace unsloth::data {
namespace {

/// A place of the last segment that is to predict a token.
void add_target(Batch& batch, int32_t place, int32_t label) {
    if (label == ignore_label) return;
    batch.target_index.push_back(place);
    batch.target_ids.push_back(is_prompt_label(label) ? prompt_label(label) : label);
    if (is_prompt_label(label)) batch.answer_starts.back() = static_cast<int32_t>(batch.target_index.size());
}

/// `first`: number of the row's first segment.
void begin_segment(Batch& batch, const Segment& segment, std::size_t first, const Sample& sample) {
    batch.segments.push_back(static_cast<int32_t>(batch.ids_T.size()));
    batch.target_starts.push_back(static_cast<int32_t>(batch.target_index.size()));
    batch.answer_starts.push_back(batch.target_starts.back());
    batch.shared.push_back(segment.shared);
    batch.owners.push_back(segment.shared == 0 ? -1 : static_cast<int32_t>(first) + segment.owner);
    // The last shared token predicts how each of the segments continues.
    if (segment.shared > 0)
        add_target(batch, batch.segments[static_cast<std::size_t>(batch.owners.back())] + segment.shared - 1,
                   sample.labels[static_cast<std::size_t>(segment.begin)]);
}

/// Segments follow one another, so a row's tokens keep their order in the batch.
void append_images(Batch& batch, const Sample& sample, std::size_t first) {
    const std::size_t T = sample.ids.size();
    UNSLOTH_CHECK(sample.axes.empty() || sample.axes.size() == 3 * T, "row ", sample.row, ": ", sample.axes.size(),
                  " positions on three axes for ", T, " tokens");
    for (Image image : sample.images) {
        UNSLOTH_CHECK(image.first >= 0 && static_cast<std::size_t>(image.first) < T, "row ", sample.row,
                      ": an image at token ", image.first, " of ", T);
        image.first += static_cast<int32_t>(first);
        batch.images.push_back(std::move(image));
    }
    if (sample.axes.empty() && batch.axes_T3.empty()) return;
    for (std::size_t t = batch.axes_T3.size() / 3; t < first; ++t)
        batch.axes_T3.insert(batch.axes_T3.end(), 3, batch.positions_T[t]);
    if (sample.axes.empty())
        for (const int32_t position : sample.positions) batch.axes_T3.insert(batch.axes_T3.end(), 3, position);
    else
        batch.axes_T3.insert(batch.axes_T3.end(), sample.axes.begin(), sample.axes.end());
}

void append(Batch& batch, const Sample& sample) {
    const std::size_t T = sample.ids.size(), first = batch.segments.size();
    UNSLOTH_CHECK(sample.labels.size() == T && sample.positions.size() == T, "row ", sample.row, ": lengths ", T, ", ",
                  sample.labels.size(), ", ", sample.positions.size());
    UNSLOTH_CHECK(are_sound(sample.segments, T), "row ", sample.row, ": ", sample.segments.size(), " segments of ", T,
                  " tokens");
    UNSLOTH_CHECK(sample.row >= 0 && sample.row <= std::numeric_limits<int32_t>::max(), "row ", sample.row);
    append_images(batch, sample, batch.ids_T.size());
    const int32_t dropout_row = sample.dropout_row.value_or(static_cast<int32_t>(sample.row));
    for (const Segment& segment : listed(sample.segments, T)) {
        begin_segment(batch, segment, first, sample);
        const auto end = static_cast<std::size_t>(segment.end());
        for (auto t = static_cast<std::size_t>(segment.begin); t < end; ++t) {
            const auto place = static_cast<int32_t>(batch.ids_T.size());
            const int32_t target = t + 1 == end ? ignore_label : sample.labels[t + 1];
            batch.ids_T.push_back(sample.ids[t]);
            batch.targets_T.push_back(is_prompt_label(target) ? prompt_label(target) : target);
            batch.positions_T.push_back(sample.positions[t]);
            batch.row_T.push_back(dropout_row);
            batch.offset_T.push_back(static_cast<int32_t>(t));
            add_target(batch, place, target);
        }
    }
    if (!sample.options.ids.empty()) batch.options.push_back(sample.options);
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
        batch.shared.clear(), batch.owners.clear();
    return batch;
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
