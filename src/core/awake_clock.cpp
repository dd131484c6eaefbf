#include "unsloth/core/awake_clock.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <system_error>
#include <thread>

#include "unsloth/core/utf8.h"

namespace unsloth {
namespace {

using std::chrono::steady_clock, std::chrono::milliseconds;

constexpr auto look_again = milliseconds(100);
constexpr auto longest_gap = milliseconds(2000);

// Threads that are never joined use these until the process is gone: none has a destructor.
std::mutex clock_mutex;
steady_clock::time_point last_read;
steady_clock::duration suspended{};
int64_t times_suspended = 0;

std::mutex end_mutex;
AwakeClock::time_point end_at = AwakeClock::time_point::max();
int end_code = 0;
std::size_t end_size = 0;
std::array<char, 4000> end_words;  // a pipe with room for something has room for PIPE_BUF

/// Runs `body` for ever, on a thread that takes no signal.
void start_forever(void (*body)()) noexcept {
    sigset_t all, before;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
        std::thread([body] {
            for (;;) {
                body();
                std::this_thread::sleep_for(look_again);
            }
        }).detach();
    } catch (const std::system_error&) {  // there can be no further thread: loops that wait read the clock, too
    }
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void end_if_due() {
    const std::lock_guard lock(end_mutex);
    if (AwakeClock::now() < end_at) return;
    // A reader that does not read must not hold this up.
    pollfd ready{STDERR_FILENO, POLLOUT, 0};
    if (::poll(&ready, 1, 0) == 1) [[maybe_unused]]
        const auto written = ::write(STDERR_FILENO, end_words.data(), end_size);
    ::_exit(end_code);
}

}  // namespace

AwakeClock::time_point AwakeClock::now() noexcept {
    static const bool started [[maybe_unused]] = [] {
        last_read = steady_clock::now();
        start_forever([] { (void)now(); });
        return true;
    }();
    const std::lock_guard lock(clock_mutex);
    const auto read = steady_clock::now();
    if (read - last_read > longest_gap) {
        suspended += read - last_read;
        ++times_suspended;
    }
    last_read = read;
    return time_point(std::chrono::duration_cast<duration>((read - suspended).time_since_epoch()));
}

int64_t AwakeClock::suspensions() noexcept {
    (void)now();
    const std::lock_guard lock(clock_mutex);
    return times_suspended;
}

void prepare_end_of_process() {
    static const bool started [[maybe_unused]] = (start_forever(end_if_due), true);
}

void end_process_within(std::chrono::milliseconds patience, int exit_code, const std::string& words) {
    prepare_end_of_process();
    const auto at = AwakeClock::now() + patience;
    const std::string text = "unsloth-train: " + printable_message(words).substr(0, end_words.size() - 32) + "\n";
    const std::lock_guard lock(end_mutex);
    if (at >= end_at) return;
    end_at = at;
    end_code = exit_code;
    end_size = text.copy(end_words.data(), end_words.size());
}

}  // namespace unsloth
