// SIGINT, SIGTERM and SIGHUP: asked for once, the training loop stops after its step and saves; asked for twice, the
// process ends at once.
#pragma once

#include <array>
#include <csignal>
#include <stdexcept>
#include <string>

namespace unsloth {

/// What stops a run; of several that its ranks were sent, the last one here names the reason.
inline constexpr std::array stop_signals{SIGHUP, SIGINT, SIGTERM};

/// From here on the first of these signals (SIGHUP unless it is ignored, as under nohup) is only remembered (and
/// acknowledged by a line on stderr); the second one ends the process with 128 + its number (the same one again within
/// 0.2 s is still the first: senders repeat themselves). Process-wide; calling it again forgets a signal that was
/// remembered. `words`, a literal, are what the line says first.
void install_interrupt_handlers(const char* words = "Stopping after this step and saving");

/// The signal that was remembered, or 0. Cheap enough to ask every step, and safe from any thread.
int interrupt_requested() noexcept;

/// Throws Interrupted with this message when a signal was remembered.
void stop_if_interrupted(const std::string& message = "stopped; nothing was written");

/// Thrown once a run that was asked to stop has saved its state; `main` turns it into 129 (SIGHUP), 130 (SIGINT) or 143
/// (SIGTERM).
class __attribute__((visibility("default"))) Interrupted : public std::runtime_error {
  public:
    /// `message` says what was saved and where.
    Interrupted(int signal, const std::string& message) : std::runtime_error(message), signal_(signal) {}
    ~Interrupted() override;
    Interrupted(const Interrupted&) = default;
    Interrupted& operator=(const Interrupted&) = default;
    int signal() const noexcept { return signal_; }
    int exit_code() const noexcept { return 128 + signal_; }

  private:
    int signal_;
};

}  // namespace unsloth
