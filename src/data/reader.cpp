#include "unsloth/data/reader.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "unsloth/core/error.h"

namespace unsloth {
namespace {

constexpr std::string_view utf8_mark = "\xEF\xBB\xBF";
constexpr std::size_t drop_bytes = std::size_t{64} << 20;  ///< how much of the map indexing keeps resident

bool is_blank(std::string_view line) {
    return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

std::string_view without_carriage_return(std::string_view line) {
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    return line;
}

/// Other kinds of files, told by their first bytes or their name: {what it is, how to convert it}.
struct OtherKind {
    const char* what = nullptr;
    const char* advice = nullptr;
};

OtherKind kind_by_content(std::string_view head) {
    const auto starts = [&](std::string_view mark) { return head.substr(0, mark.size()) == mark; };
    if (starts("PAR1"))
        return {"a Parquet file", "pandas.read_parquet(FILE).to_json(OUT, orient=\"records\", lines=True)"};
    if (starts("\x1F\x8B")) return {"gzip-compressed", "gzip -dk FILE"};
    if (starts("\x28\xB5\x2F\xFD")) return {"zstd-compressed", "zstd -d FILE"};
    if (starts("\xFD\x37\x7AXZ")) return {"xz-compressed", "xz -dk FILE"};
    if (starts("PK\x03\x04")) return {"a zip archive", "unzip FILE"};
    if (starts("ARROW1")) return {"an Arrow file", "datasets.load_from_disk(FOLDER).to_json(OUT)"};
    if (starts("\xFF\xFE") || starts("\xFE\xFF"))
        return {"UTF-16 text", "iconv -f UTF-16 -t UTF-8 FILE > OUT"};
    return {};
}

OtherKind kind_by_name(const std::filesystem::path& path) {
    std::string extension = path.extension().string();
    std::transform(extension.begin(), extension.end(), extension.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
    if (extension == ".csv" || extension == ".tsv")
        return {"a table of comma- or tab-separated values",
                "pandas.read_csv(FILE).to_json(OUT, orient=\"records\", lines=True)"};
    if (extension == ".txt") return {"plain text", "jq -Rc '{text: .}' FILE > OUT"};
    return {};
}

/// "[json.exception.parse_error.101] parse error at line 1, column 5: syntax error ..." -> "column 5: syntax
/// error ...".
std::string plain_parse_error(const std::string& what) {
    const std::size_t column = what.find("column ");
    if (column != std::string::npos) return what.substr(column);
    const std::size_t bracket = what.find("] ");
    return bracket == std::string::npos ? what : what.substr(bracket + 2);
}

const char* type_phrase(const nlohmann::json& value) {
    if (value.is_array()) return "an array";
    if (value.is_string()) return "a string";
    if (value.is_number()) return "a number";
    return "another value";
}

}  // namespace

JsonLinesFile::JsonLinesFile(const std::filesystem::path& path) : map_(path) {
    const std::string_view text = content();
    OtherKind other = kind_by_content(text.substr(0, 8));
    const std::size_t first = text.find_first_not_of(" \t\r\n");
    const char first_byte = first == std::string_view::npos ? '\0' : text[first];
    if (!other.what && first_byte == '[') other = {"a JSON array", "jq -c '.[]' FILE > OUT"};
    if (!other.what && first_byte != '{') other = kind_by_name(path);
    if (other.what)
        throw input_error(
            cat(name(), ": is ", other.what, "; expected JSON Lines (one JSON object on each line)"),
            cat("Convert it first: ", other.advice));

    Place place;
    std::size_t dropped = 0;
    while (place.offset < text.size()) {
        if (place.offset - dropped > drop_bytes) map_.drop(std::exchange(dropped, place.offset), drop_bytes);
        const Place begin = place;
        const std::size_t end = std::min(text.find('\n', place.offset), text.size());
        place = {end + 1, place.line + 1};
        if (is_blank(text.substr(begin.offset, end - begin.offset))) continue;
        if (rows_ % index_stride == 0) index_.push_back(begin);
        ++rows_;
    }
}

std::string_view JsonLinesFile::content() const {
    const auto bytes = map_.bytes();
    std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (text.substr(0, utf8_mark.size()) == utf8_mark) text.remove_prefix(utf8_mark.size());
    return text;
}

JsonLinesFile::Place JsonLinesFile::find(int64_t index) const {
    UNSLOTH_CHECK(index >= 0 && index < rows_, "row ", index, " of ", rows_);
    const int64_t known = index / index_stride;
    Place place = index_[static_cast<std::size_t>(known)];
    for (int64_t i = known * index_stride; i < index; ++i) take(place, i);
    return place;
}

RawRow JsonLinesFile::take(Place& place, int64_t index) const {
    const std::string_view text = content();
    while (true) {
        UNSLOTH_CHECK(place.offset < text.size(), "row ", index, " beyond the end of ", name());
        const std::size_t end = std::min(text.find('\n', place.offset), text.size());
        const std::string_view line = text.substr(place.offset, end - place.offset);
        const int64_t number = place.line;
        place = {end + 1, place.line + 1};
        if (!is_blank(line)) return {index, number, without_carriage_return(line)};
    }
}

RawRow JsonLinesFile::row(int64_t index) const {
    Place place = find(index);
    return take(place, index);
}

void JsonLinesFile::drop(int64_t begin, int64_t end) const {
    if (begin >= end) return;
    const auto mark =
        static_cast<std::size_t>(content().data() - reinterpret_cast<const char*>(map_.bytes().data()));
    const std::size_t from = find(begin).offset;
    const std::size_t to = end < rows_ ? find(end).offset : content().size();
    map_.drop(mark + from, to - from);
}

nlohmann::json parse_row(std::string_view text) {
    nlohmann::json row;
    try {
        row = nlohmann::json::parse(text.begin(), text.end());
    } catch (const nlohmann::json::exception& error) {
        throw BadRow{cat("not valid JSON: ", plain_parse_error(error.what())),
                     "Each line must be one whole JSON object."};
    }
    if (!row.is_object())
        throw BadRow{cat("expected a JSON object, found ", type_phrase(row)),
                     "Each line must be one whole JSON object."};
    return row;
}

}  // namespace unsloth
