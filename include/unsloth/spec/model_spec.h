// What a decoder-only model of the Llama family is, apart from its weights.
#pragma once

#include <algorithm>
#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "unsloth/spec/dtype.h"
#include "unsloth/spec/gate_activation.h"
#include "unsloth/spec/router_weights.h"
#include "unsloth/spec/vision_spec.h"

namespace unsloth::spec {

/// What a matrix of a decoder layer computes.
/// Of experts an adapter has all of a layer's as one: experts_gate_up, experts_down; these name no matrix of the base.
/// delta_qkv to delta_out are those of a gated delta net (LayerSpec::delta).
enum class Projection : uint8_t {
    q,
    k,
    v,
    o,
    gate,
    up,
    down,
    qkv,
    gate_up,
    experts_gate_up,
    experts_down,
    delta_qkv,
    delta_z,
    delta_b,
    delta_a,
    delta_out
};
inline constexpr int projection_count = 16;
inline constexpr std::array<std::string_view, projection_count> projection_names = {"q_proj",
                                                                                    "k_proj",
                                                                                    "v_proj",
                                                                                    "o_proj",
                                                                                    "gate_proj",
                                                                                    "up_proj",
                                                                                    "down_proj",
                                                                                    "qkv_proj",
                                                                                    "gate_up_proj",
                                                                                    "experts.gate_up_proj",
                                                                                    "experts.down_proj",
                                                                                    "in_proj_qkv",
                                                                                    "in_proj_z",
                                                                                    "in_proj_b",
                                                                                    "in_proj_a",
                                                                                    "out_proj"};
/// The names of a layer whose matrices are apart; the others are of several as one, their rows in this order.
inline constexpr int separate_projections = 7;
/// "self_attn.q_proj", …, "mlp.down_proj": the path below model.layers.{i}.
inline constexpr std::array<std::string_view, projection_count> projection_paths = {
    "self_attn.q_proj",      "self_attn.k_proj",
    "self_attn.v_proj",      "self_attn.o_proj",
    "mlp.gate_proj",         "mlp.up_proj",
    "mlp.down_proj",         "self_attn.qkv_proj",
    "mlp.gate_up_proj",      "mlp.experts.gate_up_proj",
    "mlp.experts.down_proj", "linear_attn.in_proj_qkv",
    "linear_attn.in_proj_z", "linear_attn.in_proj_b",
    "linear_attn.in_proj_a", "linear_attn.out_proj"};
constexpr std::string_view name_of(Projection p) {
    return projection_names[static_cast<std::size_t>(p)];
}
constexpr std::string_view path_of(Projection p) {
    return projection_paths[static_cast<std::size_t>(p)];
}

/// The matrix that has a separate projection's rows where a model has them as one; o and down: always their own.
constexpr Projection fused_of(Projection p) {
    return p < Projection::o ? Projection::qkv : p == Projection::gate || p == Projection::up ? Projection::gate_up : p;
}
/// The first of the projections whose rows a matrix has: of a separate one itself.
constexpr Projection first_part(Projection p) {
    return p == Projection::qkv ? Projection::q : p == Projection::gate_up ? Projection::gate : p;
}

/// Whether a projection is of a gated delta net, which a layer has in the place of attention.
constexpr bool is_of_delta(Projection p) {
    return p >= Projection::delta_qkv;
}
/// The two that say how much a gated delta net forgets and writes: they are a few rows, and stay as they are.
constexpr bool has_no_adapter(Projection p) {
    return p == Projection::delta_b || p == Projection::delta_a;
}
/// Whether a projection is of a layer's MLP, and not of its attention.
constexpr bool is_of_mlp(Projection p) {
    return p >= Projection::gate && p != Projection::qkv && !is_of_delta(p);
}
constexpr bool is_of_experts(Projection p) {
    return p == Projection::experts_gate_up || p == Projection::experts_down;
}

/// A matrix of a decoder layer, in the whole model.
struct LinearId {
    int layer = -1;
    Projection projection = Projection::q;
    int expert = -1;  ///< of an MLP of several experts; -1: of no expert
    auto operator<=>(const LinearId&) const = default;
};
/// As path_of(Projection), or "mlp.experts.{e}.gate_proj", …; of a layer that `crosses` "cross_attn.q_proj", …
std::string path_of(const LinearId& id, bool crosses = false);

/// Rotary position embedding as transformers' modeling_rope_utils computes it.
struct RopeSpec {
    enum class Type { standard, linear, dynamic, yarn, llama3, longrope };
    Type type = Type::standard;
    double theta = 10000.0;
    double factor = 1.0;
    int64_t original_max_position_embeddings = 0;  ///< 0: the model's max_position_embeddings
    // llama3
    double low_freq_factor = 1.0;
    double high_freq_factor = 4.0;
    // yarn, and of these attention_factor for longrope
    std::optional<double> attention_factor, mscale, mscale_all_dim;
    double beta_fast = 32.0;
    double beta_slow = 1.0;
    bool truncate = true;
    /// longrope: each frequency is divided by its factor, of the second list where a sequence is longer than the
    /// original length; rotary_dim / 2 values each.
    std::vector<double> short_factor, long_factor;
    double rotated_share = 1.0;  ///< of a head's values, from the first on; the others keep their values
    /// Queries are multiplied by 1 + query_beta * ln(1 + floor(position / original length)). 0: they are not.
    double query_beta = 0.0;
    /// M-RoPE: a token has positions of time, height and width, each of which rotates this number of the frequencies.
    /// Those of time come first, then height's, then width's; or `interleaved`: every third from 1 on is height's,
    /// every third from 2 on width's, as many as there are. Zeros: a token has one position.
    std::array<int64_t, 3> sections{};
    bool interleaved = false;

