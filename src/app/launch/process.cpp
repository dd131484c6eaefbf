#include "app/launch/process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "unsloth/core/error.h"

namespace unsloth::app {
namespace {

/// The words as execve wants them; they point into `words`.
std::vector<char*> pointers(const std::vector<std::string>& words) {
    std::vector<char*> all;
    for (const std::string& word : words) all.push_back(const_cast<char*>(word.c_str()));
    all.push_back(nullptr);
    return all;
}

/// What the child needs, made before the fork: after it only calls that are safe in a signal handler are allowed.
struct ChildPlan {
    const char* path;
    char* const* arguments;
    char* const* environment;
    const sigset_t* signals;
    int input, out, err;  ///< -1: as inherited
    const int* kept;      ///< stay open
    std::size_t kept_count;
    int failures;  ///< where errno is written when the program cannot be executed
    pid_t parent;
};

[[noreturn]] void become(const ChildPlan& plan) {
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != plan.parent) ::_exit(127);  // it ended before the line above
    for (const int ignored : {SIGPIPE, SIGXFSZ}) ::signal(ignored, SIG_DFL);
    ::sigprocmask(SIG_SETMASK, plan.signals, nullptr);
    bool ready = ::dup2(plan.input, STDIN_FILENO) >= 0;
    if (plan.out >= 0) ready = ::dup2(plan.out, STDOUT_FILENO) >= 0 && ready;
    if (plan.err >= 0) ready = ::dup2(plan.err, STDERR_FILENO) >= 0 && ready;
    for (std::size_t i = 0; i < plan.kept_count; ++i) ready = ::fcntl(plan.kept[i], F_SETFD, 0) == 0 && ready;
    if (ready) ::execvpe(plan.path, plan.arguments, plan.environment);
    const int reason = errno;
    [[maybe_unused]] const auto written = ::write(plan.failures, &reason, sizeof reason);
    ::_exit(127);
}

void make_non_blocking(const Descriptor& descriptor) {
    if (descriptor.open()) ::fcntl(descriptor.get(), F_SETFL, ::fcntl(descriptor.get(), F_GETFL) | O_NONBLOCK);
}

}  // namespace

Pipe make_pipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0)
        throw Error("process.system-call", cat("cannot make a pipe: ", std::strerror(errno)),
                    "ulimit -n may be too low for that many ranks.");
    return {Descriptor(ends[0]), Descriptor(ends[1])};
}

RunningProcess start_process(const Program& program, Output output, const sigset_t& signals) {
    const Descriptor nothing(::open("/dev/null", O_RDWR | O_CLOEXEC));
    if (!nothing.open()) throw Error("process.system-call", cat("cannot open /dev/null: ", std::strerror(errno)));
    Pipe out, err, failures = make_pipe();
    if (output == Output::piped) out = make_pipe();
    if (output != Output::inherited) err = make_pipe();
    const auto arguments = pointers(program.arguments), environment = pointers(program.environment);
    const ChildPlan plan{program.path.c_str(),
                         arguments.data(),
                         environment.data(),
                         &signals,
                         nothing.get(),
                         output == Output::errors ? nothing.get() : out.write.get(),
                         err.write.get(),
                         program.kept.data(),
                         program.kept.size(),
                         failures.write.get(),
                         ::getpid()};

    RunningProcess process;
    process.pid = ::fork();
    if (process.pid < 0)
        throw Error("process.system-call", cat("cannot start a process: ", std::strerror(errno)),
                    "ulimit -u, or the control group's pids.max, may be too low.");
    if (process.pid == 0) become(plan);
    ::setpgid(process.pid, process.pid);  // whichever process is first; a signal to the group never misses it
    failures.write.close();
    int reason = 0;
    ssize_t got;
    while ((got = ::read(failures.read.get(), &reason, sizeof reason)) < 0 && errno == EINTR) {
    }
    if (got == sizeof reason) {
        ::waitpid(process.pid, nullptr, 0);
        throw Error("process.cannot-start", cat("cannot start ", program.path, ": ", std::strerror(reason)),
                    "--program names an executable file.");
    }
    process.out = std::move(out.read);
    process.err = std::move(err.read);
    make_non_blocking(process.out);
    make_non_blocking(process.err);
    return process;
}

}  // namespace unsloth::app
