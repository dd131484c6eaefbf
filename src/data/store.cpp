#include "data/store.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "unsloth/core/error.h"

namespace unsloth::data {
namespace {

/// Whether each label is its token's id or ignore_label, as it is in all rows that were not given as tokens.
bool labels_are_runs(const FormattedRow& row) {
    for (std::size_t t = 0; t < row.ids.size(); ++t)
        if (row.labels[t] != row.ids[t] && row.labels[t] != ignore_label) return false;
    return true;
}

void append_runs(const std::vector<int32_t>& labels, std::vector<int32_t>& words) {
    const std::size_t count = words.size();
    words.push_back(0);
    for (std::size_t t = 0; t < labels.size(); ++t) {
        if (labels[t] == ignore_label) continue;
        const std::size_t begin = t;
        while (t < labels.size() && labels[t] != ignore_label) ++t;
        words.insert(words.end(), {static_cast<int32_t>(begin), static_cast<int32_t>(t)});
        ++words[count];
    }
}

void extend(std::vector<int32_t>& to, const std::vector<int32_t>& from) {
    to.insert(to.end(), from.begin(), from.end());
}

}  // namespace

void StorePart::append(const FormattedRow& row, int64_t source_row, int32_t source) {
    UNSLOTH_CHECK(row.labels.size() == row.ids.size(), "row ", source_row);
    UNSLOTH_CHECK(row.positions.empty() || row.positions.size() == row.ids.size(), "row ", source_row);
    UNSLOTH_CHECK(are_sound(row.segments, row.ids.size()), "row ", source_row);
    RowRecord record;
    record.start = static_cast<int64_t>(words.size());
    record.source_row = source_row;
    record.length = static_cast<int32_t>(row.ids.size());
    record.targets = static_cast<int32_t>(row.targets);
    record.source = source;
    if (row.truncated) record.flags |= RowRecord::truncated;
    if (row.split) record.flags |= RowRecord::split | static_cast<uint32_t>(row.piece) << RowRecord::piece_shift;
    if (row.desirable) record.flags |= RowRecord::desirable;
    const Segments segments = listed(row.segments, row.ids.size());
    record.segments = static_cast<int32_t>(segments.size());
    for (const Segment& segment : segments) record.longest = std::max(record.longest, segment.tokens());

    extend(words, row.ids);
    if (row.labels == row.ids) {
        record.flags |= RowRecord::all_trained;
    } else if (labels_are_runs(row)) {
        append_runs(row.labels, words);
    } else {
        record.flags |= RowRecord::given_labels;
        extend(words, row.labels);
    }
    if (!row.positions.empty()) record.flags |= RowRecord::given_positions;
    extend(words, row.positions);
    if (segments.size() > 1) {
        record.flags |= RowRecord::given_segments;
        for (const Segment& segment : segments) extend(words, {segment.length, segment.owner, segment.shared});
    }
    if (!row.options.ids.empty()) {
        UNSLOTH_CHECK(row.options.ids.size() == row.options.shares.size(), "row ", source_row);
        record.flags |= RowRecord::given_options;
        words.push_back(static_cast<int32_t>(row.options.ids.size()));
        extend(words, row.options.ids);
        for (const float share : row.options.shares) words.push_back(std::bit_cast<int32_t>(share));
    }
    records.push_back(record);
}

Error Dataset::Store::damaged(const RowRecord& row, const char* what) const {
    return Error("data.damaged-file",
                 cat(file.path().string(), ": this file of the cache is damaged: ", what, row.source_row,
                     " are not among its tokens"),
                 "Delete the file: it is made again.");
}

Segments Dataset::Store::copy_segments(const RowRecord& row, const int32_t* next) const {
    Segments segments;
    int64_t end = 0;
    for (int32_t s = 0; s < row.segments; ++s, next += RowRecord::words_of_segment) {
        segments.push_back({static_cast<int32_t>(end), next[0], next[1], next[2]});
        end += next[0];
        if (end > row.length) break;
    }
    if (!are_sound(segments, static_cast<std::size_t>(row.length))) throw damaged(row, "the segments of row ");
    return segments;
}

OptionTokens Dataset::Store::copy_options(const RowRecord& row, const int32_t* next) const {
    const int64_t behind = words.data() + words.size() - next - 1;
    const int32_t count = *next++;
    if (count < 1 || count > behind / 2) throw damaged(row, "the options of row ");
    OptionTokens options{{next, next + count}, {}};
    for (int32_t i = 0; i < count; ++i) options.shares.push_back(std::bit_cast<float>(next[count + i]));
    return options;
}

/// The labels that the runs at `next` give; returns what stands behind them. A file's checksums keep accidents out, but
/// the file may be anyone's: nothing outside of it is read.
const int32_t* Dataset::Store::copy_runs(const RowRecord& row, const int32_t* next, Sample& sample) const {
    const auto refuse = [&] { throw damaged(row, "the trained tokens of row "); };
    const int64_t behind = words.data() + words.size() - next - 1 - row.words_behind_labels();
    const int32_t runs = *next++;
    if (runs < 0 || runs > behind / 2) refuse();
    sample.labels.assign(sample.ids.size(), ignore_label);
    for (int32_t run = 0; run < runs; ++run, next += 2) {
        if (next[0] < 0 || next[0] > next[1] || next[1] > row.length) refuse();
        std::copy(sample.ids.begin() + next[0], sample.ids.begin() + next[1], sample.labels.begin() + next[0]);
    }
    return next;
}

Sample Dataset::Store::sample(int64_t i) const {
    const RowRecord& row = record(i);
    const int32_t* next = words.data() + row.start;
    const auto length = static_cast<std::size_t>(row.length);
    Sample sample;
    sample.row = row.source_row;
    sample.desirable = row.has(RowRecord::desirable);
    sample.ids.assign(next, next + length);
    next += length;
    if (row.has(RowRecord::all_trained)) {
        sample.labels = sample.ids;
    } else if (row.has(RowRecord::given_labels)) {
        sample.labels.assign(next, next + length);
        next += length;
    } else {
        next = copy_runs(row, next, sample);
    }
    if (row.has(RowRecord::given_positions)) {
        sample.positions.assign(next, next + length);
        next += length;
    } else {
        sample.positions.resize(length);
        std::iota(sample.positions.begin(), sample.positions.end(), 0);
    }
    if (row.has(RowRecord::given_segments)) {
        sample.segments = copy_segments(row, next);
        next += RowRecord::words_of_segment * row.segments;
    }
    if (row.has(RowRecord::given_options)) sample.options = copy_options(row, next);
    return sample;
}

DatasetStats Dataset::Store::count(const std::vector<int64_t>& chosen) const {
    DatasetStats stats;
    stats.rows = static_cast<int64_t>(chosen.size());
    for (const int64_t i : chosen) {
        const RowRecord& row = record(i);
        stats.tokens += row.length;
        stats.longest = std::max<int64_t>(stats.longest, row.length);
        stats.trained_tokens += row.targets;
        stats.truncated_rows += row.has(RowRecord::truncated);
        stats.pieces += row.has(RowRecord::split);
        stats.split_rows += row.has(RowRecord::split) && row.piece() == 0;
    }
    return stats;
}

}  // namespace unsloth::data
