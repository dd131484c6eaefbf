// How ranks ended, and what the launcher makes of it.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

namespace unsloth::app {

struct RankEnd {
    int rank = 0;
    pid_t pid = 0;
    int code = 0;    ///< the exit code; 128 + signal where a signal ended the process
    int signal = 0;  ///< that signal, or 0
    bool stopped_by_us =
        false;  ///< by a signal that was forwarded, after the grace period, or when the user asked a second time
    std::chrono::steady_clock::time_point when;
};

/// Whether this is no failure: finished, or stopped in order (130, 143) after a signal.
bool in_order(const RankEnd& end);

/// Which end the whole is named after: an index into `ends` (in the order in which the ranks ended; not empty), or -1
/// where none failed. The first failure that the launcher did not cause itself. Exit code 4 is also what a rank says
/// that noticed another's end, and it may say so before the other is buried (a core dump takes seconds): another code
/// within 5 s after a first 4 goes before it.
int most_telling(const std::vector<RankEnd>& ends);

/// The launcher's exit code: the most telling failure's; without one, where a rank did not end with 0, 128 + the signal
/// that the launcher forwarded (0: none), or the rank's own 130 or 143; otherwise 0.
int exit_code(const std::vector<RankEnd>& ends, int forwarded_signal);

/// "exit code 3", "signal 9 (Killed)".
std::string words(const RankEnd& end);

/// One line about a run that did not end with 0: the rank that it is named after, and how the others ended.
std::string summary(const std::vector<RankEnd>& ends, int forwarded_signal);

}  // namespace unsloth::app
