#include "reward/process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>
#include <utility>

#include "unsloth/core/awake_clock.h"
#include "unsloth/core/error.h"

namespace unsloth::reward {
namespace {

std::vector<char*> words_of(const std::vector<std::string>& words) {
    std::vector<char*> all;
    for (const std::string& word : words) all.push_back(const_cast<char*>(word.c_str()));
    all.push_back(nullptr);
    return all;
}

struct PipeEnds {
    Descriptor read, write;
};

PipeEnds helper_pipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0)
        throw Error("process.system-call", cat("cannot make a pipe: ", std::strerror(errno)));
    return {Descriptor(ends[0]), Descriptor(ends[1])};
}

void make_helper_end(int fd) {
    ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
}

/// Made before the fork: after it only calls that are safe in a signal handler are allowed, as threads may hold locks.
struct HelperStart {
    char* const* command;
    char* const* environment;
    const char* folder;
    int in, out, err, message;  ///< message: -1 where messages are on stdin and stdout
    rlim_t memory;
    int failures;  ///< where errno is written when the program cannot be executed
    pid_t parent;
};

void close_above(int last) {
    ::syscall(SYS_close_range, static_cast<unsigned>(last + 1), ~0U, 0U);  // what has no O_CLOEXEC: drivers' files
}

[[noreturn]] void become_helper(const HelperStart& start) {
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != start.parent) ::_exit(127);
    for (const int ignored : {SIGPIPE, SIGXFSZ}) ::signal(ignored, SIG_DFL);
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    bool ready = ::chdir(start.folder) == 0;
    if (start.memory != RLIM_INFINITY) {
        const rlimit bound{start.memory, start.memory};
        ready = ::setrlimit(RLIMIT_AS, &bound) == 0 && ready;
    }
    // All are above 4 (Process), so that none is overwritten before it is copied.
    ready = ::dup2(start.in, 0) >= 0 && ::dup2(start.out, 1) >= 0 && ::dup2(start.err, 2) >= 0 && ready;
    if (start.message >= 0) ready = ::dup2(start.message, 3) >= 0 && ready;
    const int failures = ::dup2(start.failures, 4);
    ::fcntl(failures, F_SETFD, FD_CLOEXEC);
    close_above(4);
    if (start.message < 0) ::close(3);
    if (ready) ::execvpe(start.command[0], start.command, start.environment);
    const int reason = errno;
    [[maybe_unused]] const auto written = ::write(failures, &reason, sizeof reason);
    ::_exit(127);
}

/// Waits in the helper's group until this process is gone, then kills the group: the kernel would only kill the helper
/// itself, not what it started. A shell does it, as a mere fork would keep a copy of this process' memory.
[[noreturn]] void become_guard(pid_t group, int alive, char* const* command, char* const* environment) {
    ::setpgid(0, group);
    sigset_t all;
    ::sigfillset(&all);
    ::sigprocmask(SIG_SETMASK, &all, nullptr);  // the shell's too
    ::dup2(alive, 0);
    close_above(0);
    ::execve(command[0], command, environment);
    ::_exit(127);
}

/// The same open file under a number above 4.
Descriptor moved_up(Descriptor from) {
    if (from.get() > 4) return from;
    Descriptor moved(::fcntl(from.get(), F_DUPFD_CLOEXEC, 5));
    if (!moved.open()) throw Error("process.system-call", cat("cannot copy a descriptor: ", std::strerror(errno)));
    return moved;
}

std::string words_of_end(const siginfo_t& info) {
    if (info.si_code == CLD_EXITED) return cat("exit status ", info.si_status);
    const char* const name = ::strsignal(info.si_status);
    return cat("signal ", info.si_status, " (", name == nullptr ? "unknown" : name, ")");
}

}  // namespace

