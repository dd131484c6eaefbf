// Rewritten texts, and where their bytes came from.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "unsloth/core/error.h"

namespace unsloth::tokenizer {

/// A monotone map from an output text back to its input, as runs that cover the output without gaps. An exact
/// run copies bytes one for one; any other run maps the output as a whole to the input as a whole.
class Alignment {
  public:
    using Span = std::pair<std::size_t, std::size_t>;

    bool identity() const { return runs_.empty(); }
    void append_exact(std::size_t length) { append(length, length, true); }
    void append_block(std::size_t out_length, std::size_t in_length) { append(out_length, in_length, false); }

    /// The input's range for the output's range [begin, end); an empty one is at the place of its begin.
    Span to_input(Span out) const {
        if (identity()) return out;
        if (out.first >= runs_.back().out_end) return {runs_.back().in_end, runs_.back().in_end};
        const Run& first = find(out.first);
        if (out.first == out.second) {
            const std::size_t at = first.exact ? first.in_begin + (out.first - first.out_begin) : first.in_begin;
            return {at, at};
        }
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

/// Alignments of rewritings that followed each other, the first one first.
class AlignmentChain {
  public:
    void push(Alignment step) {
        if (!step.identity()) steps_.push_back(std::move(step));
    }
    bool identity() const { return steps_.empty(); }
    Alignment::Span to_input(Alignment::Span out) const {
        for (auto step = steps_.rbegin(); step != steps_.rend(); ++step) out = step->to_input(out);
        return out;
    }

  private:
    std::vector<Alignment> steps_;
};

/// The largest text that the steps of a tokenizer.json may make out of one of `size` bytes. Real ones make a few times
/// as much; a list of steps of which each doubles the text would fill the memory.
constexpr std::size_t growth_limit(std::size_t size) {
    return 256 * size + (std::size_t{64} << 10);
}
/// Input Error beyond the limit.
inline void check_growth(std::size_t size, std::size_t limit) {
    if (size > limit) [[unlikely]]
        throw Error("tokenizer.gave-up",
                    cat("the steps of tokenizer.json make a text of more than ", limit, " bytes out of a short one"));
}

/// Builds a rewritten text and, where the caller wants it, its alignment. Input Error for a text beyond `limit`.
class Rewriter {
  public:
    Rewriter(bool aligned, std::size_t limit) : aligned_(aligned), limit_(limit) {}
    void copy(std::string_view text) {
        text_ += text;
        if (aligned_) alignment_.append_exact(text.size());
    }
    /// `text` replaces `in_length` bytes of the input.
    void replace(std::string_view text, std::size_t in_length) {
        text_ += text;
        check_growth(text_.size(), limit_);
        if (aligned_) alignment_.append_block(text.size(), in_length);
    }
    void skip(std::size_t in_length) { replace({}, in_length); }
    const std::string& text() const { return text_; }
    /// Leaves the rewriter empty.
    std::string take_text() { return std::move(text_); }
    Alignment take_alignment() { return std::move(alignment_); }

  private:
    std::string text_;
    Alignment alignment_;
    bool aligned_;
    std::size_t limit_;
};

}  // namespace unsloth::tokenizer
