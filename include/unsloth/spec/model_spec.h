// What a decoder-only model of the Llama family is, apart from its weights.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "unsloth/spec/dtype.h"

namespace unsloth::spec {

/// What a matrix of a decoder layer computes.
enum class Projection : uint8_t { q, k, v, o, gate, up, down };
inline constexpr int projection_count = 7;
inline constexpr std::array<std::string_view, projection_count> projection_names = {
    "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"};
/// "self_attn.q_proj", …, "mlp.down_proj": the path below model.layers.{i}.
inline constexpr std::array<std::string_view, projection_count> projection_paths = {
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
    "mlp.gate_proj",    "mlp.up_proj",      "mlp.down_proj"};
constexpr std::string_view name_of(Projection p) {
    return projection_names[static_cast<std::size_t>(p)];
}
constexpr std::string_view path_of(Projection p) {
    return projection_paths[static_cast<std::size_t>(p)];
}

/// A matrix of a decoder layer, in the whole model.
struct LinearId {
    int layer = -1;
    Projection projection = Projection::q;
    auto operator<=>(const LinearId&) const = default;
};

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
    /// original length; head_dim / 2 values each.
    std::vector<double> short_factor, long_factor;

    /// Whether a sequence's frequencies depend on its length.
    bool by_length() const { return type == Type::dynamic || type == Type::longrope; }
};

/// What differs from one decoder layer of a model to the next.
struct LayerSpec {
    int64_t window = 0;  ///< how many tokens a position sees, itself included; 0: all before it
    static constexpr int no_rope = -1;
    int rope = 0;  ///< its place in ModelSpec::ropes; no_rope: queries and keys are not rotated
    bool operator==(const LayerSpec&) const = default;
};

struct ModelSpec {
    std::string model_type;         ///< the family, as config.json says it
    int64_t hidden_size = 0;        ///< D
    int64_t intermediate_size = 0;  ///< F
    int64_t num_layers = 0;         ///< L
    int64_t num_heads = 0;          ///< H
    int64_t num_kv_heads = 0;       ///< K heads; divides num_heads
    int64_t head_dim = 0;           ///< d; even
    int64_t vocab_size = 0;         ///< V
    int64_t max_position_embeddings = 0;
    double rms_norm_eps = 1e-6;
    std::vector<RopeSpec> ropes = {RopeSpec()};  ///< the first: of layers with full attention
    bool tie_word_embeddings = false;
    bool qkv_bias = false;  ///< biases on q, k, v (Qwen2; Llama with attention_bias)
    bool o_bias = false;    ///< Llama with attention_bias
    bool mlp_bias = false;  ///< on gate, up and down
    bool qk_norm = false;   ///< Qwen3: RMSNorm over head_dim on q and k before RoPE
    /// The matrices of a layer, in the order of its forward pass.
    std::vector<Projection> linears = {Projection::q,    Projection::k,  Projection::v,   Projection::o,
                                       Projection::gate, Projection::up, Projection::down};
    std::vector<LayerSpec> layers;  ///< num_layers of them
    std::optional<int64_t> bos_token_id, pad_token_id;
    std::vector<int64_t> eos_token_ids;
    DType dtype = DType::bf16;  ///< torch_dtype | dtype of the checkpoint

    int64_t q_size() const { return num_heads * head_dim; }
    int64_t kv_size() const { return num_kv_heads * head_dim; }
    /// Rows N of a projection's weight [N, K].
    int64_t out_features(Projection p) const;
    /// Columns K of a projection's weight [N, K].
    int64_t in_features(Projection p) const;
    bool has_bias(Projection p) const;
    bool has_rope(RopeSpec::Type type) const;
    /// Positions that a sequence may have: dynamic scaling goes beyond max_position_embeddings by its factor.
    int64_t usable_positions() const;
};

/// What RoPE needs at run time.
struct RopeFrequencies {
    std::vector<float> inv_freq;     ///< head_dim / 2 values
    float attention_scaling = 1.0F;  ///< multiplies cos and sin
};

/// The inverse frequencies of one of `spec.ropes` for a sequence of `seq_len` tokens (longest position + 1), which
/// `dynamic` and `longrope` depend on. Computed in fp64 and rounded once; agrees with transformers to a relative 5e-7.
RopeFrequencies rope_frequencies(const ModelSpec& spec, int64_t seq_len, std::size_t rope = 0);

}  // namespace unsloth::spec
