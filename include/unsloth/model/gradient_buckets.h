// The flat gradients cut into stretches that the backward pass completes one after the other, so that ranks can sum the
// first while it works on the next.
#pragma once

#include <cstdint>
#include <vector>

#include "unsloth/weights/parameter_table.h"

namespace unsloth::model {

/// Elements [begin, end) of the flat buffer; complete when the backward pass has done with `unit` (weights/unit.h).
struct GradientStretch {
    int64_t begin = 0, end = 0;
    int unit = 0;
    bool operator==(const GradientStretch&) const = default;
};

/// All gradients, in the order in which they become complete. Neighbours among the layers are joined up to
/// `most_bytes`; what one layer, the head or the embeddings complete stays in one piece however large it is. A pure
/// function of the table.
std::vector<GradientStretch> cut_gradients(const weights::ParameterTable& table, int64_t most_bytes);

}  // namespace unsloth::model
