// Images of one size that rows are taken to begin with, where a plan or a benchmark has no rows.
#pragma once

#include <cstdint>

#include "unsloth/spec/model_spec.h"

namespace unsloth::spec {

/// Square ones.
struct RowImages {
    int64_t count = 0;   ///< of a row
    int64_t pixels = 0;  ///< of a side
    bool kept = false;   ///< their features are kept in host memory by the first step

    int32_t grid(const VisionSpec& spec) const;  ///< patches of a side, of the nearest number of tokens; or tiles
    int64_t patches(const VisionSpec& spec) const { return int64_t{grid(spec)} * grid(spec); }
    /// Tokens that stand for a row's images. Input Error where the model sees none, or the row is no longer than they.
    int64_t tokens(const ModelSpec& model, int64_t row) const;
};

}  // namespace unsloth::spec
