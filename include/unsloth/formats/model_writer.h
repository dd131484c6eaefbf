// Writes a model folder from a model that is made a few rows at a time: shards, index, config.json.
#pragma once

#include <cstddef>
#include <filesystem>

#include "unsloth/formats/merge.h"
#include "unsloth/formats/shards.h"
#include "unsloth/spec/weight_type.h"

namespace unsloth::formats {

struct ModelWriteOptions {
    spec::WeightType type = spec::WeightType::automatic;
    std::size_t shard_bytes = default_shard_bytes;  ///< of tensors in a file; above 0
    int threads = 0;                                ///< 0: as many as the machine has. The files do not depend on it
    spec::PrecisionMap precision = {};              ///< matrices that `type` does not hold for
    /// Before both: of the layers' linears; automatic: none is named.
    spec::WeightType linears = spec::WeightType::automatic;
};

struct WrittenModel {
    std::size_t tensor_bytes = 0, files = 0;
    std::vector<std::string> unknown_to_transformers;  ///< what it cannot load of the folder, and why; empty: nothing
};

/// The type that `automatic` means for this model, and itself for any other.
spec::WeightType resolve_weight_type(spec::WeightType type, const spec::ModelSpec& spec);
/// What config.json calls it: the type of all tensors that are not quantised.
spec::DType storage_dtype(spec::WeightType type, const spec::ModelSpec& spec);

/// Every value is rounded once, from fp32 to what is stored. In addition to the mapped files, at most a slab of 8 MiB
/// of one tensor and a few rows for each thread are held (with nf4 the tensor's codes instead of the slab). Where nf4
/// is written, an NF4 base's matrices without adapter are copied unchanged. Input Error, naming the tensor, for a value
/// that is not finite or too large for the type; runtime Error when the disk is full (before anything is written, where
/// that can be determined) or fails; Interrupted when a signal asked to stop.
WrittenModel write_model(const MergedModel& model, const std::filesystem::path& folder,
                         const ModelWriteOptions& options);

}  // namespace unsloth::formats
