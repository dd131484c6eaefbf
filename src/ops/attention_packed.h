// How batches of unequal segments meet cuDNN's packed plans: sizes in buckets, so that few plans serve all
// batches, and groups of neighbouring segments, so that the backward's scratch stays near the tokens that
// there are. Host arithmetic, no device.
//
// cuDNN sizes the packed backward's scratch by B x S, the number of sequences times the longest: one long
// segment among many short ones would multiply it. (Its own remedy, a bound on the total length, lets
// sequences overwrite each other in 9.19.)
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace unsloth::ops {

/// The sizes that were planned; zeros: nothing was.
struct PackedLimits {
    int64_t tokens = 0, segments = 0, longest = 0;
    int64_t keys = 0;  ///< of all segments, where some have more of them than queries; 0: none do
    /// The same with the keys as its tokens: a plan works for segments of as many queries.
    PackedLimits of_keys() const { return {keys, segments, longest, keys}; }
    /// Of passes of at most `most`.
    PackedLimits at_most(int64_t most) const {
        return {std::min(tokens, most), segments, std::min(longest, most), std::min(keys, most)};
    }
};

/// B and S of a plan.
struct PackedBucket {
    int64_t batch = 0, length = 0;
    int64_t area() const { return batch * length; }
};

/// Neighbouring segments [first, first + count) of up to `longest` tokens.
struct PackedGroup {
    int64_t first = 0, count = 0, longest = 0;
};

/// T of a plan: the planned tokens, or the next power of two when there are more.
int64_t packed_tokens(const PackedLimits& limits, int64_t tokens);

/// B and S to the next power of two (at least `least_batch` and 256), but not beyond what was planned; S a
/// multiple of 128.
PackedBucket packed_bucket(const PackedLimits& limits, int64_t segments, int64_t longest, int64_t least_batch = 1);

/// Most B x S that a group may take: about the tokens, and enough for as many of the longest segments as they
/// hold.
int64_t packed_area(const PackedLimits& limits, int64_t tokens, int64_t longest);

/// Cuts segments, in order, into groups whose bucket's area is at most packed_area; a segment alone is always
/// a group. `offsets`: where segments begin, count + 1 entries.
std::vector<PackedGroup> packed_groups(const PackedLimits& limits, const std::vector<int32_t>& offsets);

/// The buckets that bound what the groups of any batch within the limits take: the one of the longest
/// segments, and the one of the largest area and most sequences when that is another.
std::vector<PackedBucket> largest_packed_buckets(const PackedLimits& limits);

}  // namespace unsloth::ops
