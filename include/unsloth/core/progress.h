// How far something long is: a bar on a terminal's last line; elsewhere a log line now and then.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace unsloth {

/// "01:05", "2:00:00"; "?" for what is no time: a negative number, or none that is finite.
std::string duration_text(double seconds);

/// A part of a progress line.
struct ProgressField {
    std::string text;    ///< ASCII
    int importance = 0;  ///< where there is no room for all, the least important are dropped
};

/// "[####......] field  field", shorter than `columns`: a full line would wrap. With 60 columns and more there is
/// always a bar, with fewer where room is left. `share` in [0, 1]; a negative one is not known: no bar.
std::string progress_line(double share, const std::vector<ProgressField>& fields, int columns);

/// The last line of a terminal, below all log messages. Of several the newest is seen.
class StatusLine {
  public:
    using Text = std::function<std::string(int columns)>;

    /// Whether lines are seen: stderr is a terminal, and messages of level info are written.
    static bool available();

    StatusLine();
    /// Clears it; the one before is seen again.
    ~StatusLine();
    StatusLine(const StatusLine&) = delete;
    StatusLine& operator=(const StatusLine&) = delete;

    /// Draws the line, and again whenever something was logged; `text` must not log.
    void show(Text text);

  private:
    friend class StatusLines;
    Text text_;
};

/// Progress of a piece of work on one thread, with the time left. Quick work shows nothing.
class Progress {
  public:
    /// `what` as in "loading the model". `total` 0: not known, the count is shown.
    Progress(std::string what, int64_t total);
    void add(int64_t count = 1);

  private:
    using Clock = std::chrono::steady_clock;
    std::string what_;
    int64_t total_, done_ = 0;
    Clock::time_point begin_ = Clock::now(), shown_ = begin_;
    StatusLine line_;
};

}  // namespace unsloth
