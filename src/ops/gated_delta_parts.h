// What the operators of gated delta nets share on the host.
#pragma once

#include <cmath>

#include "ops/checks.h"
#include "unsloth/ops/gated_delta.h"

namespace unsloth::ops {

inline float sigmoid(float x) {
    return 1.0F / (1.0F + std::exp(-x));
}

/// The rows fit the segments, whose queries are their keys.
inline void check_rows_of_segments(const Segments& segments, const at::Tensor& x_TC) {
    UNSLOTH_CHECK(segments.count() >= 0 && x_TC.dim() == 2 && segments.q_offsets.back() <= x_TC.size(0), "segments of ",
                  segments.q_offsets.empty() ? 0 : segments.q_offsets.back(), " tokens, rows of ", x_TC.sizes());
    UNSLOTH_CHECK(segments.q_offsets == segments.k_offsets, "segments with more keys than queries");
}

/// Kept states of these sizes, a place for each segment.
inline void check_kept(const Context& ctx, const KeptStates& kept, const Segments& segments, at::IntArrayRef sizes,
                       at::ScalarType type) {
    if (!kept.defined()) return;
    UNSLOTH_CHECK(kept.data.dim() == static_cast<int64_t>(sizes.size()) + 1 && kept.data.sizes().slice(1) == sizes,
                  "kept states of ", kept.data.sizes(), " for ", sizes);
    check_contiguous(ctx, "kept states", kept.data, kept.data.sizes(), type);
    UNSLOTH_CHECK(static_cast<int64_t>(kept.rows.size()) == segments.count(), kept.rows.size(), " kept states for ",
                  segments.count(), " segments");
    for (const int32_t row : kept.rows)
        UNSLOTH_CHECK(row >= 0 && row < kept.data.size(0), "kept state ", row, " of ", kept.data.size(0));
}

}  // namespace unsloth::ops
