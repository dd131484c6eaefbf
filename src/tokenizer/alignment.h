// Where the bytes of a rewritten text came from.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace unsloth {

/// A monotone map from an output text back to its input, as runs that cover the output without gaps. An exact
/// run copies bytes one for one; in any other run the output as a whole stands for the input as a whole.
class Alignment {
  public:
    using Span = std::pair<std::size_t, std::size_t>;

    bool identity() const { return runs_.empty(); }
    void append_exact(std::size_t length) { append(length, length, true); }
    void append_block(std::size_t out_length, std::size_t in_length) { append(out_length, in_length, false); }

    /// The input's range for the output's non-empty range [begin, end).
    Span to_input(Span out) const {
        if (identity()) return out;
        const Run& first = find(out.first);
        const Run& last = find(out.second - 1);
        return {first.exact ? first.in_begin + (out.first - first.out_begin) : first.in_begin,
                last.exact ? last.in_begin + (out.second - last.out_begin) : last.in_end};
    }

  private:
    struct Run {
        std::size_t out_begin, out_end, in_begin, in_end;
        bool exact;
    };

    void append(std::size_t out_length, std::size_t in_length, bool exact) {
        if (out_length == 0 && in_length == 0) return;
        const std::size_t out = runs_.empty() ? 0 : runs_.back().out_end;
        const std::size_t in = runs_.empty() ? 0 : runs_.back().in_end;
        if (exact && !runs_.empty() && runs_.back().exact) {
            runs_.back().out_end += out_length;
            runs_.back().in_end += in_length;
            return;
        }
        runs_.push_back({out, out + out_length, in, in + in_length, exact});
    }
    const Run& find(std::size_t out_position) const {
        return *std::partition_point(runs_.begin(), runs_.end(),
                                     [&](const Run& run) { return run.out_end <= out_position; });
    }

    std::vector<Run> runs_;
};

}  // namespace unsloth
