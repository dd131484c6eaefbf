// The request that a configuration's model.* and lora.* describe, and the sizes that a batch asks for.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "unsloth/config/config.h"
#include "unsloth/config/load.h"
#include "unsloth/data/loader.h"
#include "unsloth/model/loader.h"

namespace unsloth::placement {

/// What the configuration or the adapter says of positions; empty: what config.json says. usage Error where the two say
/// different things.
std::string rope_scaling_of(const config::Config& config);

/// The adapters that lora.* asks for.
spec::LoraSpec lora_spec(const config::LoadedConfig& loaded);

/// The request that model.* and lora.* describe; `sizes` still to be set. Logs what an adapter folder decides, and is a
/// usage Error where a given lora option contradicts it. `kernels` nullptr: the table that hardware.kernels names.
model::LoadRequest load_request(const config::LoadedConfig& loaded, at::Device device, bool trains,
                                std::shared_ptr<const spec::KernelTable> kernels = nullptr);

/// What passes over batches within these limits are planned for.
void size_for(model::ActivationSizes& sizes, const data::BatchLimits& limits);

/// Rows of logits that the lm_head makes at a time.
int64_t head_chunk_rows(const spec::ModelSpec& spec, at::ScalarType dtype, int64_t rows);

/// Whether distill.teacher is a file of what a model said.
bool teacher_is_file(const config::Config& config);

/// Of the keys and values that generation keeps.
struct CacheSize {
    int64_t tokens = 0;      ///< of all sequences; 0: none are kept
    int64_t context = 0;     ///< of one
    bool shrinks = false;    ///< to what is free, but not below `context`
    bool in_pieces = false;  ///< prompts may go in so: passes shrink first, but not below 2048 tokens or the sequences
    bool in_8_bit = false;   ///< keys and values
};
/// Room for `rows` sequences of up to `context` tokens; where that is more than is free, for fewer.
CacheSize cache_for(int64_t rows, int64_t context);
/// Makes a plan for passes alone smaller until it takes no more than `bytes` of the device, or cannot be. It shrinks
/// what costs least first: passes of prompts, then snapshots of states, then the cache down to a sequence, then
/// adapters that stay next to tiles.
void shrink(model::ModelPlan& plan, const CacheSize& cache, int64_t bytes);

}  // namespace unsloth::placement
