// One decoder layer: its forward, and its backward in the reverse order of the same numbered steps.
#pragma once

#include <memory>

#include "unsloth/model/activations.h"
#include "unsloth/model/context_parallel.h"
#include "unsloth/model/linear_group.h"
#include "unsloth/model/pass_counts.h"
#include "unsloth/spec/keep.h"

namespace unsloth::model {

/// Attention of a layer of this model: heads, scale and the layer's window.
ops::AttentionShape attention_shape(const spec::ModelSpec& spec, int64_t layer);

/// Generation: the tokens' keys and values join those of earlier ones in the cache. Rows that resume from the cache
/// come first, then those that begin with this pass, TokenInputs::segments.
struct DecodeBatch {
    const std::vector<ops::KvCache>* caches;  ///< one a layer
    at::Tensor slots_T;                       ///< int32: each token's slot in the cache
    ops::PagedRows going_on;
    /// Of a model with gated delta nets: all rows, and which place has each one's states (DeltaKept).
    ops::Segments all;
    std::vector<int32_t> states;
    at::Tensor states_S;  ///< int32, the same on the device
};

/// Of gated delta nets whose sequences context-parallel ranks share (model/delta_chain.h).
struct DeltaChain {
    ops::Segments chunks;                    ///< two of each sequence, some without tokens
    std::vector<int32_t> sequence_of, own;   ///< places of states: each chunk's sequence; its own
    at::Tensor sequence_of_S, own_S;         ///< int32, the same on the device
    at::Tensor ends_n, before_n, places_nP;  ///< int32: ChainIndex's
    int64_t rows = 0;                        ///< the same
    int most_chunks = 0;                     ///< of a sequence, with tokens on any rank
    int64_t sequences() const { return chunks.count() / 2; }
};

struct ImageSight;  // model/tile_tower.h

/// What all layers of one micro-batch share.
struct TokenInputs {
    std::vector<RopeTable> ropes;  ///< by ModelSpec::ropes
    ops::Segments segments;
    at::Tensor key_tokens_K;     ///< int32: the tokens that are segments' keys; undefined: each is one key
    at::Tensor key_places_TP;    ///< int32: each token's position among them, or -1; of training
    int64_t all_keys = 0;        ///< number of keys, of all ranks that share the rows; 0: of this rank's tokens
    at::Tensor row_T, offset_T;  ///< for dropout; may be undefined
    at::Tensor adapter_T;        ///< int32: which of several adapters the token has, -1: none; undefined: there is one
    std::shared_ptr<const ImageSight> sight;     ///< of layers that cross; nullptr: there are no images for them
    at::Tensor features_full;                    ///< [S, D + R]: what they see, with the columns of a layer's adapters
    at::Tensor dfeatures_SD;                     ///< their gradient; undefined where the tower is frozen
    at::Tensor attends_T, adds_T;                ///< fp32, of the sight
    at::Tensor feature_row_S, feature_offset_S;  ///< int32, for dropout of the features; may be undefined
    at::Tensor feature_adapter_S;                ///< as adapter_T, of features
    std::shared_ptr<const DecodeBatch> cached;   ///< nullptr: every key is of this pass
    std::shared_ptr<const DeltaChain> chain;     ///< nullptr: sequences are whole, or there is no such net
};

struct LayerContext {
    const spec::ModelSpec& spec;
    GroupContext group;
    const TokenInputs& tokens;
    const Scratch& scratch;
    PassCounts& counts;
    const ContextParallel& cp;
    int layer() const { return group.layer; }
};

/// x_next_tD = the residual stream after the layer; `saved` (with saved.x_tD given) receives what the backward needs.
/// With fewer `steps` only those run, from what `saved` already holds; without `down`, x_next_tD is not needed.
void layer_forward(const LayerContext& c, const weights::LayerWeights& w, const LayerSaved& saved,
                   const at::Tensor& x_next_tD, spec::LayerSteps steps = {});

/// Turns the gradient in scratch.g_full (columns 0..D) from that of the layer's output into that of its input, and adds
/// the layer's parameter gradients. What was not saved is recomputed first. `input_gradient` false: no parameter below
/// is trained, and the gradient of the input is not computed.
void layer_backward(const LayerContext& c, const weights::LayerWeights& w, const LayerSaved& saved, spec::Keep keep,
                    bool input_gradient);

}  // namespace unsloth::model
