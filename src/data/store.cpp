#include "data/store.h"

#include <algorithm>
#include <bit>
#include <cstring>
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

/// Of an image, see StorePart.
void store_images(const FormattedRow& row, std::vector<int32_t>& words) {
    UNSLOTH_CHECK(row.sources.size() == row.images.size(), row.sources.size(), " sources of ", row.images.size());
    words.push_back(static_cast<int32_t>(row.images.size()));
    for (std::size_t i = 0; i < row.images.size(); ++i) {
        const Image& image = row.images[i];
        const auto& [inlined, data] = row.sources[i];
        words.insert(words.end(),
                     {image.first, image.grid_h, image.grid_w, inlined ? 1 : 0, static_cast<int32_t>(data.size())});
        const std::size_t place = words.size();
        words.resize(place + (data.size() + sizeof(int32_t) - 1) / sizeof(int32_t));
        std::memcpy(words.data() + place, data.data(), data.size());
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
    if (!row.images.empty()) {
        record.flags |= RowRecord::given_images;
        store_images(row, words);
    }
    records.push_back(record);
}

Error Dataset::Store::damaged(const RowRecord& row, const char* what) const {
    return Error("data.damaged-file",
                 cat(file.path().string(), ": this file of the cache is damaged: ", what, row.source_row,
                     " are not among its tokens"),
                 "Delete the file: it will be created again.");
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

OptionTokens Dataset::Store::copy_options(const RowRecord& row, const int32_t*& next) const {
    const int64_t left = words.data() + words.size() - next - 1;
    const int32_t count = *next++;
    if (count < 1 || count > left / 2) throw damaged(row, "the options of row ");
    OptionTokens options{{next, next + count}, {}};
    for (int32_t i = 0; i < count; ++i) options.shares.push_back(std::bit_cast<float>(next[count + i]));
    next += int64_t{2} * count;
    return options;
}

void Dataset::Store::copy_images(const RowRecord& row, const int32_t* next, Sample& sample) const {
    const int32_t* const end = words.data() + words.size();
    const auto require = [&](bool holds) {
        if (!holds) throw damaged(row, "the images of row ");
    };
    const int32_t count = *next++;
    require(count > 0);
    int64_t last = -1;
    for (int32_t i = 0; i < count; ++i) {
        require(end - next >= RowRecord::words_of_image);
        const Image image{next[0], next[1], next[2], {}};
        const int32_t inlined = next[3], bytes = next[4];
        next += RowRecord::words_of_image;
        require(image.first > last && image.first < row.length && image.grid_h > 0 && image.grid_w > 0 && bytes > 0 &&
                (bytes - 1) / static_cast<int32_t>(sizeof(int32_t)) < end - next);
        last = image.first;
        if (vision) {
            const int64_t tokens = vision->tokens_of(image);
            require(tokens > 0 && image.first + tokens <= row.length);
            last += tokens - 1;
        }
        sample.images.push_back(image);
        sample.sources.push_back(
            {inlined != 0, {reinterpret_cast<const char*>(next), static_cast<std::size_t>(bytes)}});
        next += (bytes - 1) / static_cast<int32_t>(sizeof(int32_t)) + 1;
    }
}

/// How many runs of trained tokens follow. A file's checksums keep accidents out, but the file may be anyone's: nothing
/// outside of it is read.
int32_t Dataset::Store::runs_at(const RowRecord& row, const int32_t* next) const {
    const int64_t left = words.data() + words.size() - next - 1 - row.words_after_labels();
    if (*next < 0 || *next > left / 2) throw damaged(row, "the trained tokens of row ");
    return *next;
}

/// The labels that the runs at `next` give; returns the position after the runs.
const int32_t* Dataset::Store::copy_runs(const RowRecord& row, const int32_t* next, Sample& sample) const {
    const int32_t runs = runs_at(row, next++);
    sample.labels.assign(sample.ids.size(), ignore_label);
    for (int32_t run = 0; run < runs; ++run, next += 2) {
        if (next[0] < 0 || next[0] > next[1] || next[1] > row.length) throw damaged(row, "the trained tokens of row ");
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
    if (row.has(RowRecord::given_images)) copy_images(row, next, sample);
    if (vision && vision->three_axes && !sample.images.empty()) sample.axes = axes_of(sample, *vision);
    return sample;
}

Sample Dataset::Store::images(int64_t i) const {
    const RowRecord& row = record(i);
    Sample sample;
    sample.row = row.source_row;
    if (!row.has(RowRecord::given_images)) return sample;
    const int32_t* next = words.data() + row.start + row.length;
    if (row.has(RowRecord::given_labels))
        next += row.length;
    else if (!row.has(RowRecord::all_trained))
        next += 1 + int64_t{2} * runs_at(row, next);
    if (row.has(RowRecord::given_positions)) next += row.length;
    if (row.has(RowRecord::given_segments)) next += RowRecord::words_of_segment * row.segments;
    if (row.has(RowRecord::given_options)) copy_options(row, next);
    copy_images(row, next, sample);
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
