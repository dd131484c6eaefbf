// A second process of the same test program, which speaks with the first by lines.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <string>

namespace unsloth::test {

inline void say_line(int fd, const std::string& line) {
    const std::string text = line + "\n";
    if (::write(fd, text.data(), text.size()) < 0) std::abort();
}
/// Without its end; empty when there is none any more.
inline std::string hear_line(int fd) {
    std::string line;
    for (char c = 0; ::read(fd, &c, 1) == 1 && c != '\n';) line += c;
    return line;
}

/// Runs one test of this program, "Suite.DISABLED_Name", in a process of its own. Killed (SIGKILL) with the object.
class Child {
  public:
    Child(const std::string& test, const std::string& argument) {
        std::array<int, 2> in{}, out{};
        if (::pipe2(in.data(), O_CLOEXEC) != 0 || ::pipe2(out.data(), O_CLOEXEC) != 0) std::abort();
        pid_ = ::fork();
        if (pid_ == 0) {
            if (::dup2(in[0], hears) < 0 || ::dup2(out[1], says) < 0) ::_exit(1);
            ::setenv("UNSLOTH_TEST_CHILD", argument.c_str(), 1);
            const std::string filter = "--gtest_filter=" + test;
            ::execl("/proc/self/exe", "child", filter.c_str(), "--gtest_also_run_disabled_tests", "--gtest_brief=1",
                    nullptr);
            ::_exit(1);
        }
        ::close(in[0]);
        ::close(out[1]);
        to_ = in[1];
        from_ = out[0];
    }
    ~Child() {
        kill();
        ::close(to_);
        ::close(from_);
    }
    Child(const Child&) = delete;
    Child& operator=(const Child&) = delete;

    void tell(const std::string& line) const { say_line(to_, line); }
    std::string hear() const { return hear_line(from_); }
    void kill() {
        if (pid_ > 0) ::kill(pid_, SIGKILL);
        wait();
    }
    /// Its exit code, or minus the signal that ended it.
    int wait() {
        int status = 0;
        if (pid_ <= 0 || ::waitpid(pid_, &status, 0) != pid_) return 0;
        pid_ = -1;
        return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    }
    pid_t pid() const { return pid_; }

    // In the child.
    static std::string argument() { return std::getenv("UNSLOTH_TEST_CHILD"); }
    static void say(const std::string& line) { say_line(says, line); }
    static std::string heard() { return hear_line(hears); }

  private:
    static constexpr int hears = 100, says = 101;
    pid_t pid_ = -1;
    int to_ = -1, from_ = -1;
};

}  // namespace unsloth::test
