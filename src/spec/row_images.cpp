#include "unsloth/spec/row_images.h"

#include <algorithm>
#include <cmath>

#include "unsloth/core/error.h"
#include "unsloth/spec/vision_spec.h"

namespace unsloth::spec {

int32_t RowImages::grid(const VisionSpec& spec) const {
    if (spec.tiles) {
        const double tile = static_cast<double>(spec.tiles->side * spec.patch_size),
                     most = std::sqrt(static_cast<double>(spec.tiles->most));
        return static_cast<int32_t>(std::clamp(std::round(static_cast<double>(pixels) / tile), 1.0, std::floor(most)));
    }
    const int64_t token = spec.patch_size * spec.merge;
    return static_cast<int32_t>(std::max<int64_t>(1, (pixels + token / 2) / token) * spec.merge);
}

int64_t RowImages::tokens(const ModelSpec& model, int64_t row) const {
    if (count == 0) return 0;
    if (!model.vision) throw Error("model.unsupported", "--images: this model reads text alone", "Leave --images out.");
    const int64_t all = count * model.vision->tokens_of(patches(*model.vision));
    if (all >= row)
        throw Error("option.out-of-range", cat("--images ", count, ": they are ", all, " tokens of a row's ", row),
                    "Give fewer, a smaller --image_size, or longer rows.");
    return all;
}

}  // namespace unsloth::spec
