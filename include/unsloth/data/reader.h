// JSON Lines files, read in place: a memory map and a sparse index of the rows.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "unsloth/core/files.h"

namespace unsloth {

/// What is wrong with one row. Thrown while a row is parsed and formatted; whoever reads the file adds
/// file:line, and either stops or skips the row.
struct BadRow {
    std::string message;
    std::string advice;
};

/// A row as it lies in the file.
struct RawRow {
    int64_t index = 0;      ///< number of the row among the non-blank lines, from 0
    int64_t line = 0;       ///< line of the file, from 1
    std::string_view text;  ///< without the line's end; lives as long as the file object
};

/// A file of one JSON object a line (https://jsonlines.org). A byte order mark in front, CRLF line ends,
/// blank lines and a missing last newline are accepted. The index keeps one entry for `index_stride` rows,
/// and the map is read-only and can be dropped by the system: files may be larger than the memory.
class JsonLinesFile {
  public:
    static constexpr int64_t index_stride = 64;

    /// Input Error when the file cannot be read, or is of another kind (a JSON array, Parquet, CSV,
    /// compressed, UTF-16): the message names the kind and says how to convert it.
    explicit JsonLinesFile(const std::filesystem::path& path);

    int64_t rows() const { return rows_; }
    std::string name() const { return map_.path().string(); }

    /// Calls visit(RawRow) for the rows [begin, end) in order until it returns false. Safe from several
    /// threads.
    template <class Visit>
    void visit(int64_t begin, int64_t end, Visit&& visit) const {
        if (begin >= end) return;
        Place place = find(begin);
        for (int64_t index = begin; index < end; ++index)
            if (!visit(take(place, index))) return;
    }
    RawRow row(int64_t index) const;
    /// Tells the system that the bytes of the rows [begin, end) are not needed soon.
    void drop(int64_t begin, int64_t end) const;

  private:
    struct Place {
        std::size_t offset = 0;
        int64_t line = 1;
    };
    std::string_view content() const;
    Place find(int64_t index) const;  ///< where the line of row `index` begins
    RawRow take(Place& place,
                int64_t index) const;  ///< the next non-blank line from `place` on; moves it behind

    MappedFile map_;
    std::vector<Place> index_;  ///< place of every index_stride-th row
    int64_t rows_ = 0;
};

/// Parses a row into a JSON object; BadRow with the column and what is wrong otherwise.
nlohmann::json parse_row(std::string_view text);

}  // namespace unsloth
