// The tokens of many rows, flat: in memory, or in a file's map.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/cache_use.h"
#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/data/dataset.h"

namespace unsloth::data {

/// What is known of a row without looking at its tokens. Cache files store it in this layout.
struct RowRecord {
    int64_t start = 0;       ///< of its words
    int64_t source_row = 0;  ///< row id
    int32_t length = 0;      ///< tokens
    int32_t targets = 0;
    int32_t segments = 0;
    int32_t longest = 0;  ///< tokens of the longest segment
    int32_t source = 0;
    uint32_t flags = 0;

    enum Flag : uint32_t {
        truncated = 1,
        all_trained = 2,
        given_labels = 4,
        given_positions = 8,
        split = 16,
        desirable = 32,
        given_segments = 64,
        given_options = 128,
        given_images = 256
    };
    static constexpr int64_t words_of_segment = 3;
    static constexpr int64_t words_of_image = 5;
    static constexpr int piece_shift = 9;  ///< above the flags: the number of the piece of a row that was split
    int64_t piece() const { return flags >> piece_shift; }
    bool has(Flag flag) const { return (flags & flag) != 0; }
    /// After its ids and labels.
    int64_t words_after_labels() const {
        return (has(given_positions) ? length : 0) + (has(given_segments) ? words_of_segment * segments : 0) +
               (has(given_options) ? 1 : 0) + (has(given_images) ? 1 : 0);
    }
};
static_assert(sizeof(RowRecord) == 40);

/// Rows encoded into words: a row's ids; then its labels unless all tokens are trained: as they are (given_labels), or,
/// where each is the token's id or ignore_label, the number of trained runs and the [begin, end) of each; then its
/// positions if they are not 0, 1, 2, ...; then of each segment, if there are several, length, owner and shared tokens;
/// then of a decision the number of its options' tokens, these, and the bits of their shares; then the number of its
/// images, and of each first token, rows and columns of patches, whether it is inlined, the bytes of its path or file,
/// and these, padded to whole words.
struct StorePart {
    std::vector<int32_t> words;
    std::vector<RowRecord> records;

    void append(const FormattedRow& row, int64_t source_row, int32_t source);
};

struct Dataset::Store {
    Store() = default;
    explicit Store(StorePart rows) : part(std::move(rows)), words(part.words), records(part.records) {}
    Store(const Store&) = delete;
    Store& operator=(const Store&) = delete;

    int64_t rows() const { return static_cast<int64_t>(records.size()); }
    const RowRecord& record(int64_t i) const { return records[static_cast<std::size_t>(i)]; }
    /// Input Error for a row of a cache file whose runs of trained tokens are not within it, or whose segments are not
    /// its tokens.
    Sample sample(int64_t i) const;
    /// Of the row its images and their sources alone. Errors as sample().
    Sample images(int64_t i) const;
    DatasetStats count(const std::vector<int64_t>& rows) const;

    // What the spans look at: one of the two. They stand first, for the spans are made from them.
    StorePart part;
    MappedFile file;
    CacheFileUse use;                               ///< of that file
    std::shared_ptr<const VisionRows> vision = {};  ///< null: no row has images
    std::span<const int32_t> words;
    std::span<const RowRecord> records;

  private:
    Error damaged(const RowRecord& row, const char* what) const;
    int32_t runs_at(const RowRecord& row, const int32_t* next) const;
    const int32_t* copy_runs(const RowRecord& row, const int32_t* next, Sample& sample) const;
    Segments copy_segments(const RowRecord& row, const int32_t* next) const;
    OptionTokens copy_options(const RowRecord& row, const int32_t*& next) const;
    void copy_images(const RowRecord& row, const int32_t* next, Sample& sample) const;
};

}  // namespace unsloth::data
