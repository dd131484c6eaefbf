// Tables of comma- or tab-separated values (RFC 4180) and plain text.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "data/lines.h"
#include "data/row_readers.h"
#include "unsloth/core/error.h"
#include "unsloth/core/utf8.h"

namespace unsloth::data {
namespace {

/// The fields of one record; BadRow for quotes that the format does not allow.
std::vector<std::string> split_fields(std::string_view record, char delimiter) {
    std::vector<std::string> fields;
    std::size_t at = 0;
    while (true) {
        std::string field;
        if (at < record.size() && record[at] == '"') {
            std::size_t quote = at;
            do {  // a doubled quote is one quote
                const std::size_t begin = quote + 1;
                quote = record.find('"', begin);
                if (quote == std::string_view::npos)
                    throw BadRow{"data.row-syntax", cat("field ", fields.size() + 1, " has no closing quote"),
                                 "A quote in a quoted field is written twice."};
                field += record.substr(begin, quote - begin);
                at = quote + 1;
                if (at < record.size() && record[at] == '"') field += '"', quote = at;
            } while (quote == at);
            if (at < record.size() && record[at] != delimiter)
                throw BadRow{"data.row-syntax", cat("field ", fields.size() + 1, " continues after its closing quote"),
                             "A quote in a quoted field is written twice."};
        } else {
            const std::size_t end = std::min(record.find(delimiter, at), record.size());
            field = record.substr(at, end - at);
            at = end;
        }
        fields.push_back(std::move(field));
        if (at >= record.size()) return fields;
        ++at;  // the delimiter; a field follows, if only an empty one
    }
}

/// Whether a quoted field is still open at the end of a line that began inside of one (`open`) or not. A quote opens a
/// field only at its beginning, so an inch mark in an unquoted field joins no lines. `delimiter` 0: any that
/// find_delimiter knows.
bool ends_in_quotes(std::string_view line, bool open, char delimiter) {
    const auto is_delimiter = [&](char c) {
        return delimiter != '\0' ? c == delimiter : c == ',' || c == ';' || c == '\t';
    };
    bool field_begins = !open;
    for (std::size_t at = 0; at < line.size(); ++at) {
        const char c = line[at];
        if (open) {
            if (c != '"') continue;
            if (at + 1 < line.size() && line[at + 1] == '"')
                ++at;
            else
                open = false;
        } else {
            if (c == '"' && field_begins) open = true;
            field_begins = is_delimiter(c);
        }
    }
    return open;
}

/// The most frequent delimiter of the header outside of quotes; the comma when there is none.
char find_delimiter(std::string_view header) {
    int64_t commas = 0, semicolons = 0, tabs = 0;
    bool quoted = false;
    for (const char c : header) {
        if (c == '"') quoted = !quoted;
        if (quoted) continue;
        commas += c == ',';
        semicolons += c == ';';
        tabs += c == '\t';
    }
    return commas >= std::max(semicolons, tabs) ? ',' : semicolons >= tabs ? ';' : '\t';
}

class Table : public RowReader {
  public:
    Table(const std::filesystem::path& path, const ReaderOptions& options, TextWindow window, char delimiter)
        : RowReader(path, options), lines_(std::move(window), path.string()) {
        std::string header;
        Record record;
        if (!take(header, record)) return;  // an empty file: no rows
        delimiter_ = delimiter != '\0' ? delimiter : find_delimiter(header);
        if (first_invalid_utf8(header) < header.size()) refuse_header(record, "not valid UTF-8");
        try {
            columns_ = split_fields(header, delimiter_);
        } catch (const BadRow& bad) {
            refuse_header(record, bad.message);
        }
        std::set<std::string> seen;
        if (columns_.size() > most_columns)
            refuse_header(record, cat("it has ", columns_.size(), " columns; up to ", most_columns, " are read"));
        for (const std::string& name : columns_)
            if (!seen.insert(name).second) refuse_header(record, cat("two columns are named \"", name, "\""));
    }
    std::string kind() const override {
        return cat("a table, separated by ", delimiter_ == '\t' ? "tabs" : delimiter_ == ';' ? "semicolons" : "commas");
    }

