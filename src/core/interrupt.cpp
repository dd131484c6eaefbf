#include "unsloth/core/interrupt.h"

#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <string_view>

#include "unsloth/core/error.h"

namespace unsloth {
namespace {

// `timeout` signals a process and then its group, service managers and launchers signal the same process in turn: what
// comes twice within this time is one request.
constexpr int64_t one_request_ms = 200;

std::atomic<int> remembered_signal{0};
std::atomic<int64_t> remembered_at_ms{0};
std::atomic<const char*> announced{nullptr};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free &&
                  std::atomic<const char*>::is_always_lock_free,
              "only lock-free atomics may be used in a signal handler");

int64_t now_ms() {
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    return int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1000000;
}

// Only calls that are safe in a signal handler: sigaction, clock_gettime, write and _exit. The other stop signals wait
// while it runs.
void on_signal(int signal) {
    // What reads our output through a pipe is often ended by the same signal: that must not end us while we save.
    struct sigaction ignore{};
    ignore.sa_handler = SIG_IGN;
    ::sigaction(SIGPIPE, &ignore, nullptr);
    int remembered = 0;
    if (!remembered_signal.compare_exchange_strong(remembered, signal)) {
        if (remembered == signal && now_ms() - remembered_at_ms < one_request_ms) return;
        ::_exit(128 + signal);
    }
    remembered_at_ms = now_ms();
    for (const std::string_view text : {std::string_view("\n"), std::string_view(announced.load()),
                                        std::string_view("; once more stops at once.\n")}) [[maybe_unused]]
        const auto ignored = ::write(STDERR_FILENO, text.data(), text.size());
}

}  // namespace

// The key function: it puts the type's run-time information into this library alone, which the engine shares.
Interrupted::~Interrupted() = default;

void install_interrupt_handlers(const char* words) {
    announced = words;
    remembered_signal = 0;
    struct sigaction action{};
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    for (const int signal : stop_signals) sigaddset(&action.sa_mask, signal);
    struct sigaction hangup{};
    ::sigaction(SIGHUP, nullptr, &hangup);
    for (const int signal : stop_signals)
        if (signal != SIGHUP || hangup.sa_handler != SIG_IGN)
            UNSLOTH_CHECK(::sigaction(signal, &action, nullptr) == 0, "sigaction(", signal, ")");
}

int interrupt_requested() noexcept {
    return remembered_signal.load(std::memory_order_relaxed);
}

void stop_if_interrupted(const std::string& message) {
    if (const int signal = interrupt_requested()) throw Interrupted(signal, message);
}

}  // namespace unsloth
