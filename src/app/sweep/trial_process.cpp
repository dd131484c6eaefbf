#include "app/sweep/trial_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "app/launch/environment.h"
#include "app/launch/process.h"
#include "unsloth/core/error.h"
#include "unsloth/core/host.h"
#include "unsloth/core/interrupt.h"

namespace unsloth::app {
namespace {

/// Passes a stop signal on, once. The trial has a process group of its own, with all ranks that it starts.
class Forwarder {
  public:
    explicit Forwarder(pid_t pid) : pid_(pid) {}
    void look() {
        const int signal = interrupt_requested();
        if (signal != 0 && !std::exchange(sent_, true)) ::kill(pid_, signal);
    }

  private:
    pid_t pid_;
    bool sent_ = false;
};

/// What a program said last: its error, or else its last line that is not empty.
class LastLine {
  public:
    void add(std::string_view text) {
        for (const char letter : text) {
            if (letter != '\n' && letter != '\r') {
                begun_ += letter;
                continue;
            }
            end_line();
        }
    }
    std::string text() {
        end_line();
        return error_.empty() ? last_ : error_;
    }

  private:
    void end_line() {
        if (!begun_.empty()) last_ = begun_;
        if (begun_.find(": error[") != std::string::npos) error_ = begun_.substr(begun_.find("error["));
        begun_.clear();
    }
    std::string begun_, last_, error_;
};

/// Until the trial has closed both streams.
std::string keep_output(RunningProcess& process, const std::filesystem::path& log, Forwarder& forwarder) {
    const Descriptor file(::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0644));
    if (!file.open())
        throw Error("disk.cannot-write", cat("cannot write ", log.string(), ": ", std::strerror(errno)),
                    "Choose another training.output_dir.");
    LastLine last;
    std::array<pollfd, 2> streams{pollfd{process.out.get(), POLLIN, 0}, pollfd{process.err.get(), POLLIN, 0}};
    constexpr int patience_ms = 100;  // a signal may come between a look and the wait
    while (streams[0].fd >= 0 || streams[1].fd >= 0) {
        forwarder.look();
        if (::poll(streams.data(), streams.size(), patience_ms) <= 0) continue;
        for (pollfd& stream : streams) {
            if (stream.fd < 0 || stream.revents == 0) continue;
            std::array<char, 65536> bytes;
            const ssize_t count = ::read(stream.fd, bytes.data(), bytes.size());
            if (count == 0) stream.fd = -1;
            if (count <= 0) continue;
            const std::string_view text(bytes.data(), static_cast<std::size_t>(count));
            last.add(text);
            [[maybe_unused]] const auto written = ::write(file.get(), text.data(), text.size());  // a log, no result
        }
    }
    return last.text();
}

}  // namespace

TrialEnd run_trial_process(const std::vector<std::string>& arguments, const std::filesystem::path& log) {
    Program program;
    program.path = own_executable().string();
    program.arguments = {program.path};
    program.arguments.insert(program.arguments.end(), arguments.begin(), arguments.end());
    program.environment = own_environment();
    sigset_t none;
    ::sigemptyset(&none);
    RunningProcess process = start_process(program, log.empty() ? Output::inherited : Output::piped, none);
    Forwarder forwarder(process.pid);
    TrialEnd end;
    try {
        if (!log.empty()) end.said = keep_output(process, log, forwarder);
    } catch (...) {
        ::kill(-process.pid, SIGKILL);
        ::waitpid(process.pid, nullptr, 0);
        throw;
    }
    int status = 0;
    for (pid_t ended = 0; ended == 0;) {
        forwarder.look();
        ended = ::waitpid(process.pid, &status, WNOHANG);
        constexpr useconds_t pause_us = 20000;
        if (ended == 0) ::usleep(pause_us);
        if (ended < 0 && errno != EINTR)
            throw Error("process.system-call", cat("cannot wait for a trial: ", std::strerror(errno)));
        if (ended < 0) ended = 0;
    }
    end.code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    return end;
}

}  // namespace unsloth::app
