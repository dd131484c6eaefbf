// What one rendering may cost, wherever the work is done: values and texts are walked by functions that know no
// evaluator.
#pragma once

#include <cstddef>
#include <cstdint>

namespace unsloth::tokenizer::jinja {

// Limits on one value, so that a template cannot take all memory. A row has 64 MiB at most.
constexpr std::size_t longest_string = std::size_t{64} << 20, longest_sequence = 1'000'000;
/// Failure for a string beyond the limit.
void check_string(std::size_t size);
void check_sequence(std::size_t size);

/// Counts steps of the rendering under way on this thread; LimitReached when all of it are used up. A step is worth
/// about 40 ns: eight characters looked at one by one, or 32 bytes copied or searched. Outside of a rendering nothing
/// is counted.
void charge(int64_t steps);
inline void charge_characters(std::size_t bytes) {
    charge(static_cast<int64_t>(bytes / 8));
}
inline void charge_bytes(std::size_t bytes) {
    charge(static_cast<int64_t>(bytes / 32));
}

/// While it lives, charge() takes from `steps` on this thread.
class Budget {
  public:
    explicit Budget(int64_t& steps);
    ~Budget();
    Budget(const Budget&) = delete;
    Budget& operator=(const Budget&) = delete;

  private:
    int64_t* outer_;
};

}  // namespace unsloth::tokenizer::jinja
