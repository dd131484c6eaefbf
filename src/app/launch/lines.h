// A rank's output as whole lines with the rank's name in front.
#pragma once

#include <deque>
#include <string>
#include <string_view>

namespace unsloth::app {

/// Cuts a stream of bytes into lines and writes each with a prefix. A line without an end waits for it; one longer than
/// `longest` bytes is cut into lines of that length, so that no rank can fill this process' memory.
class LineCutter {
  public:
    static constexpr std::size_t usual_longest = std::size_t{1} << 20;
    explicit LineCutter(std::string prefix, std::size_t longest = usual_longest)
        : prefix_(std::move(prefix)), longest_(longest) {}

    /// Appends the lines that are complete now to `out`.
    void feed(std::string_view bytes, std::string& out);
    /// At the stream's end: what is left becomes a line.
    void finish(std::string& out);

  private:
    void write(std::string_view line, std::string& out) const;

    std::string prefix_;
    std::size_t longest_;
    std::string partial_;
};

/// The last lines of an output that is not shown, for the case that they are wanted after all.
class LastLines {
  public:
    explicit LastLines(std::size_t lines, std::size_t bytes = 64 << 10) : most_lines_(lines), most_bytes_(bytes) {}
    void add(std::string_view lines);
    std::string text() const;

  private:
    std::deque<std::string> lines_;
    std::size_t most_lines_, most_bytes_, bytes_ = 0;
};

/// The prefix of --prefix with {rank} and {local_rank} replaced, and printable().
std::string prefix_of(std::string pattern, int rank, int local_rank);

}  // namespace unsloth::app
