#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <streambuf>
#include <system_error>

#include "app/commands.h"
#include "unsloth/core/error.h"
#include "unsloth/core/log.h"
#include "unsloth/core/utf8.h"

namespace unsloth::app {
namespace {

/// Wraps a stream's buffer for its lifetime, and passes lines on to it through printable().
class PrintableLines : public std::streambuf {
  public:
    explicit PrintableLines(std::ostream& stream) : stream_(stream), to_(stream.rdbuf(this)) {}
    PrintableLines(const PrintableLines&) = delete;
    PrintableLines& operator=(const PrintableLines&) = delete;
    ~PrintableLines() override {
        pass_on();
        stream_.rdbuf(to_);
    }

  protected:
    int_type overflow(int_type c) override {
        if (c == traits_type::eof()) return traits_type::not_eof(c);
        line_ += traits_type::to_char_type(c);
        return c != '\n' || pass_on() ? c : traits_type::eof();
    }
    int sync() override { return pass_on() ? 0 : -1; }

  private:
    bool pass_on() {
        const std::string text = printable(line_);
        line_.clear();
        const auto size = static_cast<std::streamsize>(text.size());
        return to_->sputn(text.data(), size) == size && to_->pubsync() == 0;
    }

    std::ostream& stream_;
    std::streambuf* to_;
    std::string line_;
};

void require_written(bool written) {
    if (!written) throw std::ios_base::failure("standard output", std::error_code(errno, std::generic_category()));
}

/// A pipe or socket without a reader.
bool reader_left() {
    pollfd output{STDOUT_FILENO, POLLOUT, 0};
    return ::poll(&output, 1, 0) == 1 && (output.revents & (POLLERR | POLLHUP)) != 0;
}

}  // namespace

void print(const std::string& text) {
    print_coloured(printable(text));
}

void print_coloured(const std::string& text) {
    require_written(std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0);
}

void flush_output() {
    std::cout.flush();
    require_written(std::fflush(stdout) == 0);
}

void end_unread(const std::ios_base::failure& failure) {
    if (reader_left()) {
        std::signal(SIGPIPE, SIG_DFL);
        std::raise(SIGPIPE);
    }
    const bool by_system = failure.code().category() == std::generic_category();
    log::last_words(error_line("disk.cannot-write", cat("cannot write to standard output",
                                                        by_system ? ": " + failure.code().message() : std::string())));
}

void guard_output() {
    std::cout.exceptions(std::ios::badbit);
    if (::isatty(STDOUT_FILENO) == 0) return;
    std::ios::sync_with_stdio(false);  // later, it would give the stream its own buffer back
    static PrintableLines until_the_end(std::cout);
}

}  // namespace unsloth::app
