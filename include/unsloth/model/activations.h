// The activation, gradient and scratch buffers of a micro-batch, from the plan, cut to the number of tokens at hand.
//
// Legend: T tokens, t of them whose residual stream this rank has (model/tensor_parallel.h; alone: all), D hidden, F
// intermediate, N q+k+v width, H heads, d head_dim, R a group's rank. Buffers that enter a product with adapters carry
// R more columns ("_full"): [x | x·Aᵀ] or [dy | dy·sB]; their row stride is row_stride() of that. The MLP's outputs
// that are not saved have a tile's rows (spec::RunPlan::row_tile).
#pragma once

#include <algorithm>
#include <deque>
#include <vector>

#include "unsloth/memory/plan.h"
#include "unsloth/ops/gemm_coded.h"
#include "unsloth/ops/paged_attention.h"
#include "unsloth/spec/coded_products.h"
#include "unsloth/spec/model_spec.h"
#include "unsloth/spec/run_plan.h"
#include "unsloth/weights/layout.h"

namespace unsloth::model {

using weights::Group;

/// Of a layer with experts (ops/experts.h): E of them, of which each token passes k; n = T k rows in expert order,
/// which are k in the place of each token's one.
struct ExpertsSaved {
    at::Tensor ids_Tk, weights_Tk;            ///< what the router chose
    at::Tensor tokens_Tk, places_Tk, ends_E;  ///< the rows' order: ops::ExpertOrder
    at::Tensor router_TE;                     ///< fp32: logits, then probabilities where the backward pass needs them
    at::Tensor gate_up_T;                     ///< [T, k 2F]; the backward pass turns it into its gradient
    at::Tensor u_gate_up_T, u_down_T;         ///< [T, k R]: x·Aᵀ of their adapters
};

/// Elements from one of the experts' rows to the next, where r more columns are an adapter's.
inline int64_t expert_stride(int64_t columns, int64_t r) {
    return r > 0 ? weights::row_stride(columns + r) : columns;
}

/// Of a layer that crosses: keys and values of S image features, the keys normed, and what these were before.
struct CrossSaved {
    at::Tensor kv_SN, k_raw_SN, rstd_k_SK;
};

/// Of a gated delta net: what sequences resume from (ops::KeptStates), in generation or where ranks share them.
struct DeltaKept {
    at::Tensor inputs_NwC, states_NHkv;
};
/// What such ranks pass to each other (model/delta_chain.h), flat: S sequences, of which a rank has G rows next to
/// chunks.
struct DeltaPassed {
    at::Tensor states_NHkv;          ///< fp32, N = S + 1: of the sequences so far, or their gradients
    at::Tensor own_GC, all_rows_GC;  ///< inputs of the convolution, or gradients, of this rank and of all
    at::Tensor drows_GC, sums_GC;    ///< gradients of the rows before its chunks; what its own rows get
};

/// What a layer's forward leaves for its backward. What a layer does not keep (spec/keep.h) is one buffer that all
/// layers share.
struct LayerSaved {
    at::Tensor x_tD;  ///< the layer's input: the residual stream before it. Of a layer of another rank it is there
                      ///< where this rank sends it
    at::Tensor rstd1_t;
    at::Tensor u_qkv_TR;   ///< x·Aᵀ of the qkv group
    at::Tensor qk_raw_TN;  ///< q and k before their norm, of a layer that crosses q; undefined without norms
    at::Tensor rstd_q_TH, rstd_k_TK;
    at::Tensor qkv_TN;      ///< after RoPE; of a layer that crosses q, of a gated delta net what its products gave
    at::Tensor ungated_TN;  ///< what o_full is of, before attention's gate or a delta net's norm; else undefined
    CrossSaved cross;       ///< undefined in other layers
    DeltaKept kept;         ///< of generation, whose last place has no sequence; undefined in other layers
    DeltaKept chunks;       ///< before each chunk of sequences that ranks share; undefined where they are whole
    at::Tensor lse;         ///< opaque to all but attention
    at::Tensor o_full;      ///< [T, Nq + R]: attention's output and its x·Aᵀ
    at::Tensor mid_tD;      ///< the residual stream after attention
    at::Tensor rstd2_t;
    at::Tensor u_gate_up_TR;
    at::Tensor gate_up_full;  ///< [T, 2F + R], or of a tile's rows; the backward pass turns it into its gradient
    at::Tensor u_down_TR;
    at::Tensor branch_o_tD, branch_down_tD;  ///< what a norm is of before it is added to the stream; else undefined
    at::Tensor rstd_o_t, rstd_down_t;
    ExpertsSaved experts;                    ///< undefined in a layer without
    at::Tensor z_qkv_TN, z_o_tD, z_down_tD;  ///< DoRA: products before their scale; gate and up are left unscaled above
};

/// Of a micro-batch whose experts' loads are balanced: their sums over its layers, the loss, and its gradient by a
/// token's probabilities (ops::Balance); else undefined.
struct BalanceBuffers {
    at::Tensor sums_2E, loss, slopes_E;
};

/// Buffers that no layer keeps. Where 8-bit quantized values suffice (model/linear_group.h), rows are not written
/// except for their adapters' columns.
struct Scratch {
    at::Tensor h_full;     ///< [T, max(D, Nq) + R]: norm outputs; in the backward pass dh and d(attention output)
    at::Tensor act_full;   ///< [tile, F + R]: SwiGLU's output, then its gradient; of experts [T, k (F + R)]
    at::Tensor g_full;     ///< [t, D + R]: gradient of the residual stream
    at::Tensor dz_full;    ///< [tile, D + R]: of a product that was added to it, before DoRA's scale, a norm or a
                           ///< multiplier, or on all ranks' rows; undefined where that is g_full
    at::Tensor dqkv_full;  ///< [T, N + R]
    at::Tensor keys_KN, dkeys_KN;  ///< keys and values of all segments, and gradients; undefined where all are own
    at::Tensor all_keys;           ///< flat: those of all ranks of a row, or gradients; undefined where rows are whole
    at::Tensor dropped;            ///< flat, of the largest input; undefined without dropout
    ops::CodedMatrix codes;  ///< flat, of the largest input of a base product; undefined where no product reads codes
    /// Experts: their rows [T, k (D + R)], or of the gradient of what they add; what each gives, [T, k max(D, F)], or
    /// the activation's gradient; the gradients of their adapters' u [T, k R]; those of a token's weights, and of the
    /// router's logits in the compute type.
    at::Tensor rows_T, out_T, v_T, dweights_Tk, drouter_TE;
    at::Tensor dweights_TE;  ///< fp32: of experts with biases, what these add to the gradients of any expert's weight
    BalanceBuffers balance;
    /// Of layers that cross, fp32 [T]: what each token gets of what attention and the MLP add. And the gradients of
    /// keys and values of image features, [S, N + R].
    at::Tensor attention_gate_T, mlp_gate_T, dkv_full;
    /// Of gated delta nets: the convolution's output [T, C], its gradient, and fp32 states (ops/gated_delta.h); flat.
    at::Tensor convolved_TC, dconvolved_TC, states;
    DeltaPassed passed;  ///< undefined where rows are whole
};

/// The lm_head's buffers; n rows have a target.
struct HeadBuffers {
    at::Tensor x_TD;               ///< all ranks' rows of the last layer's output; undefined with one
    at::Tensor x_nD, h_nD, dx_nD;  ///< gathered residual rows, normalised (later dh), gradient
    at::Tensor rstd_n, loss_n;     ///< fp32
    at::Tensor weight_n;           ///< fp32, of the rows' gradients; undefined where they have none
    at::Tensor logits_CV;          ///< one chunk of rows; of the rank's slice of the vocabulary
    at::Tensor dlogits_CV;         ///< its gradient in the compute type; undefined where that takes its place
    at::Tensor statistics;         ///< fp32: of a chunk's rows in each slice (ops/cross_entropy.h); undefined with one
    at::Tensor lm_head_VD;         ///< dequantized; undefined where its GEMMs read it as stored
    ops::CodedMatrix codes;        ///< flat: of a chunk's h, then of its logits' gradient; undefined without
};

/// Additional buffers of a tower's backward pass, which recomputes a block from its input. Flat, as VisionBuffers.
struct TowerBackward {
    /// [depth + 1, patches of a micro-batch, C]: of the blocks, and the last one's output. With tiles the global
    /// blocks' and the last one's output follow, and rows are those of a micro-batch's images.
    at::Tensor inputs;
    at::Tensor dfeatures;  ///< with tiles [rows, D]: the features' gradient, which layers that cross add to
    at::Tensor da;         ///< with tiles fp32: of the projector's A, in its order of columns here
    at::Tensor g;          ///< the residual stream's gradient
    at::Tensor middle;     ///< the residual stream before a block's MLP
    at::Tensor normed2;    ///< of that
    at::Tensor qkv, dqkv;  ///< [P, 3 C] each
    at::Tensor out, lse;   ///< attention's; fp32 [H, P]
    at::Tensor act, dact;  ///< of an MLP, or a merger
    at::Tensor dh;         ///< of a norm's output
    at::Tensor rstd1;      ///< fp32, of the first RMSNorm; VisionBuffers::rstd is the second's
};

/// What a tower computes with, some images at a time: P patches of C values, up to F in its MLPs. All flat: views are
/// of the image at hand. Undefined where no images are planned for.
struct VisionBuffers {
    at::Tensor bytes;                ///< uint8: the patches' pixels
    at::Tensor x, h, wide;           ///< residual stream; norm and attention outputs; qkv, and an MLP's inner values
    at::Tensor rstd;                 ///< fp32, of RMSNorm
    at::Tensor index, share;         ///< int32 and fp32 [P, 4]: learned positions; undefined without
    at::Tensor positions, cos, sin;  ///< int32 [P, 2], fp32 [P, d / 2]: of the rotation
    at::Tensor tokens;               ///< int32: the image's tokens in the tower's order
    at::Tensor
        stacked;  ///< of a tower over tiles: outputs of its last layer and of the selected earlier ones, concatenated
    /// [most image tokens, D] of a micro-batch; with tiles [most rows, D + R]. Backward their gradient is there.
    at::Tensor features;
    std::vector<at::Tensor> deepstack;  ///< the same for VisionSpec::deepstack; each micro-batch's own
    at::Tensor u, v;                    ///< [P, R]: an adapter's inner values, and their gradient; undefined without
    TowerBackward backward;             ///< undefined where the tower is frozen
};

/// How one of ModelSpec::ropes rotates a micro-batch's tokens.
struct RopeTable {
    at::Tensor inv_freq_p;      ///< fp32 [p]: the inverse frequencies, of half the values of a head that turn
    at::Tensor axis_p;          ///< int32 [p]: the axis that each turns by; undefined without M-RoPE
    at::Tensor cos_Tp, sin_Tp;  ///< fp32 [T, p]
    /// Of queries, which are multiplied by query_T, fp32 [T], too; undefined: they turn as keys do.
    at::Tensor query_cos_Tp, query_sin_Tp, query_T;
};

/// One micro-batch's tokens on the device.
struct TokenBuffers {
    at::Tensor ids_T, positions_T, row_T, offset_T;  ///< int32; the last two undefined without dropout and noise
    at::Tensor axes;                                 ///< int32, flat [T, 3]; undefined without M-RoPE
    at::Tensor feature_row_S, feature_offset_S;    ///< int32: as row_T and offset_T, of image features for such layers
    at::Tensor attends_T, adds_T;                  ///< fp32: ImageSight's; undefined where no layer crosses to images
    at::Tensor noise_T;                            ///< fp32: its magnitude; undefined without noise
    at::Tensor target_index_n, target_ids_n;       ///< int32, of the most rows with a target
    at::Tensor target_places;                      ///< int32 [T copies]: where each token is among them, or -1
    at::Tensor order_t, unique_u, starts_u1;       ///< int32; for a trained embedding, the last two of the most ids
    at::Tensor q_offsets;                          ///< int32, of the most segments + 1
    at::Tensor k_offsets, key_tokens, key_places;  ///< int32: as these two, of keys; undefined where all are own
    at::Tensor adapter_T;                          ///< int32; undefined without several adapters
    at::Tensor feature_adapter_S;                  ///< likewise of image features
    at::Tensor slots_T, lengths_S, pages;          ///< int32, of generation: ops::PagedRows; undefined without a cache
    at::Tensor states_S;                           ///< int32, of generation: the places of states
    at::Tensor chunk_offsets, chunk_sequences, chunk_places;  ///< int32: DeltaChain's; undefined where rows are whole
    at::Tensor chunk_ends, rows_before, places_of_ends;       ///< the same
    std::vector<RopeTable> ropes;                             ///< by ModelSpec::ropes
};

/// A buffer that an objective has in each micro-batch, flat.
struct ObjectiveBuffer {
    enum class Per : uint8_t { target, segment, pair };
    enum class Life : uint8_t {
        head,   ///< while the head runs: the micro-batches in flight share it
        input,  ///< uploaded with the batch, each micro-batch's own
    };
    const char* name;  ///< of the plan
    Life life;
    at::ScalarType dtype;
    Per per;
    int64_t times = 1, more = 0;  ///< elements: times as many as the most targets, segments or pairs, and `more`
};
struct ObjectiveNeeds {
    bool weighs = false;  ///< gives rows of the head weights (HeadBuffers::weight_n)
    /// Logits are fp32 in passes of training, scores and generation: 16 bits round them coarser than a sampler and a
    /// trainer may differ. lm_head's products then stay in the compute type.
    bool fp32_logits = false;
    std::vector<ObjectiveBuffer> buffers;
};

struct ActivationSizes {
    int64_t tokens = 0;           ///< most tokens a micro-batch may have
    int64_t segments = 0;         ///< most segments
    int64_t keys = 0;             ///< most keys of all segments, where some are not their own tokens; 0: all are
    int64_t all_keys = 0;         ///< most that the ranks which share a row have together; 0: rows are whole
    int64_t sequences = 0;        ///< most that these ranks share; 0: rows are whole
    int64_t context_ranks = 1;    ///< that share them
    int64_t longest = 0;          ///< longest segment
    int64_t copies = 2;           ///< most segments that share a token
    int64_t head_rows = 0;        ///< most rows with a target
    int64_t cache_tokens = 0;     ///< of all sequences that generation continues, in whole pages
    bool cache_in_8_bit = false;  ///< their keys and values (ops/kv_cache.h)
    int64_t context = 0;          ///< most of them that one sequence has; 0: all (longest_context)
    int64_t decoding_rows =
        0;                  ///< most sequences that generation continues at a time; 0: as segments and head_rows allow
    int64_t snapshots = 0;  ///< states of gated delta nets that sequences begin from, next to the sequences' own
    int64_t patches = 0;    ///< that a tower sees at a time, at least the largest image's; 0: rows have none
    int64_t image_tokens = 0;  ///< most of a micro-batch that are images'
    int64_t adapters = 0;      ///< of generation: that tokens choose among; 0: the only one, if any, is everybody's
    bool training = true;      ///< backward buffers too
    bool dropout = false;
    bool noise = false;                ///< on the embeddings
    bool balances_experts = false;     ///< by a loss of their loads
    ObjectiveNeeds objective;          ///< none: cross-entropy of the targets
    spec::CodedProducts coded{};       ///< products that read codes of their inputs
    spec::CodedProducts head_coded{};  ///< those by lm_head
    bool expands_head = false;         ///< lm_head is not stored as its GEMMs read it
    bool trains_embedding = false;
    int64_t tower_rank = 0;  ///< columns of the widest adapter of a tower's linears; 0: there is none
    bool trains_tower = false;
    bool deterministic = false;

