// One run of a trial, in a process of its own.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace unsloth::app {

struct TrialEnd {
    int code = 0;      ///< its exit code; 128 + signal where a signal ended it
    std::string said;  ///< the last line of its output that was not empty; empty where the output is the terminal's
};

/// Runs this program with `arguments` to its end. What it prints is added to the file `log`, or, with an empty path,
/// goes where this process' output goes. A stop signal (core/interrupt.h) is passed on to it once; it is killed when
/// this process ends in any other way. Runtime Error when it cannot be started.
TrialEnd run_trial_process(const std::vector<std::string>& arguments, const std::filesystem::path& log);

}  // namespace unsloth::app
