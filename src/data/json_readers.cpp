// JSON Lines (https://jsonlines.org) and JSON arrays of objects.
#include <nlohmann/json.hpp>

#include "data/lines.h"
#include "data/row_readers.h"
#include "unsloth/core/error.h"

namespace unsloth::data {
namespace {

class JsonLines : public RowReader {
  public:
    JsonLines(const std::filesystem::path& path, const ReaderOptions& options, TextWindow window)
        : RowReader(path, options), lines_(std::move(window), path.string()) {}
    std::string kind() const override { return "JSON Lines"; }
    bool text_is_json_line() const override { return true; }

  protected:
    bool take(std::string& text, Record& record) override {
        Line line;
        if (!lines_.next_filled(line)) return false;
        text += line.text;
        record = {line.number, line.bytes};
        return true;
    }
    nlohmann::ordered_json parse_text(std::string_view text) const override { return parse_row(text); }

  private:
    LineReader lines_;
};

/// Finds where the elements of an array begin and end, and leaves what is in them to the parser.
class JsonArray : public RowReader {
  public:
    JsonArray(const std::filesystem::path& path, const ReaderOptions& options, TextWindow window)
        : RowReader(path, options), window_(std::move(window)) {
        peek();
        window_.skip(1);  // the opening bracket
    }
    std::string kind() const override { return "a JSON array"; }

  protected:
    bool take(std::string& text, Record& record) override {
        if (ended_) return false;
        char next = peek();
        if (next == ',' && !first_) {
            window_.skip(1);
            next = peek();
            if (next == ']') refuse("there is a comma before the closing bracket");
        } else if (next != ']' && !first_) {
            refuse("expected a comma or the closing bracket after an element");
        }
        first_ = false;
        if (next == ']') {
            window_.skip(1);
            ended_ = true;
            if (peek(/*at_end=*/true) != '\0') refuse("something follows the closing bracket");
            return false;
        }
        record.line = line_;
        const std::size_t size = element_size();
        record.bytes = static_cast<int64_t>(size);
        if (record.bytes > max_row_bytes) refuse_large();
        text += window_.rest().substr(0, size);
        window_.skip(size);
        return true;
    }
    nlohmann::ordered_json parse_text(std::string_view text) const override { return parse_row(text); }

  private:
    [[noreturn]] void refuse(const char* reason) const {
        throw Error("json.syntax", cat(place(line_), ": not valid JSON: ", reason),
                    "The file must be one array of JSON objects.");
    }

    [[noreturn]] void refuse_large() const {
        refuse("an element is larger than 64 MiB: is a closing bracket or quote missing?");
    }

    /// Skips white space and returns the next byte; 0 at the end of the file, which is an error unless `at_end`.
    char peek(bool at_end = false) {
        for (std::size_t skipped = 0;;) {
            const std::string_view rest = window_.rest();
            std::size_t at = 0;
            while (at < rest.size() && (rest[at] == ' ' || rest[at] == '\t' || rest[at] == '\r' || rest[at] == '\n'))
                line_ += rest[at++] == '\n';
            const char found = at < rest.size() ? rest[at] : '\0';
            window_.skip(at);
            skipped += at;
            if (found != '\0') return found;
            if (static_cast<int64_t>(skipped) > give_up_bytes) refuse("nothing but white space within 1 GiB");
            if (window_.grow()) continue;
            if (!at_end) refuse("the array is not closed");
            return '\0';
        }
    }

    /// Bytes of the element at the front of the window. Brackets outside of strings are counted, not matched: the
    /// parser does that.
    std::size_t element_size() {
        std::size_t at = 0;
        int64_t depth = 0;
        bool in_string = false;
        while (true) {
            const std::string_view rest = window_.rest();
            for (; at < rest.size(); ++at) {
                const char c = rest[at];
                line_ += c == '\n';
                if (in_string) {
                    if (c == '\\' && at + 1 == rest.size()) break;  // what is escaped comes with the next block
                    if (c == '\\') ++at;
                    in_string = c != '"';
                } else if (c == '"') {
                    in_string = true;
                } else if (c == '{' || c == '[') {
                    ++depth;
                } else if ((c == '}' || c == ']') && depth > 0) {
                    if (--depth == 0) return at + 1;
                } else if ((c == ',' || c == ']') && depth == 0) {
                    return at;  // after a number, a string or a word
                }
            }
            if (static_cast<int64_t>(at) > max_row_bytes) refuse_large();
            if (!window_.grow()) refuse("the array ends within an element");
        }
    }

    TextWindow window_;
    int64_t line_ = 1;
    bool first_ = true, ended_ = false;
};

}  // namespace

std::unique_ptr<RowReader> read_json_lines(const std::filesystem::path& path, const ReaderOptions& options,
                                           TextWindow window) {
    return std::make_unique<JsonLines>(path, options, std::move(window));
}

std::unique_ptr<RowReader> read_json_array(const std::filesystem::path& path, const ReaderOptions& options,
                                           TextWindow window) {
    return std::make_unique<JsonArray>(path, options, std::move(window));
}

}  // namespace unsloth::data
