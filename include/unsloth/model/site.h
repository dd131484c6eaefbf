// The places of a pass where non-finite values are noticed, and their codes in StepOutcome::first_bad_site.
#pragma once

#include "unsloth/core/error.h"
#include "unsloth/model/pass_schedule.h"

namespace unsloth::model {

enum class Place : uint8_t { input_norm, post_norm, final_norm, loss };

struct Site {
    Place place = Place::input_norm;
    int layer = -1;  ///< of a layer's norms
    Direction direction = Direction::forward;
    bool operator==(const Site&) const = default;
};

/// Codes order by execution, in a network of `layers` layers: the layers' norms, the final norm and the loss; then the
/// layers' norms of the backward pass, from the last to the first.
inline uint32_t code_of(const Site& site, int layers) {
    const auto count = static_cast<uint32_t>(layers), layer = static_cast<uint32_t>(site.layer);
    if (site.place == Place::final_norm) return 2 * count;
    if (site.place == Place::loss) return 2 * count + 1;
    const bool input = site.place == Place::input_norm;
    if (site.direction == Direction::forward) return 2 * layer + (input ? 0 : 1);
    return 2 * count + 2 + 2 * (count - 1 - layer) + (input ? 1 : 0);
}

/// The site of a code that code_of() gave.
inline Site site_of(uint32_t code, int layers) {
    const auto count = static_cast<uint32_t>(layers);
    UNSLOTH_CHECK(code < 4 * count + 2, "site ", code, " of ", layers, " layers");
    if (code == 2 * count) return {Place::final_norm};
    if (code == 2 * count + 1) return {Place::loss};
    if (code < 2 * count)
        return {code % 2 == 0 ? Place::input_norm : Place::post_norm, static_cast<int>(code / 2), Direction::forward};
    const uint32_t backward_code = code - 2 * count - 2;
    return {backward_code % 2 == 0 ? Place::post_norm : Place::input_norm,
            static_cast<int>(count - 1 - backward_code / 2), Direction::backward};
}

}  // namespace unsloth::model
