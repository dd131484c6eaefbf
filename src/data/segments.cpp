#include "unsloth/data/segments.h"

#include <algorithm>

#include "unsloth/core/error.h"
#include "unsloth/data/batch.h"

namespace unsloth::data {

Segments listed(const Segments& segments, std::size_t tokens) {
    if (!segments.empty() || tokens == 0) return segments;
    return {{0, static_cast<int32_t>(tokens)}};
}

Segments segments_at_zero(const std::vector<int32_t>& positions) {
    Segments segments;
    int32_t begin = 0;
    const auto size = static_cast<int32_t>(positions.size());
    for (int32_t t = 1; t < size; ++t) {
        if (positions[static_cast<std::size_t>(t)] != 0) continue;
        segments.push_back({begin, t - begin});
        begin = t;
    }
    if (!segments.empty()) segments.push_back({begin, size - begin});
    return segments;
}

Segments cut(const Segments& segments, std::size_t begin, std::size_t end) {
    Segments parts;
    const auto first = static_cast<int32_t>(begin), last = static_cast<int32_t>(end);
    for (const Segment& segment : segments) {
        UNSLOTH_CHECK(segment.shared == 0, "segments that share tokens are not cut");
        const int32_t from = std::max(segment.begin, first), to = std::min(segment.end(), last);
        if (from < to) parts.push_back({from - first, to - from});
    }
    if (parts.size() < 2) parts.clear();
    return parts;
}

bool are_sound(const Segments& segments, std::size_t tokens) {
    int64_t end = 0;
    for (std::size_t s = 0; s < segments.size(); ++s) {
        const Segment& segment = segments[s];
        if (segment.begin != end || segment.length <= 0) return false;
        end += segment.length;
        if ((segment.owner < 0) != (segment.shared == 0)) return false;
        if (segment.owner < 0) continue;
        if (segment.owner >= static_cast<int32_t>(s)) return false;
        const Segment& owner = segments[static_cast<std::size_t>(segment.owner)];
        if (owner.owner >= 0 || segment.shared < 0 || segment.shared > owner.length) return false;
    }
    return segments.empty() || end == static_cast<int64_t>(tokens);
}

int64_t count_targets(const std::vector<int32_t>& labels, const Segments& segments) {
    int64_t targets = std::count_if(labels.begin(), labels.end(), [](int32_t label) { return label != ignore_label; });
    for (const Segment& segment : listed(segments, labels.size()))
        if (segment.shared == 0) targets -= labels[static_cast<std::size_t>(segment.begin)] != ignore_label;
    return targets;
}

}  // namespace unsloth::data
