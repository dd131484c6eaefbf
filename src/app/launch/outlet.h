// Where the ranks' output goes: this process' stdout and stderr, written without ever blocking the launcher.
#pragma once

#include <string>
#include <string_view>

#include "unsloth/core/awake_clock.h"

namespace unsloth::app {

/// A queue of bytes before a file descriptor, which is not owned. Bytes leave in the order they came, so a line is
/// never split by another. When the reader is gone or the disk is full, the rest is dropped: a training run does not
/// end for its log.
class Outlet {
  public:
    explicit Outlet(int fd) : fd_(fd) {}

    int fd() const { return fd_; }
    void put(std::string_view bytes);
    bool waiting() const { return !queue_.empty(); }
    /// The queue is too long to add to: the ranks then wait for the reader, as they would without a
    /// launcher.
    bool full() const { return queue_.size() >= (std::size_t{4} << 20); }
    /// Call when poll() says that the descriptor can be written.
    void write_some();
    /// Writes what waits, until `give_up` at the latest.
    void drain(AwakeClock::time_point give_up);

  private:
    int fd_;
    bool lost_ = false;
    std::string queue_;
};

/// Whether two descriptors are one file (a terminal, a pipe, a log): then they must share an outlet.
bool same_file(int a, int b);

}  // namespace unsloth::app
