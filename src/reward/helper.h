// One helper process and its streams: lines to it, lines from it, what it prints. Nothing here waits.
#pragma once

#include <poll.h>

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "reward/process.h"
#include "unsloth/reward/rewards.h"

namespace unsloth::reward {

/// What a helper prints, as lines of the log with the prefix [reward]: a bounded amount each step.
class PrintedLines {
  public:
    PrintedLines(std::function<void(const std::string&)> log, std::size_t bytes_each_step)
        : log_(std::move(log)), allowed_(bytes_each_step) {}

    /// Of the helper's n-th stream.
    void take(std::size_t stream, std::string_view bytes);
    /// Logs how many bytes were dropped, and allows as many again.
    void end_step();
    /// Half lines too: the streams ended.
    void flush();

  private:
    void write(std::string line);

    std::function<void(const std::string&)> log_;
    std::size_t allowed_, written_ = 0, dropped_ = 0;
    std::vector<std::string> open_;  ///< lines that are not whole yet
};

struct HelperPlan {
    ProcessPlan process;
    std::string name;       ///< for messages
    std::string load_line;  ///< the first message
};

class Helper {
  public:
    Helper(HelperPlan plan, const Settings& settings);

    const std::string& name() const { return plan_.name; }
    /// Starts a process, which must not be there yet, and sends the load line. Errors as Process.
    void start();
    bool running() const { return process_ != nullptr; }
    /// The process, or the other end of its messages, is gone.
    bool gone() const { return gone_ || (process_ && process_->ended()); }
    void send(std::string line);
    /// What to wait for.
    void collect(std::vector<pollfd>& to) const;
    /// Reads and writes what can be, at most some MiB.
    void serve();
    /// The next line, without its end.
    std::optional<std::string> take_line();
    /// What came that is no line: one that is too long, or, where the helper is gone, half of one. Empty: nothing.
    std::string broken_line() const;
    void ask_to_quit();
    /// Reads what is left, kills the group, says how the process ended.
    std::string end(std::chrono::milliseconds patience);
    PrintedLines& printed() { return printed_; }
    double resident_gib() const { return process_ ? process_->resident_gib() : 0; }

  private:
    /// False: the stream ended.
    bool read_some(int fd, const std::function<void(std::string_view)>& take);
    void write_some();

    HelperPlan plan_;
    std::size_t longest_line_;
    std::unique_ptr<Process> process_;
    PrintedLines printed_;
    std::string outgoing_, incoming_;
    std::size_t sent_ = 0, searched_ = 0;  ///< of outgoing_; of incoming_, without an end of line
    std::vector<bool> log_open_;
    bool gone_ = false, too_long_ = false;
};

}  // namespace unsloth::reward