    /// Of a model whose layers cross: rows of the most image features of a micro-batch.
    int64_t image_rows(const spec::ModelSpec& spec) const {
        return patches > 0 && spec.vision && spec.vision->tiles ? image_tokens * spec.vision->tiles->features() : 0;
    }
    int64_t chunks() const { return 2 * sequences; }  ///< of them here, with tokens or without
    /// What a gated delta net takes: rows of generation may be more.
    int64_t delta_segments() const { return segments > chunks() ? segments : chunks(); }
    int64_t longest_context() const { return context > 0 ? context : cache_tokens; }
    /// Of generation with gated delta nets: places of states (DeltaKept), but for the last one, which has no sequence.
    int64_t state_places() const {
        return (decoding_rows > 0 ? decoding_rows : std::min(segments, head_rows)) + snapshots;
    }
};

/// Whether the gradient of a router's logits needs its probabilities, and not only a token's weights. `balances`: a
/// loss of the experts' loads is added.
inline bool needs_probabilities(const spec::ExpertsSpec& experts, bool balances) {
    return experts.weights == spec::RouterWeights::of_all || balances;
}

/// Bytes of a place of DeltaKept, over all layers; 0 without gated delta nets.
int64_t state_bytes(const spec::ModelSpec& spec, at::ScalarType dtype);

/// What an offloading run moves of a layer, whole rows of the tokens at hand.
struct MovedTensor {
    at::Tensor device, host;
};
struct MovedLayer {
    std::deque<MovedTensor> tensors;  ///< they stay where they are: buffers know them by address
    ops::CodedMatrix input;           ///< codes of the layer's input, which are moved instead; undefined: they are not
};

/// The tensors of one micro-batch.
struct ActivationTensors {
    explicit ActivationTensors(int64_t num_layers)
        : layers(static_cast<std::size_t>(num_layers)), moved(layers.size()), caches(layers.size()) {}
    std::vector<LayerSaved> layers;
    std::vector<MovedLayer> moved;
    at::Tensor output_tD;  ///< the residual stream after the last layer
    Scratch scratch;
    HeadBuffers head;
    TokenBuffers tokens;
    VisionBuffers vision;
    std::vector<at::Tensor> objective;  ///< as ObjectiveNeeds::buffers
    std::vector<ops::KvCache> caches;
};

/// The tensors of one of the micro-batches in flight, cut to its tokens. What outlives a layer is its own; all of them
/// share the memory of scratch and of recomputed activations.
class Activations {
  public:
    /// Submits the buffers of all micro-batches in flight; `run` has one entry a layer. Where tensor-parallel ranks do
    /// not divide the tokens, for as many more (MicroBatch::upload).
    static void plan(const spec::ModelSpec& spec, const weights::LayerLayout& layout, const ActivationSizes& sizes,
                     const spec::RunPlan& run, at::ScalarType dtype, at::Device device, memory::Plan& plan,
                     memory::Plan& host_plan);
    /// `host`: the arena of host_plan; nullptr where that is empty. `micro`: which of those in flight.
    Activations(const spec::ModelSpec& spec, const weights::LayerLayout& layout, const ActivationSizes& sizes,
                const spec::RunPlan& run, at::ScalarType dtype, const memory::Arena& arena, const memory::Arena* host,
                int64_t micro = 0);
    Activations(const Activations&) = delete;
    Activations& operator=(const Activations&) = delete;

