// The segments of a row: runs of tokens that attend to each other, and to no other token.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace unsloth::data {

/// Tokens [begin, begin + length) of a row. A segment may begin with tokens of an earlier one, its owner, which are
/// stored there only: a prompt with several completions is the owner, and each further completion a segment of its own.
struct Segment {
    int32_t begin = 0, length = 0;
    int32_t owner = -1;  ///< number of that earlier segment, which has no owner itself; -1: none
    int32_t shared = 0;  ///< of the owner's first tokens, how many come before this segment's; 0 without an owner

    int32_t end() const { return begin + length; }
    int32_t tokens() const { return shared + length; }  ///< that attend to each other
    bool operator==(const Segment&) const = default;
};

/// A row's segments in order. Empty: all tokens are one segment.
using Segments = std::vector<Segment>;

/// `segments`, and the one segment of a row of `tokens` tokens where they are empty; none of a row without tokens.
Segments listed(const Segments& segments, std::size_t tokens);

/// What position_ids of a row that is read mean: each 0 after the first token begins a segment. Empty: one segment.
Segments segments_at_zero(const std::vector<int32_t>& positions);

/// Tokens [begin, end) of a row: parts of its segments, which may share no tokens. Empty: one segment is left.
Segments cut(const Segments& segments, std::size_t begin, std::size_t end);

/// Whether the segments cover 0 to `tokens` one after another, none of them empty, and each owner has the tokens
/// that are read from it.
bool are_sound(const Segments& segments, std::size_t tokens);

/// How many targets a row has: labels that are not ignore_label. Of a segment's first token that is one only where the
/// segment shares the token before it.
int64_t count_targets(const std::vector<int32_t>& labels, const Segments& segments);

}  // namespace unsloth::data
