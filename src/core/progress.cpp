#include "unsloth/core/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <numeric>

#include "unsloth/core/log.h"
#include "unsloth/core/terminal.h"

namespace unsloth {
namespace {

constexpr int narrowest_bar = 10, widest_bar = 40, always_bar_columns = 60;

}  // namespace

std::string duration_text(double seconds) {
    constexpr double most = 1e12;  // 30,000 years
    if (!(seconds >= 0 && seconds < most)) return "?";
    char text[32];
    const auto whole = static_cast<long>(seconds + 0.5);
    if (whole >= 3600) {
        std::snprintf(text, sizeof text, "%ld:%02ld:%02ld", whole / 3600, whole / 60 % 60, whole % 60);
    } else {
        std::snprintf(text, sizeof text, "%02ld:%02ld", whole / 60, whole % 60);
    }
    return text;
}

std::string progress_line(double share, const std::vector<ProgressField>& fields, int columns) {
    const int room = std::max(columns - 1, 0);
    const int for_bar = share >= 0 && columns >= always_bar_columns ? narrowest_bar + 1 : 0;
    std::vector<std::size_t> order(fields.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return fields[a].importance > fields[b].importance; });
    std::vector<bool> taken(fields.size(), false);
    int length = 0;
    for (const std::size_t i : order) {
        const int more = static_cast<int>(fields[i].text.size()) + (length > 0 ? 2 : 0);
        if (length > 0 && length + more + for_bar > room) break;
        taken[i] = true;
        length += more;
    }
    std::string line;
    if (const int bar = std::min(room - length - 1, widest_bar); share >= 0 && bar >= narrowest_bar) {
        const int cells = bar - 2, full = std::clamp(static_cast<int>(cells * share), 0, cells);
        line = "[" + std::string(static_cast<std::size_t>(full), '#') +
               std::string(static_cast<std::size_t>(cells - full), '.') + "] ";
    }
    bool first = true;
    for (std::size_t i = 0; i < fields.size(); ++i) {
        if (!taken[i]) continue;
        if (!first) line += "  ";
        line += fields[i].text;
        first = false;
    }
    if (line.size() > static_cast<std::size_t>(room)) line.resize(static_cast<std::size_t>(room));
    return line;
}

/// All lines of the process. Between before() and after() of a message no other thread draws.
class StatusLines final : public log::Decoration {
  public:
    static StatusLines& all() {
        static auto* const made = [] {  // never destroyed: messages may come until the very end
            auto* const lines = new StatusLines;
            log::set_decoration(lines);
            return lines;
        }();
        return *made;
    }

    void before() override {
        mutex_.lock();
        erase();
    }
    void after() override {
        draw();
        mutex_.unlock();
    }
    void add(StatusLine* line) {
        const std::lock_guard lock(mutex_);
        lines_.push_back(line);
    }
    void remove(StatusLine* line) {
        const std::lock_guard lock(mutex_);
        lines_.erase(std::find(lines_.begin(), lines_.end(), line));
        redraw();
    }
    void set(StatusLine& line, StatusLine::Text text) {
        const std::lock_guard lock(mutex_);
        line.text_ = std::move(text);
        redraw();
    }

  private:
    void redraw() {
        erase();
        draw();
    }
    void erase() {
        if (drawn_) std::fputs("\r\033[K", stderr);
        drawn_ = false;
    }
    void draw() {
        const auto newest =
            std::find_if(lines_.rbegin(), lines_.rend(), [](const StatusLine* line) { return line->text_ != nullptr; });
        if (newest != lines_.rend()) {
            std::fputs((*newest)->text_(text_size(STDERR_FILENO).columns).c_str(), stderr);
            drawn_ = true;
        }
        std::fflush(stderr);
    }

    std::mutex mutex_;
    std::vector<StatusLine*> lines_;
    bool drawn_ = false;
};

bool StatusLine::available() {
    return takes_escapes(STDERR_FILENO) && log::level() <= log::Level::info;
}

StatusLine::StatusLine() {
    StatusLines::all().add(this);
}

StatusLine::~StatusLine() {
    StatusLines::all().remove(this);
}

void StatusLine::show(Text text) {
    if (available()) StatusLines::all().set(*this, std::move(text));
}

Progress::Progress(std::string what, int64_t total) : what_(std::move(what)), total_(total) {}

void Progress::add(int64_t count) {
    using std::chrono::milliseconds;
    done_ += count;
    const Clock::time_point now = Clock::now();
    const bool terminal = StatusLine::available();
    if (now - shown_ < (terminal ? milliseconds(100) : milliseconds(10000))) return;
    shown_ = now;
    const double seconds = std::chrono::duration<double>(now - begin_).count();
    const double share = total_ > 0 ? std::min(1.0, static_cast<double>(done_) / static_cast<double>(total_)) : -1;
    std::vector<ProgressField> fields{
        {total_ > 0 ? cat(what_, " ", static_cast<int>(100 * share), " %") : cat(what_, " ", done_), 1}};
    if (share > 0) fields.push_back({cat("left ", duration_text(seconds * (1 - share) / share)), 0});
    if (terminal) {
        line_.show([share, fields](int columns) { return progress_line(share, fields, columns); });
    } else {
        log::info(progress_line(-1, fields, 1000));
    }
}

}  // namespace unsloth
