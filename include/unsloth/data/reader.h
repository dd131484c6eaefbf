// Files of rows, read from front to end: JSON Lines, JSON arrays, tables (CSV, TSV), plain text, Parquet and Arrow;
// text files may be compressed (gzip, zstd). A file may be larger than the memory: only the rows in progress are held.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "unsloth/config/config.h"
#include "unsloth/core/error_id.h"

namespace unsloth::data {

/// What is wrong with one row. Thrown while a row is parsed and formatted; the reader of the file adds
/// file:line, and either stops or skips the row.
struct BadRow {
    ErrorId id;
    std::string message;
    std::string advice;
};

/// {name of a column here, name in the file; empty: the file's column of the former name is not read}.
using ColumnNames = std::vector<std::pair<std::string, std::string>>;

struct ReaderOptions {
    config::TextUnit text_unit = config::TextUnit::paragraph;  ///< what a row of a plain text file is
    config::InvalidUtf8 invalid_utf8 = config::InvalidUtf8::refuse;
    ColumnNames columns;  ///< renamed while parsing
    bool pairs = false;   ///< rows are taken for pairs of answers where they have them, whatever else they hold
};

/// A row as it is in the file.
struct RawRow {
    int64_t index = 0;      ///< number of the row in its file, from 0
    int64_t line = 0;       ///< line of the file where the row begins, from 1; of Parquet the row's number, from 1
    std::string_view text;  ///< lives as long as its chunk
    int64_t bytes = 0;      ///< of the row in the file; more than the text has when the row is too large to be read
};

/// Some rows in the file's order, with their text.
class RowChunk {
  public:
    bool empty() const { return places_.empty(); }
    std::size_t size() const { return places_.size(); }
    RawRow row(std::size_t i) const;
    std::size_t text_bytes() const { return text_.size(); }

    std::string& text() { return text_; }  ///< for readers: the next row's text is appended, then closed with add()
    void add(int64_t index, int64_t line, int64_t bytes);
    /// Forgets all rows but the first ones.
    void keep(std::size_t rows) { places_.resize(std::min(rows, places_.size())); }
    /// Forgets the first rows.
    void drop(std::size_t rows);

  private:
    struct Place {
        std::size_t end = 0;  ///< of the row's text, which begins where the one before ends
        int64_t index = 0, line = 0, bytes = 0;
    };
    std::string text_;
    std::vector<Place> places_;
};

/// One file. Input Errors name the file.
class RowReader {
  public:
    static constexpr int64_t chunk_rows = 64;                    ///< rows of a chunk, unless they are long
    static constexpr int64_t max_row_bytes = int64_t{64} << 20;  ///< a longer row is a bad row
    static constexpr int64_t give_up_bytes =
        16 * max_row_bytes;  ///< without an end of the row: this is no file of rows

    RowReader(std::filesystem::path path, ReaderOptions options);
    virtual ~RowReader() = default;
    RowReader(const RowReader&) = delete;
    RowReader& operator=(const RowReader&) = delete;

    /// The next rows; empty at the end. One thread at a time. Blank lines are no rows.
    RowChunk next();
    /// The row's columns, with the names of ReaderOptions::columns. BadRow for what is wrong with it: not the file's
    /// syntax, too large, not UTF-8. Any number of threads. `repaired`: whether bytes that were not UTF-8 became
    /// U+FFFD.
    nlohmann::ordered_json parse(const RawRow& row, bool* repaired = nullptr) const;
    /// "a JSON array", for the log.
    virtual std::string kind() const = 0;
    /// Whether a row's text is the JSON text of the row on one line.
    virtual bool text_is_json_line() const { return false; }
    std::string name() const { return path_.string(); }
    /// "FILE:LINE".
    std::string place(int64_t line) const;

  protected:
    struct Record {
        int64_t line = 0;
        int64_t bytes = 0;
    };
    /// Appends the next row's text (or of a row that is too large, some of it) to `text`; false at the end.
    virtual bool take(std::string& text, Record& record) = 0;
    virtual nlohmann::ordered_json parse_text(std::string_view text) const = 0;

  private:
    std::filesystem::path path_;
    ReaderOptions options_;
    int64_t rows_ = 0;
};

/// Opens a file by its content and name. Content decides first: gzip and zstd are decompressed, PAR1 is Parquet, ARROW1
/// or four bytes 0xFF are Arrow (IPC file, IPC stream), a `{`
/// in front is JSON Lines, a `[` a JSON array unless the name ends in .csv, .tsv or .txt; then these names (before .gz,
/// .zst); the rest is read as JSON Lines. Input Error for kinds that are not read (xz, zip, UTF-16, with a way
/// to convert them), a file that cannot be opened, a table whose header names a column twice, Parquet and Arrow
/// without the library that reads them.
///
/// Plain text: with TextUnit::paragraph each run of lines between blank lines is a row {text}, with TextUnit::file the
/// whole file. Tables: RFC 4180 (quoted fields may hold delimiters, line ends and doubled quotes), the first record
/// names the columns, all values are strings; the delimiter of a .csv is the comma, semicolon or tab that occurs most
/// often in the header.
std::unique_ptr<RowReader> open_rows(const std::filesystem::path& path, const ReaderOptions& options = {});

/// Parses a JSON row into an object; BadRow with the column and what is wrong otherwise.
nlohmann::ordered_json parse_row(std::string_view text);

}  // namespace unsloth::data
