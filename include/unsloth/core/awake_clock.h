// A steady clock that stops while this process is suspended, and a forced end of a process that its threads block.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace unsloth {

/// SIGSTOP, a frozen control group or a stopped virtual machine suspend all threads of a process. It cannot know what
/// others did meanwhile, so deadlines that it set for them must not pass. A thread reads this clock every 0.1 s. Where
/// nothing read it for more than 2 s, the process was suspended, and the clock does not count that time.
class AwakeClock {
  public:
    using duration = std::chrono::nanoseconds;
    using rep = duration::rep;
    using period = duration::period;
    using time_point = std::chrono::time_point<AwakeClock>;
    static constexpr bool is_steady = true;

    static time_point now() noexcept;
    /// How often this process was suspended. Others may have been suspended with it, and continue a little later: a
    /// wait for them restarts when this number changes.
    static int64_t suspensions() noexcept;
};

/// The process ends within `patience`, whatever its threads do: with `words` (printable_message(), 4000 bytes of it) on
/// stderr, if that takes them at once, and with this exit code. Of two calls the sooner end counts. A thread of its own
/// does it that waits for no lock, memory or driver; prepare_end_of_process() starts it while all is well.
void end_process_within(std::chrono::milliseconds patience, int exit_code, const std::string& words);
void prepare_end_of_process();

}  // namespace unsloth