Process::Process(const ProcessPlan& plan) {
    PipeEnds out = helper_pipe(), err = helper_pipe(), failures = helper_pipe(), input;
    Descriptor message;
    Descriptor in;
    if (plan.socket) {
        int ends[2];
        if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
            throw Error("process.system-call", cat("cannot make a socket: ", std::strerror(errno)));
        from_ = Descriptor(ends[0]);
        message = moved_up(Descriptor(ends[1]));
        in = moved_up(Descriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC)));
    } else {
        input = helper_pipe();
        in = moved_up(std::move(input.read));
    }
    out.write = moved_up(std::move(out.write));
    err.write = moved_up(std::move(err.write));
    failures.write = moved_up(std::move(failures.write));
    const auto command = words_of(plan.command), environment = words_of(plan.environment);
    const std::string folder = plan.folder.empty() ? "." : plan.folder.string();
    const auto memory = plan.memory_gib > 0 ? static_cast<rlim_t>(plan.memory_gib * (1 << 30)) : RLIM_INFINITY;
    const HelperStart start{command.data(),       environment.data(), folder.c_str(), in.get(),
                            out.write.get(),      err.write.get(),    message.get(),  memory,
                            failures.write.get(), ::getpid()};
    pid_ = ::fork();
    if (pid_ < 0)
        throw Error("process.system-call", cat("cannot start a process for rewards: ", std::strerror(errno)),
                    "ulimit -u, or the control group's pids.max, may be too low.");
    if (pid_ == 0) become_helper(start);
    ::setpgid(pid_, pid_);
    failures.write.close();
    int reason = 0;
    ssize_t got;
    while ((got = ::read(failures.read.get(), &reason, sizeof reason)) < 0 && errno == EINTR) {
    }
    if (got == sizeof reason) {
        ::waitpid(std::exchange(pid_, -1), nullptr, 0);
        throw Error("process.cannot-start",
                    cat("cannot start ", plan.command.front(), " in ", folder, ": ", std::strerror(reason)),
                    "reward_python names the interpreter of Python functions; commands are executable files.");
    }
    start_guard();
    logs_.push_back(std::move(err.read));
    if (plan.socket) {
        logs_.push_back(std::move(out.read));
    } else {
        from_ = std::move(out.read);
        to_ = std::move(input.write);
        make_helper_end(to_.get());
    }
    make_helper_end(from_.get());
    for (const Descriptor& log : logs_) make_helper_end(log.get());
}

void Process::start_guard() {
    PipeEnds alive = helper_pipe();
    const std::vector<std::string> words{"/bin/sh", "-c", cat("read -r line; kill -s KILL -- -", pid_)}, nothing;
    const auto command = words_of(words), environment = words_of(nothing);
    guard_ = ::fork();
    if (guard_ == 0) become_guard(pid_, alive.read.get(), command.data(), environment.data());
    if (guard_ < 0) {
        const int reason = errno;
        end(std::chrono::milliseconds(0));
        throw Error("process.system-call", cat("cannot start a process for rewards: ", std::strerror(reason)));
    }
    ::setpgid(guard_, pid_);
    alive_ = std::move(alive.write);
}

Process::~Process() {
    end(std::chrono::milliseconds(0));
}

bool Process::ended() const {
    siginfo_t info{};
    return pid_ < 0 ||
           (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid_);
}

bool Process::ends_within(std::chrono::milliseconds patience) const {
    const auto deadline = AwakeClock::now() + patience;
    while (!ended() && AwakeClock::now() < deadline) ::poll(nullptr, 0, 5);
    return ended();
}

void Process::close_input() {
    to_.close();
    if (from_.open()) ::shutdown(from_.get(), SHUT_WR);  // of a socket; a pipe refuses
}

std::string Process::end(std::chrono::milliseconds patience) {
    if (pid_ < 0) return {};
    if (patience.count() > 0 && !ended()) ::kill(-pid_, SIGTERM);
    ends_within(patience);
    // Its state tells how it ended, and its number stays taken, until it is waited for.
    ::kill(-pid_, SIGKILL);
    siginfo_t info{};
    while (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED) != 0 && errno == EINTR) {
    }
    pid_ = -1;
    alive_.close();
    if (guard_ > 0) {
        ::kill(guard_, SIGKILL);
        while (::waitpid(std::exchange(guard_, -1), nullptr, 0) < 0 && errno == EINTR) {
        }
    }
    return words_of_end(info);
}

double Process::resident_gib() const {
    const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(cat("/proc/", pid_, "/statm").c_str(), "re"),
                                                     [](FILE* open) { return std::fclose(open); });
    long long pages = 0;
    if (!file || std::fscanf(file.get(), "%*d %lld", &pages) != 1) return 0;
    return static_cast<double>(pages) * static_cast<double>(::sysconf(_SC_PAGESIZE)) / (1 << 30);
}

}  // namespace unsloth::reward