    bool by_axes() const { return sections[0] > 0; }
    /// Whether a sequence's frequencies depend on its length.
    bool by_length() const { return type == Type::dynamic || type == Type::longrope; }
};

/// MLPs of which each token passes a few: those with the largest logits of a router.
struct ExpertsSpec {
    int64_t count = 0;              ///< E
    int64_t top_k = 0;              ///< k: experts that a token passes
    int64_t intermediate_size = 0;  ///< F of each expert
    RouterWeights weights = RouterWeights::of_all;
    double router_aux = 0;  ///< weight of the load-balancing loss that transformers adds in training; 0: none
    std::string_view router = "gate";  ///< its module below mlp
    bool router_bias = false;          ///< the logits have one for each expert
    /// A checkpoint has one tensor for all of a layer's experts, of gate and up [E, D, 2F] with a column of each in
    /// turn, of down [E, F, D]; and of their biases [E, 2F] and [E, D]. Else each matrix is a tensor [N, K].
    bool transposed = false;
    bool operator==(const ExpertsSpec&) const = default;
};

/// Gated delta nets (ops/gated_delta.h).
struct DeltaSpec {
    int64_t key_heads = 0, value_heads = 0;  ///< the first divides the second
    int64_t key_dim = 0, value_dim = 0;      ///< of a head
    int64_t taps = 0;                        ///< of the convolution
    int64_t keys() const { return key_heads * key_dim; }
    int64_t values() const { return value_heads * value_dim; }
    int64_t channels() const { return 2 * keys() + values(); }  ///< queries, keys and values
    bool operator==(const DeltaSpec&) const = default;
};

/// What differs from one decoder layer of a model to the next.
struct LayerSpec {
    int64_t window = 0;  ///< how many tokens a position sees, itself included; 0: all before it
    static constexpr int no_rope = -1;
    int rope = 0;          ///< its place in ModelSpec::ropes; no_rope: queries and keys are not rotated
    bool experts = false;  ///< its MLP is that of ModelSpec::experts
    /// Its keys and values are of image features (VisionSpec::tiles), normed as its queries are, and what it adds is
    /// multiplied by gates. Tokens of a row without images pass it by.
    bool crosses = false;
    bool delta = false;  ///< a gated delta net (ModelSpec::delta) takes the place of attention
    bool operator==(const LayerSpec&) const = default;
};

/// Where the part's name is in a checkpoint's tensor names: "language_model.model.norm.weight",
/// "model.language_model.norm.weight" together with "lm_head.weight", or nowhere.
enum class PartNames : uint8_t { before, within, none };

/// Where a layer's norms are: on what attention and the MLP read, on what they add to the residual stream, or both.
enum class NormPlacement : uint8_t { before, after, both };

struct ModelSpec {
    std::string model_type;  ///< the family, as config.json says it
    /// The model is the text part of another one of this model_type, whose modules put language_model before its own;
    /// empty: it is alone.
    std::string part_of;
    PartNames part_names = PartNames::before;
    std::optional<VisionSpec> vision;  ///< the part that makes embeddings of images, where this program runs it
    int64_t hidden_size = 0;           ///< D
    int64_t intermediate_size = 0;     ///< F
    int64_t num_layers = 0;            ///< L
    int64_t num_heads = 0;             ///< H
    int64_t num_kv_heads = 0;          ///< K heads; divides num_heads
    int64_t head_dim = 0;              ///< d; even
    int64_t vocab_size = 0;            ///< V
    int64_t extra_embeddings = 0;      ///< ids from V on that have an embedding, and no row of lm_head
    int64_t max_position_embeddings = 0;
    double rms_norm_eps = 1e-6;
    std::vector<RopeSpec> ropes = {RopeSpec()};  ///< the first: of layers with full attention
    bool tie_word_embeddings = false;
    bool qkv_bias = false;              ///< biases on q, k, v (Qwen2; Llama with attention_bias)
    bool o_bias = false;                ///< Llama with attention_bias
    bool mlp_bias = false;              ///< on gate, up and down, of experts too
    bool attention_sinks = false;       ///< a logit of each head takes part in the softmax and has no value
    bool qk_norm = false;               ///< RMSNorm on q and k before RoPE: of each head's head_dim values
    bool qk_norm_of_all_heads = false;  ///< or of all heads' values together
    /// q_proj has head_dim more rows a head, next to the query's: attention's output is multiplied by their sigmoid.
    bool attention_output_gate = false;
    NormPlacement norms = NormPlacement::before;
    double norm_offset = 0.0;  ///< norms multiply by their weight and this
    GateActivation gate_activation = GateActivation::silu;
    double gate_limit = default_gate_limit;  ///< of GateActivation::clamped_silu
    double embedding_multiplier = 1.0;
    /// It belongs to the embeddings: it has their type, and comes before noise. Else it follows the noise, in fp32.
    bool embedding_multiplier_is_inside = false;
    double residual_multiplier = 1.0;   ///< of what attention and the MLP add to the residual stream
    std::optional<double> score_scale;  ///< of attention's scores; nullopt: head_dim^-0.5
    double logits_divisor = 1.0;
    std::optional<ExpertsSpec> experts;  ///< of the layers that have them; nullopt: no layer has
    std::optional<DeltaSpec> delta;      ///< of the layers that have it
    /// The matrices of a layer that are of no expert, in the order of its forward pass. Those of an MLP are of the
    /// layers without experts; those of attention, and of a gated delta net, of the layers that have it.
    std::vector<Projection> linears = {Projection::q,    Projection::k,  Projection::v,   Projection::o,
                                       Projection::gate, Projection::up, Projection::down};
    std::vector<LayerSpec> layers;  ///< num_layers of them
    std::optional<int64_t> bos_token_id, pad_token_id;
    std::vector<int64_t> eos_token_ids;
    DType dtype = DType::bf16;  ///< torch_dtype | dtype of the checkpoint

