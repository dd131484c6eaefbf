// What one rendering may cost, wherever the work is done: values and texts are walked by functions that know no
// rendering.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

#include "unsloth/core/error.h"

namespace unsloth::tokenizer::jinja {

/// What goes wrong while a template is parsed or rendered; `line` is the template's (0: not known yet).
class Failure : public std::runtime_error {
  public:
    explicit Failure(const std::string& message, int at_line = 0) : std::runtime_error(message), line(at_line) {}
    int line;
};
[[noreturn]] inline void fail(const std::string& message) {
    throw Failure(message);
}

/// One more level of recursion while it lives. Failure beyond `most`: an error in place of a stack overflow.
class Level {
  public:
    Level(int& depth, int most, const char* reason, int line = 0) : depth_(depth) {
        if (++depth_ <= most) return;
        --depth_;
        throw Failure(reason, line);
    }
    ~Level() { --depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

  private:
    int& depth_;
};

// Limits on one value, so that a template cannot take all memory. A row has 64 MiB at most.
constexpr std::size_t longest_string = std::size_t{64} << 20, longest_sequence = 1'000'000;
inline void check_string(std::size_t size) {
    if (size > longest_string) fail("a string of more than 64 MiB");
}
inline void check_sequence(std::size_t size) {
    if (size > longest_sequence) fail(cat("a sequence of more than ", longest_sequence, " elements"));
}

/// While one lives, charge() takes from `steps` on this thread.
class Budget {
  public:
    explicit Budget(int64_t& steps) : outer_(std::exchange(current, &steps)) {}
    ~Budget() { current = outer_; }
    Budget(const Budget&) = delete;
    Budget& operator=(const Budget&) = delete;
    static inline thread_local int64_t* current = nullptr;

  private:
    int64_t* outer_;
};

/// Counts steps of the rendering under way on this thread; Failure when all of them are used up. A step is worth
/// about 40 ns: eight characters looked at one by one, or 32 bytes copied or searched. Outside of a rendering nothing
/// is counted.
inline void charge(std::size_t steps) {
    if (Budget::current == nullptr) return;
    *Budget::current -= static_cast<int64_t>(steps);
    if (*Budget::current < 0) fail("the template takes too long: it loops without end, or over too much");
}
inline void charge_characters(std::size_t bytes) {
    charge(bytes / 8);
}
inline void charge_bytes(std::size_t bytes) {
    charge(bytes / 32);
}

}  // namespace unsloth::tokenizer::jinja
