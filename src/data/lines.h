// A stream's lines.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "data/byte_stream.h"

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
    LineReader(TextWindow window, int64_t limit) : window_(std::move(window)), limit_(limit) {}
    /// False at the end. Of a line above the limit only the length is told; it is never held as a whole.
    bool next(Line& line);
    /// The next line that is not blank; one above the limit is taken for such.
    bool next_filled(Line& line) {
        do {
            if (!next(line)) return false;
        } while (line.bytes <= limit_ && is_blank(line.text));
        return true;
    }

  private:
    TextWindow window_;
    int64_t limit_;
    int64_t number_ = 0;
    std::size_t taken_ = 0;  ///< bytes of the last line, skipped when the next one is asked for
};

}  // namespace unsloth::data
