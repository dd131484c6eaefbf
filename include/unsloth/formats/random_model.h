// Writes a model folder with random weights: what trials of speed, memory and loading need, and runs from scratch begin
// with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

#include "unsloth/spec/model_spec.h"

namespace unsloth::formats {

struct RandomModel {
    spec::ModelSpec spec;  ///< `dtype` is that of the weights that are not quantised
    bool nf4 = false;      ///< the linears of the layers in bitsandbytes' NF4 with double quantisation
    uint64_t seed = 0;
    std::string original_config;  ///< the text of the config.json that `spec` was read from; empty: none
    bool mxfp4 = false;           ///< experts' matrices in MXFP4, where the family has them so; not with nf4
};

/// Shards, index and config.json in `folder`, which exists. Norms are 1, biases 0, matrices normal with transformers'
/// standard deviation of 0.02. Of NF4 matrices the codes are drawn, not quantised: NF4's sixteen levels are about
/// equally likely for normal values (Dettmers et al., "QLoRA", 2023). MXFP4's are uniform. Input Error where a family
/// has no weights in MXFP4. Every value is named by (seed, tensor, element):
/// the files do not depend on the number of threads. Returns the bytes of all tensors. Errors as write_model's.
std::size_t write_random_model(const RandomModel& model, const std::filesystem::path& folder);

}  // namespace unsloth::formats
