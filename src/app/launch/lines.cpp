#include "app/launch/lines.h"

#include "unsloth/core/utf8.h"

namespace unsloth::app {

void LineCutter::write(std::string_view line, std::string& out) const {
    out += prefix_;
    out += line;
    out += '\n';
}

void LineCutter::feed(std::string_view bytes, std::string& out) {
    while (!bytes.empty()) {
        const std::size_t room = longest_ - partial_.size();
        const std::size_t end = bytes.substr(0, room + 1).find('\n');  // a full line's end may follow directly
        if (end != std::string_view::npos) {
            partial_ += bytes.substr(0, end);
            bytes.remove_prefix(end + 1);
        } else if (bytes.size() > room) {
            partial_ += bytes.substr(0, room);
            bytes.remove_prefix(room);
        } else {
            partial_ += bytes;
            return;
        }
        write(partial_, out);
        partial_.clear();
    }
}

void LineCutter::finish(std::string& out) {
    if (!partial_.empty()) write(partial_, out);
    partial_.clear();
}

void LastLines::add(std::string_view lines) {
    for (std::size_t end; (end = lines.find('\n')) != std::string_view::npos; lines.remove_prefix(end + 1)) {
        const std::string_view line = lines.substr(0, end + 1);
        if (line.size() > most_bytes_) continue;
        lines_.emplace_back(line);
        bytes_ += line.size();
        while (lines_.size() > most_lines_ || bytes_ > most_bytes_) {
            bytes_ -= lines_.front().size();
            lines_.pop_front();
        }
    }
}

std::string LastLines::text() const {
    std::string all;
    for (const std::string& line : lines_) all += line;
    return all;
}

std::string prefix_of(std::string pattern, int rank, int local_rank) {
    const auto replace = [&](const std::string& name, int value) {
        const std::string text = std::to_string(value);
        for (std::size_t at = 0; (at = pattern.find(name, at)) != std::string::npos; at += text.size())
            pattern.replace(at, name.size(), text);
    };
    replace("{rank}", rank);
    replace("{local_rank}", local_rank);
    return printable(pattern);
}

}  // namespace unsloth::app
