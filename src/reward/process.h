// A helper process: its own process group, which ends with this process in whatever way that happens.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "unsloth/core/open_file.h"

namespace unsloth::reward {

struct ProcessPlan {
    std::vector<std::string> command;      ///< the program (with a slash, or looked up in PATH) and its arguments
    std::vector<std::string> environment;  ///< "NAME=value"
    std::filesystem::path folder;          ///< its working directory
    bool socket = true;                    ///< messages on descriptor 3, both ways; otherwise on stdin and stdout
    double memory_gib = 0;                 ///< bound of its address space; 0: none
};

class Process {
  public:
    /// Starts it. usage Error where the program cannot be executed, runtime Error where there can be no process. The
    /// kernel kills it when the calling thread ends.
    explicit Process(const ProcessPlan& plan);
    /// Kills the group.
    ~Process();
    Process(const Process&) = delete;
    Process& operator=(const Process&) = delete;

    pid_t pid() const { return pid_; }
    int from() const { return from_.get(); }                         ///< messages to read; non-blocking, as are all
    int to() const { return to_.open() ? to_.get() : from_.get(); }  ///< messages to write
    const std::vector<Descriptor>& logs() const { return logs_; }    ///< what it prints

    /// Whether it ended by itself. What it started may live on until end().
    bool ended() const;
    bool ends_within(std::chrono::milliseconds patience) const;
    /// No more is written: a command that reads stdin sees its end.
    void close_input();
    /// SIGTERM to the group, up to `patience` of waiting for the process, then SIGKILL to the group. Says how the
    /// process ended: "exit status 3" or "signal 11 (Segmentation fault)".
    std::string end(std::chrono::milliseconds patience);
    double resident_gib() const;

  private:
    void start_guard();

    pid_t pid_ = -1, guard_ = -1;
    Descriptor from_, to_, alive_;
    std::vector<Descriptor> logs_;
};

}  // namespace unsloth::reward
