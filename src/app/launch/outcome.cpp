#include "app/launch/outcome.h"

#include <algorithm>
#include <csignal>
#include <cstring>
#include <map>
#include <set>

#include "unsloth/core/error.h"
#include "unsloth/core/interrupt.h"

namespace unsloth::app {
namespace {

constexpr int shell_base = 128;  // as shells number deaths by signal
constexpr auto late_burial = std::chrono::seconds(5);

bool failed_by_itself(const RankEnd& end) {
    return !in_order(end) && !end.stopped_by_us;
}

}  // namespace

bool in_order(const RankEnd& end) {
    return end.signal == 0 && (end.code == 0 || std::any_of(stop_signals.begin(), stop_signals.end(), [&](int signal) {
                                   return end.code == shell_base + signal;
                               }));
}

int most_telling(const std::vector<RankEnd>& ends) {
    constexpr int may_be_a_consequence = static_cast<int>(ErrorKind::runtime);
    int first = -1;
    for (int i = 0; i < static_cast<int>(ends.size()); ++i) {
        const RankEnd& end = ends[static_cast<std::size_t>(i)];
        if (!failed_by_itself(end)) continue;
        if (first < 0) {
            first = i;
            if (end.code != may_be_a_consequence) return i;
        } else if (end.code != may_be_a_consequence &&
                   end.when - ends[static_cast<std::size_t>(first)].when <= late_burial) {
            return i;
        }
    }
    const auto stuck = std::find_if(ends.begin(), ends.end(), [](const RankEnd& end) { return end.stuck; });
    return stuck == ends.end() ? first : static_cast<int>(stuck - ends.begin());  // a 4 tells of it
}

int exit_code(const std::vector<RankEnd>& ends, int forwarded_signal) {
    if (const int worst = most_telling(ends); worst >= 0) {
        const RankEnd& end = ends[static_cast<std::size_t>(worst)];
        return end.stuck ? static_cast<int>(ErrorKind::runtime) : end.code;
    }
    for (const RankEnd& end : ends)
        if (end.code != 0) return forwarded_signal != 0 ? shell_base + forwarded_signal : end.code;
    return 0;
}

std::string words(const RankEnd& end) {
    if (end.signal == 0) return cat("exit code ", end.code);
    return cat("signal ", end.signal, " (", ::strsignal(end.signal), ")");
}

std::string summary(const std::vector<RankEnd>& ends, int forwarded_signal) {
    const int worst = most_telling(ends);
    std::string text;
    if (worst >= 0) {
        const RankEnd& end = ends[static_cast<std::size_t>(worst)];
        text = cat("rank ", end.rank, " (pid ", end.pid, ") ");
        if (end.stuck)
            text += "was stuck, and the launcher killed it";
        else
            text += cat(end.signal != 0 ? "was ended by " : "failed with ", words(end));
        if (end.signal == SIGKILL && !end.stuck) text += ", often sent by the kernel when memory runs out (dmesg)";
    } else if (forwarded_signal != 0) {
        text = cat("stopped by signal ", forwarded_signal, " (", ::strsignal(forwarded_signal), ")");
    } else {
        text = "a rank was stopped, and the others with it";
    }
    std::map<std::string, std::set<int>> others;  // "exit code 4" -> 0, 2
    for (int i = 0; i < static_cast<int>(ends.size()); ++i) {
        const RankEnd& end = ends[static_cast<std::size_t>(i)];
        if (i == worst) continue;
        others[words(end) + (end.stopped_by_us ? ", from the launcher" : "")].insert(end.rank);
    }
    for (const auto& [how, ranks] : others) {
        text += ranks.size() == 1 ? "; rank " : "; ranks ";
        for (const int rank : ranks) text += cat(rank == *ranks.begin() ? "" : ", ", rank);
        text += ": " + how;
    }
    return text;
}

}  // namespace unsloth::app