    /// Cuts every tensor with a row a token to `tokens` tokens, of the tensor-parallel ranks a multiple (cheap when the
    /// number did not change).
    void resize(int64_t tokens);
    const LayerSaved& layer(int64_t index) const { return tensors_.layers.at(static_cast<std::size_t>(index)); }
    const MovedLayer& moved(int64_t layer) const { return tensors_.moved.at(static_cast<std::size_t>(layer)); }
    /// The residual stream after a layer: the next one's input.
    const at::Tensor& output_of(int64_t index) const {
        const bool last = index + 1 == static_cast<int64_t>(tensors_.layers.size());
        return last ? tensors_.output_tD : layer(index + 1).x_tD;
    }
    const at::Tensor& output_tD() const { return tensors_.output_tD; }
    const Scratch& scratch() const { return tensors_.scratch; }
    const HeadBuffers& head() const { return tensors_.head; }
    const TokenBuffers& tokens() const { return tensors_.tokens; }
    const VisionBuffers& vision() const { return tensors_.vision; }
    /// Of the objective's buffers the one of that number, flat and whole.
    const at::Tensor& objective(std::size_t buffer) const { return tensors_.objective.at(buffer); }
    /// One a layer.
    const std::vector<ops::KvCache>& caches() const { return tensors_.caches; }
    const ActivationSizes& sizes() const { return sizes_; }
    const spec::RunPlan& run() const { return run_; }
    const at::Tensor& workspace() const { return workspace_; }

  private:
    ActivationSizes sizes_;
    spec::RunPlan run_;
    ActivationTensors tensors_;
    at::Tensor workspace_;
    struct Cut {
        at::Tensor* tensor;
        at::Tensor whole;
        int ranks;  ///< that have a slice each
    };
    std::vector<Cut> cuts_;  ///< the tensors with a row a token
    int64_t current_tokens_ = -1;
};

}  // namespace unsloth::model
