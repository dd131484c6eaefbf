// Which part of the training buffers a rank keeps, and where.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

#include "unsloth/spec/run_plan.h"
#include "unsloth/weights/parameter_table.h"

namespace unsloth::weights {

/// What each rank of a data-parallel group keeps a slice of. A level includes those before it (ZeRO stages 0 to 3,
/// arXiv 1910.02054).
enum class Sharding : uint8_t { replicated, states, gradients, parameters };

/// Passes read working copies (compute type for matrices of the model, fp32 for the rest) instead of the fp32 values
/// where the values are sharded or in host memory.
struct ShardingPolicy {
    Sharding level = Sharding::replicated;
    /// Of the slice's fp32 values, moments and sums of gradients. On the host the level is at least `gradients`.
    spec::Place place = spec::Place::device;
    Share share;
    bool host_is_far = false;           ///< the device has a memory of its own
    bool of_stage = false;              ///< of a pipeline: no rank has the values that a result is made of
    at::ScalarType dtype = at::kFloat;  ///< compute type

    bool on_host() const { return place == spec::Place::host; }
    /// A unit's gradients are made in a slot, and leave it for the slice's sums.
    bool splits_gradients() const { return level >= Sharding::gradients; }
    /// A unit's values are gathered into a slot.
    bool splits_values() const { return level == Sharding::parameters; }
    bool has_copies() const { return splits_values() || on_host(); }
    /// Whether this rank has the fp32 values of all that is trained.
    bool holds_all() const { return !of_stage && (!has_copies() || share.size == 1); }
    bool operator==(const ShardingPolicy&) const = default;
};

}  // namespace unsloth::weights
