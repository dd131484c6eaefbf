#include "data/lines.h"

#include "unsloth/core/error.h"

namespace unsloth::data {

bool LineReader::next(Line& line) {
    window_.skip(taken_);
    taken_ = 0;
    line = {{}, ++number_, 0};
    std::size_t searched = 0;
    while (true) {
        const std::string_view rest = window_.rest();
        const std::size_t end = rest.find('\n', searched);
        if (end != std::string_view::npos) {
            taken_ = end + 1;
            line.text = rest.substr(0, end);
            break;
        }
        if (line.bytes + static_cast<int64_t>(rest.size()) >
            RowReader::max_row_bytes) {  // too long: only count what follows
            line.bytes += static_cast<int64_t>(rest.size());
            window_.skip(rest.size());
            searched = 0;
            if (line.bytes > RowReader::give_up_bytes) give_up(number_);
        } else {
            searched = rest.size();
        }
        if (window_.grow()) continue;
        taken_ = window_.rest().size();
        line.text = window_.rest();
        if (taken_ == 0 && line.bytes == 0) return false;
        break;
    }
    line.bytes += static_cast<int64_t>(line.text.size());
    if (line.bytes > RowReader::max_row_bytes) line.text = {};
    if (line.text.ends_with('\r')) line.text.remove_suffix(1);
    return true;
}

void LineReader::give_up(int64_t line) const {
    throw Error("data.not-rows", cat(name_, ":", line, ": no row ends within ", RowReader::give_up_bytes >> 30, " GiB"),
                "This is no file of rows, or a closing quote is missing.");
}

}  // namespace unsloth::data
