// How ranks ended, and what the launcher makes of it.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "unsloth/core/awake_clock.h"

namespace unsloth::app {

struct RankEnd {
    int rank = 0;
    pid_t pid = 0;
    int code = 0;    ///< the exit code; 128 + signal where a signal ended the process
    int signal = 0;  ///< that signal, or 0
    bool stopped_by_us =
        false;  ///< by a signal that was forwarded, after a deadline, or when the user asked a second time
    AwakeClock::time_point when;
    bool stuck = false;  ///< killed: it sent no heartbeat, or did not end in time after another one's loss
};

/// Whether this is no failure: finished, or stopped in order (130, 143) after a signal.
bool in_order(const RankEnd& end);

/// Which end the whole is named after: an index into `ends` (in the order in which the ranks ended; not empty), or -1
/// where none failed. The first failure that the launcher did not cause itself. Exit code 4 is also what a rank says
/// that noticed another's end, and it may say so before the other is buried (a core dump takes seconds): another code
/// within 5 s after a first 4 goes before it, and so does a rank that was stuck.
int most_telling(const std::vector<RankEnd>& ends);

/// The launcher's exit code: the most telling failure's, and 4 for a stuck rank; without one, where a rank did not end
/// with 0, 128 + the signal that the launcher forwarded (0: none), or the rank's own 130 or 143; otherwise 0.
int exit_code(const std::vector<RankEnd>& ends, int forwarded_signal);

/// "exit code 3", "signal 9 (Killed)".
std::string words(const RankEnd& end);

/// One line about a run that did not end with 0: the rank that it is named after, and how the others ended.
std::string summary(const std::vector<RankEnd>& ends, int forwarded_signal);

}  // namespace unsloth::app
