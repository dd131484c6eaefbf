#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <streambuf>

#include "app/commands.h"
#include "unsloth/core/error.h"
#include "unsloth/core/utf8.h"

namespace unsloth::app {
namespace {

/// Stands before a stream's buffer as long as it lives, and passes lines on to it through printable().
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

}  // namespace

void print(const std::string& text) {
    print_coloured(printable(text));
}

void print_coloured(const std::string& text) {
    const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
    if (!written || std::fflush(stdout) != 0)
        throw runtime_failure(cat("cannot write to standard output: ", std::strerror(errno)));
}

void guard_terminal() {
    if (::isatty(STDOUT_FILENO) == 0) return;
    std::ios::sync_with_stdio(false);  // later, it would give the stream its own buffer back
    static PrintableLines until_the_end(std::cout);
}

}  // namespace unsloth::app
