// The rows of sources, and of slices of them, one after another.
#include <algorithm>
#include <limits>
#include <span>

#include "unsloth/core/error.h"
#include "unsloth/core/interrupt.h"
#include "unsloth/data/source.h"

namespace unsloth::data {
namespace {

namespace fs = std::filesystem;
using RowRange = std::pair<int64_t, int64_t>;
constexpr int64_t endless = std::numeric_limits<int64_t>::max();

/// Rows of a file, or `most` if it has more.
int64_t count_rows(const fs::path& path, const ReaderOptions& options, int64_t most) {
    const std::unique_ptr<RowReader> file = open_rows(path, options);
    int64_t rows = 0;
    for (RowChunk chunk = file->next(); rows < most && !chunk.empty(); chunk = file->next()) {
        rows += static_cast<int64_t>(chunk.size());
        stop_if_interrupted("stopped while rows were counted; nothing was written");
    }
    return std::min(rows, most);
}

/// Of each of the files, which hold one split, the rows of its part.
std::vector<RowRange> ranges_in(std::span<const fs::path> files, const config::SplitPart& split,
                                const ReaderOptions& options) {
    if (split.whole()) return std::vector<RowRange>(files.size(), {0, endless});
    const bool to_the_end = !split.to && !split.needs_count();  // then only the rows before it are counted
    int64_t left = split.needs_count() ? endless : split.to.value_or(split.from.value_or(0)), rows = 0;
    std::vector<int64_t> counts;
    for (const fs::path& file : files) {
        counts.push_back(left == 0 ? 0 : count_rows(file, options, left));
        left -= counts.back(), rows += counts.back();
    }
    const auto [begin, end] = to_the_end ? RowRange{*split.from, endless} : split.range(rows);
    std::vector<RowRange> ranges;
    int64_t before = 0;
    for (const int64_t count : counts) {
        const bool has_more = to_the_end && before + count >= begin;  // rows that were not counted
        ranges.emplace_back(std::clamp<int64_t>(begin - before, 0, count),
                            has_more ? endless : std::clamp<int64_t>(end - before, 0, count));
        before += count;
    }
    return ranges;
}

/// Of each of the source's files.
std::vector<RowRange> wanted_rows_of(const SourceFiles& source, const ReaderOptions& options) {
    if (source.parts.empty()) return std::vector<RowRange>(source.files.size(), {0, endless});
    std::vector<RowRange> all;
    for (const auto& [split, count] : source.parts) {
        const auto ranges = ranges_in(std::span(source.files).subspan(all.size(), count), split, options);
        all.insert(all.end(), ranges.begin(), ranges.end());
    }
    return all;
}

}  // namespace

SourceReader::SourceReader(std::vector<SourceFiles> sources, ReaderOptions options)
    : sources_(std::move(sources)), options_(std::move(options)) {}

/// Whether the source has given as many rows as it may.
bool SourceReader::is_full() const {
    const int64_t most = sources_[source_].max_samples;
    return most > 0 && taken_ >= most;
}

void SourceReader::begin_source() {
    file_ = 0, taken_ = 0;
    if (source_ < sources_.size()) wanted_ = wanted_rows_of(sources_[source_], options_);
}

/// Moves to the next file with wanted rows; false after the last.
bool SourceReader::open_next() {
    if (reader_)
        ++file_;
    else
        begin_source();
    reader_.reset();
    for (; source_ < sources_.size(); ++source_, begin_source()) {
        const auto& files = sources_[source_].files;
        while (file_ < files.size() && wanted_[file_].first >= wanted_[file_].second) ++file_;
        if (file_ < files.size() && !is_full()) break;
        if (taken_ == 0)
            throw sources_[source_].parts.empty()
                ? Error("data.empty", cat(sources_[source_].name, ": has no rows"),
                        "Expected one JSON object on each line, or another known form.")
                : Error("data.empty", cat(sources_[source_].name, ": has no rows in the slice"),
                        "A slice [A:B] has the rows from A on and before B, counted from 0.");
    }
    if (source_ == sources_.size()) return false;
    ReaderOptions options = options_;
    options.columns = sources_[source_].columns;
    reader_ = open_rows(sources_[source_].files[file_], options);
    first_id_ = next_id_;
    position_ = 0;
    return true;
}

/// The next rows of the file, without those that are not wanted; possibly none.
RowChunk SourceReader::wanted_rows() {
    RowChunk chunk = reader_->next();
    const auto [begin, end] = wanted_[file_];
    const int64_t first = position_, most = sources_[source_].max_samples;
    if (chunk.empty()) {
        position_ = end;  // the file has no more
        return chunk;
    }
    position_ += static_cast<int64_t>(chunk.size());
    chunk.keep(static_cast<std::size_t>(std::max<int64_t>(0, end - first)));
    chunk.drop(static_cast<std::size_t>(std::max<int64_t>(0, begin - first)));
    if (most > 0) chunk.keep(static_cast<std::size_t>(most - taken_));
    return chunk;
}

SourceReader::Part SourceReader::next() {
    Part part;
    while ((reader_ && position_ < wanted_[file_].second && !is_full()) || open_next()) {
        part.chunk = wanted_rows();
        if (part.chunk.empty()) continue;
        part.file = reader_;
        part.source = static_cast<int32_t>(source_);
        part.first_id = first_id_;
        const auto count = static_cast<int64_t>(part.chunk.size());
        taken_ += count, rows_ += count;
        next_id_ = first_id_ + part.chunk.row(part.chunk.size() - 1).index + 1;
        if (next_id_ > std::numeric_limits<int32_t>::max())
            throw Error("data.too-large",
                        cat(sources_[source_].name, ": more rows than a row number of 32 bits can name"),
                        "Take fewer files.");
        return part;
    }
    return part;
}

}  // namespace unsloth::data