  protected:
    /// A line, and those after it while a quote is open.
    bool take(std::string& text, Record& record) override {
        Line line;
        do {
            if (!lines_.next(line)) return false;
        } while (line.bytes == 0 || (line.bytes == 1 && line.text.empty()));  // a lone CR is an empty line too
        record = {line.number, line.bytes};
        const std::size_t begin = text.size();
        text += line.text;
        bool open = ends_in_quotes(line.text, false, delimiter_);
        while (open && lines_.next(line)) {
            record.bytes += line.bytes + 1;
            if (record.bytes > give_up_bytes) lines_.give_up(record.line);
            if (record.bytes > max_row_bytes)
                text.resize(begin);  // parse() refuses it by its size
            else
                (text += '\n') += line.text;
            open = ends_in_quotes(line.text, open, delimiter_);
        }
        return true;
    }
    nlohmann::ordered_json parse_text(std::string_view text) const override {
        std::vector<std::string> fields = split_fields(text, delimiter_);
        if (fields.size() != columns_.size())
            throw BadRow{"data.row-syntax",
                         cat("the record has ", fields.size(), " fields, the header ", columns_.size()),
                         "Fields that hold delimiters, line ends or quotes stand in quotes."};
        nlohmann::ordered_json row = nlohmann::ordered_json::object();
        // The names differ: appended as they are, where a lookup of each would take time with the square of their
        // number.
        auto& members = row.get_ref<nlohmann::ordered_json::object_t&>();
        for (std::size_t i = 0; i < fields.size(); ++i) members.emplace_back(columns_[i], std::move(fields[i]));
        return row;
    }

  private:
    static constexpr std::size_t most_columns = 10000;

    [[noreturn]] void refuse_header(const Record& record, const std::string& reason) const {
        throw Error("data.row-syntax", cat(place(record.line), ": the header: ", reason),
                    "The first record names the columns.");
    }

    LineReader lines_;
    char delimiter_ = '\0';  ///< not known before the header is read
    std::vector<std::string> columns_;
};

class PlainText : public RowReader {
  public:
    PlainText(const std::filesystem::path& path, const ReaderOptions& options, TextWindow window)
        : RowReader(path, options),
          lines_(std::move(window), path.string()),
          whole_file_(options.text_unit == config::TextUnit::file) {}
    std::string kind() const override {
        return whole_file_ ? "plain text, one document" : "plain text, a row for each paragraph";
    }

  protected:
    bool take(std::string& text, Record& record) override {
        Line line;
        if (!lines_.next_filled(line)) return false;
        record = {line.number, line.bytes};
        const std::size_t begin = text.size();
        std::size_t end = 0;  // of the last line that is not blank
        do {
            const bool blank = line.bytes <= max_row_bytes && is_blank(line.text);
            if (blank && !whole_file_) break;
            if (text.size() > begin) text += '\n';
            text += line.text;
            if (!blank) end = text.size();
            record.bytes =
                static_cast<int64_t>(std::max<std::size_t>(text.size() - begin, static_cast<std::size_t>(line.bytes)));
            if (record.bytes > max_row_bytes) text.resize(begin), end = begin;
        } while (record.bytes <= max_row_bytes && lines_.next(line));
        if (record.bytes > max_row_bytes) skip_rest(record);
        text.resize(end);
        return true;
    }
    nlohmann::ordered_json parse_text(std::string_view text) const override {
        nlohmann::ordered_json row = nlohmann::ordered_json::object();
        row["text"] = std::string(text);
        return row;
    }

  private:
    void skip_rest(Record& record) {
        Line line;
        while (lines_.next(line) && (whole_file_ || !is_blank(line.text)))
            if ((record.bytes += line.bytes + 1) > give_up_bytes) lines_.give_up(record.line);
    }

    LineReader lines_;
    bool whole_file_;
};

}  // namespace

std::unique_ptr<RowReader> read_table(const std::filesystem::path& path, const ReaderOptions& options,
                                      TextWindow window, char delimiter) {
    return std::make_unique<Table>(path, options, std::move(window), delimiter);
}

std::unique_ptr<RowReader> read_plain_text(const std::filesystem::path& path, const ReaderOptions& options,
                                           TextWindow window) {
    return std::make_unique<PlainText>(path, options, std::move(window));
}

}  // namespace unsloth::data
