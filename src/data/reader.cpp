#include "unsloth/data/reader.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "data/row_errors.h"
#include "data/row_readers.h"
#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/syntax.h"
#include "unsloth/core/utf8.h"
#include "unsloth/tokenizer/ordered_row.h"

namespace unsloth::data {
namespace {

constexpr std::string_view utf8_mark = "\xEF\xBB\xBF";
constexpr std::size_t chunk_bytes = std::size_t{256} << 10;

/// Kinds that are not read, recognized by their first bytes: {what it is, how to convert it}.
struct OtherKind {
    const char* what = nullptr;
    const char* advice = nullptr;
};

OtherKind other_kind(std::string_view head) {
    if (head.starts_with("\xFD\x37\x7AXZ")) return {"xz-compressed", "xz -dk FILE"};
    if (head.starts_with("BZh")) return {"bzip2-compressed", "bzip2 -dk FILE"};
    if (head.starts_with("PK\x03\x04"))
        return {"a zip archive", "unzip FILE; of a spreadsheet (.xlsx, .ods) save the sheet as CSV"};
    if (head.starts_with("%PDF-")) return {"a PDF", "pdftotext FILE OUT.txt"};
    // The protocols that Python writes begin so; valid UTF-8 never does.
    if (head.size() > 1 && head[0] == '\x80' && head[1] >= 2 && head[1] <= 5)
        return {"a Python pickle, which is never read", "load it in Python and write the rows as JSON Lines"};
    if (head.starts_with("\xFF\xFE") || head.starts_with("\xFE\xFF"))
        return {"UTF-16 text", "iconv -f UTF-16 -t UTF-8 FILE > OUT"};
    // Without a mark: ASCII characters of two bytes, of which one is 0.
    const auto every_second_is_zero = [&](std::size_t first) {
        return head[first] == '\0' && head[first + 2] == '\0' && head[1 - first] != '\0' && head[3 - first] != '\0';
    };
    if (head.size() >= 4 && every_second_is_zero(1)) return {"UTF-16 text", "iconv -f UTF-16LE -t UTF-8 FILE > OUT"};
    if (head.size() >= 4 && every_second_is_zero(0)) return {"UTF-16 text", "iconv -f UTF-16BE -t UTF-8 FILE > OUT"};
    return {};
}

/// The extension that tells what is in the file, in lower case: that before .gz or .zst.
std::string content_extension(const std::filesystem::path& path) {
    const auto lower = [](std::string text) {
        std::transform(text.begin(), text.end(), text.begin(),
                       [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
        return text;
    };
    const std::string last = lower(path.extension().string());
    const bool compressed = last == ".gz" || last == ".zst" || last == ".zstd";
    return compressed ? lower(path.stem().extension().string()) : last;
}

/// Reads until the window holds a byte that is no white space; 0 when there is none.
char first_byte(TextWindow& window, const std::filesystem::path& path) {
    while (true) {
        const std::size_t at = window.rest().find_first_not_of(" \t\r\n");
        if (at != std::string_view::npos) return window.rest()[at];
        if (static_cast<int64_t>(window.rest().size()) > RowReader::max_row_bytes)
            throw Error("data.not-rows", cat(path.string(), ": begins with more than 64 MiB of white space"),
                        "This is no file of rows.");
        if (!window.grow()) return '\0';
    }
}

const char* type_phrase(const nlohmann::ordered_json& value) {
    if (value.is_array()) return "an array";
    if (value.is_string()) return "a string";
    if (value.is_number()) return "a number";
    return "another value";
}

/// Gives columns the names that this program knows, and removes those that are not to be read. Values are moved: a copy
/// of deeply nested JSON would recurse.
void rename(nlohmann::ordered_json& row, const ColumnNames& columns) {
    std::vector<std::pair<std::string, nlohmann::ordered_json>> renamed;
    for (const auto& [ours, theirs] : columns) {
        const auto found = theirs.empty() ? row.end() : row.find(theirs);
        if (found == row.end()) continue;
        renamed.emplace_back(ours, std::move(*found));
        row.erase(found);
    }
    for (const auto& [ours, theirs] : columns)
        if (theirs.empty()) row.erase(ours);
    for (auto& [name, value] : renamed) row[name] = std::move(value);
}

}  // namespace

RawRow RowChunk::row(std::size_t i) const {
    const Place& place = places_.at(i);
    const std::size_t begin = i == 0 ? 0 : places_[i - 1].end;
    return {place.index, place.line, std::string_view(text_).substr(begin, place.end - begin), place.bytes};
}

void RowChunk::add(int64_t index, int64_t line, int64_t bytes) {
    places_.push_back({text_.size(), index, line, bytes});
}

void RowChunk::drop(std::size_t rows) {
    rows = std::min(rows, places_.size());
    if (rows == 0) return;
    const std::size_t bytes = places_[rows - 1].end;
    text_.erase(0, bytes);
    places_.erase(places_.begin(), places_.begin() + static_cast<std::ptrdiff_t>(rows));
    for (Place& place : places_) place.end -= bytes;
}

RowReader::RowReader(std::filesystem::path path, ReaderOptions options)
    : path_(std::move(path)), options_(std::move(options)) {}

RowChunk RowReader::next() {
    RowChunk chunk;
    Record record;
    while (static_cast<int64_t>(chunk.size()) < chunk_rows && chunk.text_bytes() < chunk_bytes &&
           take(chunk.text(), record))
        chunk.add(rows_++, record.line, record.bytes);
    return chunk;
}

nlohmann::ordered_json RowReader::parse(const RawRow& row, bool* repaired) const {
    if (row.bytes > max_row_bytes)
        throw BadRow{"data.too-large",
                     cat("the row has ", row.bytes, " bytes; rows of up to ", max_row_bytes, " are read"),
                     "Is a line end or a closing quote missing? Split the document into several rows."};
    const std::size_t invalid = first_invalid_utf8(row.text);
    if (repaired != nullptr) *repaired = invalid < row.text.size();
    if (invalid < row.text.size() && options_.invalid_utf8 == config::InvalidUtf8::refuse)
        throw BadRow{
            "data.not-utf8", cat("not valid UTF-8 at byte ", invalid + 1, " of the row"),
            "Convert the file (iconv -f LATIN1 -t UTF-8 FILE > OUT), or set data.invalid_utf8 to replace: such bytes "
            "become U+FFFD."};
    return within_row_memory(row.bytes, [&] {
        // Of JSON that makes much of little, the copies that formats take of it must fit too.
        constexpr int64_t factor = 4, flat = int64_t{16} << 20;
        const MemoryBound bound(factor * row.bytes + flat);
        nlohmann::ordered_json columns =
            invalid < row.text.size() ? parse_text(repair_utf8(row.text)) : parse_text(row.text);
        rename(columns, options_.columns);
        return columns;
    });
}

std::string RowReader::place(int64_t line) const {
    return cat(name(), ":", line);
}

std::unique_ptr<RowReader> open_rows(const std::filesystem::path& path, const ReaderOptions& options) {
    TextWindow window(open_byte_stream(path));
    window.grow();
    const std::string_view head = window.rest();
    // Arrow: a file's mark, and that of a stream, which the datasets library writes.
    if (head.starts_with("PAR1") || head.starts_with("ARROW1") || head.starts_with("\xFF\xFF\xFF\xFF"))
        return read_by_arrow(path, options);
    if (head.starts_with(git_lfs_mark)) throw git_lfs_pointer(path);
    if (const OtherKind other = other_kind(head); other.what != nullptr)
        throw Error("data.unsupported-file",
                    cat(path.string(), ": is ", other.what,
                        "; expected JSON Lines, a JSON array, CSV, TSV, plain text, Parquet or Arrow"),
                    cat("Convert it first: ", other.advice));
    if (head.starts_with(utf8_mark)) window.skip(utf8_mark.size());

    const std::string extension = content_extension(path);
    const bool table = extension == ".csv" || extension == ".tsv", plain = extension == ".txt" || extension == ".text";
    const char first = first_byte(window, path);
    if (first == '[' && !table && !plain) return read_json_array(path, options, std::move(window));
    if (first == '{' || !(table || plain)) return read_json_lines(path, options, std::move(window));
    if (table) return read_table(path, options, std::move(window), extension == ".tsv" ? '\t' : '\0');
    return read_plain_text(path, options, std::move(window));
}

nlohmann::ordered_json parse_row(std::string_view text) {
    nlohmann::ordered_json row;
    try {
        row = tokenizer::parse_ordered(text);
    } catch (const JsonRefusal& refusal) {
        if (refusal.cause != JsonRefusal::Cause::syntax) throw BadRow{refusal.id(), refusal.words, ""};
        const SyntaxError error = find_json_error(text);
        throw BadRow{"data.row-syntax",
                     cat("not valid JSON: column ", place_of(text, error.at).column, ": ", error.words),
                     "Each line must be one whole JSON object."};
    }
    if (!row.is_object())
        throw BadRow{"data.row-syntax", cat("expected a JSON object, found ", type_phrase(row)),
                     "Each line must be one whole JSON object."};
    return row;
}

}  // namespace unsloth::data
