// A stream's lines.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "data/byte_stream.h"
#include "unsloth/data/reader.h"

namespace unsloth::data {

struct Line {
    std::string_view
        text;  ///< without LF or CRLF; valid until the next call. Empty when the line is longer than the limit
    int64_t number = 0;  ///< from 1
    int64_t bytes = 0;   ///< of the whole line
};

inline bool is_blank(std::string_view line) {
    return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

class LineReader {
  public:
    /// `name` of the file, for messages.
    LineReader(TextWindow window, std::string name) : window_(std::move(window)), name_(std::move(name)) {}
    /// False at the end. For a line above max_row_bytes only the length is reported; the line is never held as a whole.
    /// An input Error above give_up_bytes: a file of holes has no line ends, and a device none at all.
    bool next(Line& line);
    /// The next line that is not blank; one above the limit is taken for such.
    bool next_filled(Line& line) {
        int64_t blank = 0;
        do {
            if (!next(line)) return false;
            blank += line.bytes + 1;
            if (blank > RowReader::give_up_bytes + RowReader::max_row_bytes) give_up(line.number);
        } while (line.bytes <= RowReader::max_row_bytes && is_blank(line.text));
        return true;
    }
    /// For a row of several lines that has no end.
    [[noreturn]] void give_up(int64_t line) const;

  private:
    TextWindow window_;
    std::string name_;
    int64_t number_ = 0;
    std::size_t taken_ = 0;  ///< bytes of the last line, skipped when the next one is asked for
};

}  // namespace unsloth::data