    int64_t q_size() const { return num_heads * head_dim; }
    int64_t kv_size() const { return num_kv_heads * head_dim; }
    int64_t embedding_rows() const { return vocab_size + extra_embeddings; }
    bool crosses(int64_t layer) const { return layers.at(static_cast<std::size_t>(layer)).crosses; }
    bool has_cross_layers() const;
    bool has_delta(int64_t layer) const { return layers.at(static_cast<std::size_t>(layer)).delta; }
    /// What attention, or what a layer has in its place, gives each token, and its output projection reads.
    int64_t mixed_size(int64_t layer) const { return has_delta(layer) ? delta->values() : q_size(); }
    int64_t widest_mixed() const { return std::max(q_size(), delta ? delta->values() : 0); }
    /// The path of a layer's matrix below model.layers.{i}: as path_of, of a layer that crosses "cross_attn.q_proj", …
    std::string module_of(const LinearId& id) const { return path_of(id, crosses(id.layer)); }
    /// Rows N of a projection's weight [N, K]; of experts_gate_up and experts_down those of each expert.
    int64_t out_features(Projection p) const;
    /// Columns K of a projection's weight [N, K].
    int64_t in_features(Projection p) const;
    /// The same of a matrix, which may be an expert's.
    int64_t out_features(const LinearId& id) const;
    int64_t in_features(const LinearId& id) const;
    bool has_experts(int64_t layer) const { return experts && layers.at(static_cast<std::size_t>(layer)).experts; }
    /// Of `linears` those that this layer has.
    std::vector<Projection> projections_of(int64_t layer) const;
    /// What of a layer may have an adapter: these, and its experts'.
    std::vector<Projection> adaptable_of(int64_t layer) const;
    /// All matrices of a layer: projections_of, then its experts', one expert after the other.
    std::vector<LinearId> linears_of(int64_t layer) const;
    /// MLP columns of a layer, the mean of all layers: that a token passes, and that there are.
    double active_intermediate_size() const;
    double whole_intermediate_size() const;
    bool has_bias(Projection p) const;
    bool has_rope(RopeSpec::Type type) const;
    bool norms_before() const { return norms != NormPlacement::after; }
    bool norms_after() const { return norms != NormPlacement::before; }
    /// What attention and the MLP give is not added to the residual stream as it is.
    bool changes_branches() const { return norms_after() || residual_multiplier != 1.0; }
    bool has(Projection p) const;
    /// What comes below "model." before the model's own modules, in paths and in an adapter's names.
    std::string_view stem() const { return part_of.empty() ? "" : "language_model."; }
    /// What a checkpoint calls a tensor of this model: "model.norm.weight", "lm_head.weight".
    std::string stored_name(std::string_view own) const;
    /// Values of a head that a rope turns: even.
    int64_t rotary_dim(const RopeSpec& rope) const;
    /// Positions that a sequence may have: dynamic scaling goes beyond max_position_embeddings by its factor.
    int64_t usable_positions() const;
};

/// What RoPE needs at run time.
struct RopeFrequencies {
    std::vector<float> inv_freq;     ///< rotary_dim / 2 values
    float attention_scaling = 1.0F;  ///< multiplies cos and sin
};

/// The inverse frequencies of one of `spec.ropes` for a sequence of `seq_len` tokens (longest position + 1), which
/// `dynamic` and `longrope` depend on. Computed in fp64 and rounded once; agrees with transformers to a relative 5e-7.
RopeFrequencies rope_frequencies(const ModelSpec& spec, int64_t seq_len, std::size_t rope = 0);

/// M-RoPE: the axis of each of a rope's frequencies, 0 to 2.
std::vector<int32_t> rope_axes(const ModelSpec& spec, const RopeSpec& rope);

/// What a rope with a query_beta multiplies the query at a position by, in fp32 as transformers.
float query_multiplier(const ModelSpec& spec, const RopeSpec& rope, int64_t position);

}  // namespace unsloth::spec
