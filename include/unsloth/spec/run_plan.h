// How a run is carried out, layer by layer: choices that change its memory and its time, but no bit of its results,
// except row_tile (other sums round otherwise) and inputs_in_fp8 (recomputation starts from quantized values).
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "unsloth/spec/keep.h"

namespace unsloth::spec {

/// peer: by layer on the device of one of the ranks that share the model.
enum class Place : uint8_t { device, host, disk, peer };

/// How one layer runs.
struct LayerPlan {
    Keep keep = Keep::everything;
    Place activations_at = Place::device;  ///< where it keeps activations between its passes; host: pinned memory
    bool cached = false;  ///< on a GPU, 4-bit weights are dequantized once, while loading, instead of in every pass
    Place weights_at = Place::device;  ///< where its frozen linears are; elsewhere they are copied ahead of use
    bool operator==(const LayerPlan&) const = default;
};

/// "none", "mlp", "attention", "full", with "+offload" where it applies: the option's words.
inline std::string name_of(const LayerPlan& layer) {
    const char* const names[] = {"none", "mlp", "attention", "full"};
    return std::string(names[static_cast<int>(layer.keep)]) + (layer.activations_at == Place::host ? "+offload" : "");
}

struct RunPlan {
    std::vector<LayerPlan> layers;  ///< one a layer, or one for all. Those on the host are the lowest ones
    int64_t head_tile = 1;          ///< rows of logits at a time
    int64_t row_tile = 0;           ///< tokens that pass through a layer's MLP at a time; 0: all
    bool inputs_in_fp8 = false;     ///< those that wait on the host are e4m3 codes there, with a scale for each token
    int64_t in_flight = 1;          ///< micro-batches between their forward and their backward pass at a time
    int64_t pass_rows = 0;          ///< rows of a micro-batch (training.auto_micro_batch auto); 0: as the options say
    bool operator==(const RunPlan&) const = default;

    /// row_tile of a micro-batch of `tokens` tokens.
    int64_t tile_of(int64_t tokens) const { return row_tile > 0 ? std::min(row_tile, tokens) : tokens; }
    /// How many layers, from the lowest, have what they keep on the host.
    int64_t layers_on_host() const {
        const auto end = std::find_if(layers.begin(), layers.end(),
                                      [](const LayerPlan& layer) { return layer.activations_at != Place::host; });
        return end - layers.begin();
    }
};

/// What a plan takes.
struct MemoryNeed {
    int64_t device = 0;  ///< bytes, never less than the allocator's peak; on a CPU the host's too
    int64_t host = 0;    ///< bytes of pinned host memory
    int64_t there = 0;   ///< of these, what other processes hold already: the same bytes of the same base
};

}  // namespace unsloth::spec
