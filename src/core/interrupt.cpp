#include "unsloth/core/interrupt.h"

#include <unistd.h>

#include <atomic>
#include <string_view>

#include "unsloth/core/error.h"

namespace unsloth {
namespace {

std::atomic<int> remembered_signal{0};
static_assert(std::atomic<int>::is_always_lock_free, "only lock-free atomics may be used in a signal handler");

// Only calls that are safe in a signal handler: write and _exit.
void on_signal(int signal) {
    int none = 0;
    if (!remembered_signal.compare_exchange_strong(none, signal)) ::_exit(128 + signal);
    constexpr std::string_view text = "\nStopping after this step and saving; once more stops at once.\n";
    [[maybe_unused]] const auto ignored = ::write(STDERR_FILENO, text.data(), text.size());
}

}  // namespace

// The key function: it puts the type's run-time information into this library alone, which the engine shares.
Interrupted::~Interrupted() = default;

void install_interrupt_handlers() {
    remembered_signal = 0;
    struct sigaction action {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    for (const int signal : {SIGINT, SIGTERM})
        UNSLOTH_CHECK(::sigaction(signal, &action, nullptr) == 0, "sigaction(", signal, ")");
}

int interrupt_requested() noexcept {
    return remembered_signal.load(std::memory_order_relaxed);
}

}  // namespace unsloth
