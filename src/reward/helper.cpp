#include "reward/helper.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <utility>

#include "unsloth/core/error.h"
#include "unsloth/core/log.h"

namespace unsloth::reward {
namespace {

constexpr std::size_t longest_printed = 4096;   // of a line of the log; the rest becomes further lines
constexpr std::size_t most_at_once = 4U << 20;  // read of a stream before others have their turn

}  // namespace

void PrintedLines::take(std::size_t stream, std::string_view bytes) {
    open_.resize(std::max(open_.size(), stream + 1));
    std::string& line = open_[stream];
    while (!bytes.empty()) {
        const std::size_t end = bytes.find('\n');
        const std::size_t room = longest_printed - line.size();
        const std::size_t part = std::min({end, bytes.size(), room});
        line += bytes.substr(0, part);
        bytes.remove_prefix(part);
        const bool whole = !bytes.empty() && bytes.front() == '\n';
        if (whole) bytes.remove_prefix(1);
        if (whole || line.size() >= longest_printed) write(std::exchange(line, {}));
    }
}

void PrintedLines::write(std::string line) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    const std::size_t kept = dropped_ > 0 ? 0 : std::min(line.size() + 1, allowed_ - written_);
    written_ += kept;
    dropped_ += line.size() + 1 - kept;
    if (kept > 0) log_(cat("[reward] ", std::string_view(line).substr(0, kept)));
}

void PrintedLines::end_step() {
    if (dropped_ > 0) log_(cat("[reward] … omitted ", dropped_, " more bytes of this step's output"));
    written_ = dropped_ = 0;
}

void PrintedLines::flush() {
    for (std::string& line : open_)
        if (!line.empty()) write(std::exchange(line, {}));
}

Helper::Helper(HelperPlan plan, const Settings& settings)
    : plan_(std::move(plan)),
      longest_line_(settings.limits.line_bytes),
      printed_(
          settings.log ? settings.log : [](const std::string& line) { log::info(line); }, settings.limits.log_bytes) {}

void Helper::start() {
    UNSLOTH_CHECK(!process_, "the helper runs already");
    outgoing_.clear();
    incoming_.clear();
    sent_ = searched_ = 0;
    gone_ = too_long_ = false;
    process_ = std::make_unique<Process>(plan_.process);
    log_open_.assign(process_->logs().size(), true);
    send(plan_.load_line);
}

void Helper::send(std::string line) {
    outgoing_.erase(0, sent_);
    sent_ = 0;
    outgoing_ += line;
    outgoing_ += '\n';
}

void Helper::collect(std::vector<pollfd>& to) const {
    if (!process_) return;
    const bool writes = sent_ < outgoing_.size();
    const int from = process_->from(), into = process_->to();
    if (!gone_ && !too_long_)
        to.push_back({from, static_cast<short>(POLLIN | (writes && into == from ? POLLOUT : 0)), 0});
    if (!gone_ && writes && into != from) to.push_back({into, POLLOUT, 0});
    for (std::size_t i = 0; i < log_open_.size(); ++i)
        if (log_open_[i]) to.push_back({process_->logs()[i].get(), POLLIN, 0});
}

void Helper::serve() {
    if (!process_) return;
    for (std::size_t i = 0; i < log_open_.size(); ++i) {
        if (!log_open_[i]) continue;
        log_open_[i] = read_some(process_->logs()[i].get(), [&](std::string_view bytes) { printed_.take(i, bytes); });
    }
    if (gone_) return;
    if (sent_ < outgoing_.size()) write_some();
    if (!too_long_) gone_ = !read_some(process_->from(), [&](std::string_view bytes) { incoming_ += bytes; });
    // Whole lines are short of the bound too: take_line() looks at each.
    if (incoming_.size() - searched_ > longest_line_ && incoming_.find('\n', searched_) == std::string::npos)
        too_long_ = true;
}

bool Helper::read_some(int fd, const std::function<void(std::string_view)>& take) {
    char block[1 << 16];
    for (std::size_t total = 0; total < most_at_once;) {
        const ssize_t got = ::read(fd, block, sizeof block);
        if (got > 0) {
            take({block, static_cast<std::size_t>(got)});
            total += static_cast<std::size_t>(got);
        } else if (got == 0) {
            return false;
        } else if (errno != EINTR) {
            return errno == EAGAIN;
        }
    }
    return true;
}

void Helper::write_some() {
    while (sent_ < outgoing_.size()) {
        // Of a pipe whose reader is gone EPIPE comes too: the thread blocks SIGPIPE.
        const ssize_t put = ::write(process_->to(), outgoing_.data() + sent_, outgoing_.size() - sent_);
        if (put > 0) sent_ += static_cast<std::size_t>(put);
        if (put <= 0 && errno != EINTR) {
            if (errno != EAGAIN) sent_ = outgoing_.size();  // reading will tell that it is gone
            return;
        }
    }
}

std::optional<std::string> Helper::take_line() {
    const std::size_t end = incoming_.find('\n', searched_);
    if (end == std::string::npos) {
        searched_ = incoming_.size();
        return std::nullopt;
    }
    if (end > longest_line_) {
        too_long_ = true;
        return std::nullopt;
    }
    std::string line = incoming_.substr(0, end);
    incoming_.erase(0, end + 1);
    searched_ = 0;
    return line;
}

std::string Helper::broken_line() const {
    return too_long_ || (gone_ && !incoming_.empty()) ? incoming_.substr(0, 1000) : "";
}

void Helper::ask_to_quit() {
    if (!process_ || gone_) return;
    send(R"({"type":"quit"})");
    write_some();
    process_->close_input();
}

std::string Helper::end(std::chrono::milliseconds patience) {
    if (!process_) return {};
    // Its end of the messages closes a moment before a process has ended.
    const bool closed = gone_ && !process_->ends_within(std::chrono::milliseconds(200));
    std::string how = process_->end(patience);
    serve();
    printed_.flush();
    process_.reset();
    return closed ? "it closed the descriptor of its messages" : how;
}

}  // namespace unsloth::reward
