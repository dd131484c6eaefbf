// Which tensor gets which name and type.
#include <array>

#include "formats/families/family.h"
#include "unsloth/core/error.h"
#include "unsloth/formats/gguf_export.h"

namespace unsloth::formats {
namespace {

constexpr std::array<const char*, spec::projection_count> projection_stems = {
    "attn_q", "attn_k",      "attn_v",        "attn_output", "ffn_gate",  "ffn_up",   "ffn_down",  "attn_qkv",
    "ffn_up", "ffn_up_exps", "ffn_down_exps", "attn_qkv",    "attn_gate", "ssm_beta", "ssm_alpha", "ssm_out"};

/// llama.cpp spends more bits on the first and last eighth of the layers, and on every third between.
bool deserves_more_bits(int64_t layer, int64_t layers) {
    return layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2;
}

/// What llama.cpp takes for a model of 70 billion parameters: several heads share a v that is small for its weight.
bool is_70b(const spec::ModelSpec& spec) {
    using Large = GgufArchitecture::Large;
    const Large large = family_of(spec).gguf.large;
    return spec.num_layers == 80 &&
           (large == Large::all || (large == Large::grouped && spec.num_heads != spec.num_kv_heads));
}

bool is_quantised(GgmlType type) {
    return info_of(type).block > 1;
}

/// The matrix that makes logits weighs most.
GgmlType head_type(GgmlType base, int64_t cols) {
    if (!is_quantised(base) || base == GgmlType::q8_0) return base;
    return cols % info_of(base).block != 0 ? GgmlType::q8_0 : GgmlType::q6_k;
}

}  // namespace

GgmlType base_type(GgufFileType file_type) {
    switch (file_type) {
        case GgufFileType::f32:
            return GgmlType::f32;
        case GgufFileType::f16:
            return GgmlType::f16;
        case GgufFileType::bf16:
            return GgmlType::bf16;
        case GgufFileType::q8_0:
            return GgmlType::q8_0;
        case GgufFileType::q4_0:
            return GgmlType::q4_0;
        case GgufFileType::mxfp4:
            return GgmlType::mxfp4;
        case GgufFileType::q4_k_m:
            return GgmlType::q4_k;
        case GgufFileType::q5_k_m:
            return GgmlType::q5_k;
        case GgufFileType::q6_k:
            return GgmlType::q6_k;
    }
    UNSLOTH_CHECK(false, "file type ", static_cast<uint32_t>(file_type));
    return GgmlType::f32;
}

std::string gguf_tensor_name(const spec::TensorRule& rule) {
    const char* const of_experts = rule.id.expert >= 0 ? "_exps" : "";
    const auto in_layer = [&](const char* stem, const char* end) {
        return cat("blk.", rule.id.layer, ".", stem, of_experts, end);
    };
    switch (rule.role) {
        case spec::TensorRole::embed_tokens:
            return "token_embd.weight";
        case spec::TensorRole::lm_head:
            return "output.weight";
        case spec::TensorRole::final_norm:
            return "output_norm.weight";
        case spec::TensorRole::input_norm:
            return in_layer("attn_norm", ".weight");
        case spec::TensorRole::attention_out_norm:
            return in_layer("post_attention_norm", ".weight");
        case spec::TensorRole::mlp_out_norm:
            return in_layer("post_ffw_norm", ".weight");
        case spec::TensorRole::post_norm:
            return in_layer("ffn_norm", ".weight");
        case spec::TensorRole::q_norm:
            return in_layer("attn_q_norm", ".weight");
        case spec::TensorRole::k_norm:
            return in_layer("attn_k_norm", ".weight");
        case spec::TensorRole::router:
            return in_layer("ffn_gate_inp", ".weight");
        case spec::TensorRole::router_bias:
            return in_layer("ffn_gate_inp", ".bias");
        case spec::TensorRole::sinks:
            return in_layer("attn_sinks", ".weight");
        case spec::TensorRole::attention_gate:
        case spec::TensorRole::mlp_gate:
        case spec::TensorRole::delta_conv:
        case spec::TensorRole::delta_a_log:
        case spec::TensorRole::delta_dt_bias:
        case spec::TensorRole::delta_norm:
            break;  // of models that check_expressible refuses
        case spec::TensorRole::linear:
            return in_layer(projection_stems[static_cast<std::size_t>(rule.id.projection)], ".weight");
        case spec::TensorRole::bias:
            return in_layer(projection_stems[static_cast<std::size_t>(rule.id.projection)], ".bias");
    }
    UNSLOTH_CHECK(false, "role ", static_cast<int>(rule.role));
    return {};
}

GgmlType wanted_type(const spec::ModelSpec& spec, const spec::TensorRule& rule, GgufFileType file_type) {
    const GgmlType base = base_type(file_type);
    using spec::Projection;
    if (rule.shape.size() < 2 || rule.role == spec::TensorRole::router) return GgmlType::f32;
    if (rule.role == spec::TensorRole::lm_head ||
        (rule.role == spec::TensorRole::embed_tokens && spec.tie_word_embeddings))
        return head_type(base, rule.shape.back());
    const Projection p = rule.id.projection;
    const bool linear = rule.role == spec::TensorRole::linear;
    if (spec.experts && spec.experts->count == 8 && linear && is_quantised(base)) {  // attention is small next to them
        if (p == Projection::k || p == Projection::v) return GgmlType::q8_0;
        if (p == Projection::o && file_type == GgufFileType::q4_k_m) return GgmlType::q5_k;
    }
    const bool mixed = file_type == GgufFileType::q4_k_m || file_type == GgufFileType::q5_k_m;
    if (!mixed || !linear || (p != Projection::v && p != Projection::down)) return base;
    if (deserves_more_bits(rule.id.layer, spec.num_layers)) return GgmlType::q6_k;
    return p == Projection::v && is_70b(spec) ? GgmlType::q5_k : base;
}

GgmlType type_for_rows(GgmlType type, int64_t cols) {
    if (cols % info_of(type).block == 0) return type;
    GgmlType other = type;
    if (type == GgmlType::q4_k) other = GgmlType::q5_0;
    if (type == GgmlType::q5_k) other = GgmlType::q5_1;
    if (type == GgmlType::q6_k) other = GgmlType::q8_0;
    return cols % info_of(other).block == 0 ? other : GgmlType::f16;
}

}  // namespace unsloth::formats
