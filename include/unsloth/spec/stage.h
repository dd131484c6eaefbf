// Pipeline parallel: which of a model's layers each of the ranks has that pass micro-batches on to each other (GPipe,
// arXiv 1811.06965). A rank may have several ranges of layers (interleaved, arXiv 2104.04473), so that each micro-batch
// comes by more than once.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "unsloth/spec/tensor_table.h"

namespace unsloth::spec {

/// Layers [begin, end).
struct LayerRange {
    int begin = 0, end = 0;
    int size() const { return end - begin; }
    bool has(int64_t layer) const { return layer >= begin && layer < end; }
    bool operator==(const LayerRange&) const = default;
};

/// "0-16 16-32", as checkpoints have it.
std::string layer_ranges_text(const std::vector<LayerRange>& ranges);
/// What layer_ranges_text wrote: the ranges before anything else.
std::vector<LayerRange> parse_layer_ranges(const std::string& text);

/// One of `size` ranks that have the layers in turn: of `chunks`, in the order of the network, number c is rank c mod
/// size's. The first rank has the embeddings, the last one the final norm and lm_head.
struct Stage {
    int rank = 0, size = 1;
    std::vector<LayerRange> chunks;  ///< of all ranks; empty where one rank has all

    bool alone() const { return size == 1; }
    bool first() const { return rank == 0; }
    bool last() const { return rank == size - 1; }
    int chunks_each() const { return static_cast<int>(chunks.size()) / size; }
    /// This rank's, by number from 0.
    const LayerRange& chunk(int number) const { return chunks.at(static_cast<std::size_t>(number * size + rank)); }
    bool has(int64_t layer) const {
        if (alone()) return true;
        for (int number = 0; number < chunks_each(); ++number)
            if (chunk(number).has(layer)) return true;
        return false;
    }
    /// Whether the layer's input comes from, or goes to, another rank.
    bool is_border(int64_t layer) const {
        return !alone() && std::any_of(chunks.begin(), chunks.end(), [&](const LayerRange& range) {
            return range.begin == layer && range.begin > 0;
        });
    }
    /// Whether this rank has a tensor of the model; `tied`: the embeddings are lm_head, too.
    bool holds(TensorRole role, int64_t layer, bool tied) const {
        if (role == TensorRole::embed_tokens) return first() || (tied && last());
        if (role == TensorRole::lm_head || role == TensorRole::final_norm) return last();
        return has(layer);
    }
    /// Of `num_layers`.
    std::vector<int> layers(int64_t num_layers) const {
        std::vector<int> own;
        for (int layer = 0; layer < static_cast<int>(num_layers); ++layer)
            if (has(layer)) own.push_back(layer);
        return own;
    }
    bool operator==(const Stage&) const = default;
};

}  // namespace unsloth::spec
