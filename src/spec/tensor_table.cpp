#include "unsloth/spec/tensor_table.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "unsloth/core/error.h"

namespace unsloth::spec {
namespace {

class TableBuilder {
  public:
    explicit TableBuilder(const ModelSpec& spec) : spec_(spec) {}

    void add(std::string name, TensorRole role, int layer, std::vector<int64_t> shape) {
        const bool matrix = shape.size() == 2 && role != TensorRole::router;
        const float offset = is_norm(role) ? static_cast<float>(spec_.norm_offset) : 0.0F;
        table_.push_back({std::move(name), role, {layer}, std::move(shape), matrix, offset});
    }

    void add_layer(int layer) {
        const std::string prefix = spec_.stored_name(cat("model.layers.", layer, "."));
        const auto norm = [&](TensorRole role) {
            if (const std::string_view name = layer_norm_name(spec_, role); !name.empty())
                add(cat(prefix, name, ".weight"), role, layer, {spec_.hidden_size});
        };
        const bool crosses = spec_.crosses(layer);
        const char* const attention = crosses ? "cross_attn" : "self_attn";
        norm(TensorRole::input_norm);
        if (spec_.has_delta(layer)) add_delta(prefix + "linear_attn.", layer, *spec_.delta);
        for (const LinearId& id : spec_.linears_of(layer)) {
            if (id.projection == Projection::o && (spec_.qk_norm || crosses)) {
                const bool all = spec_.qk_norm_of_all_heads;
                add(cat(prefix, attention, ".q_norm.weight"), TensorRole::q_norm, layer,
                    {all ? spec_.q_size() : spec_.head_dim});
                add(cat(prefix, attention, ".k_norm.weight"), TensorRole::k_norm, layer,
                    {all ? spec_.kv_size() : spec_.head_dim});
            }
            add_linear(prefix, id);
            if (id.projection != Projection::o && id.projection != Projection::delta_out) continue;
            if (spec_.attention_sinks) add(prefix + "self_attn.sinks", TensorRole::sinks, layer, {spec_.num_heads});
            norm(TensorRole::attention_out_norm);
            norm(TensorRole::post_norm);
            if (spec_.has_experts(layer)) add_router(cat(prefix, "mlp.", spec_.experts->router), layer);
        }
        norm(TensorRole::mlp_out_norm);
        if (!crosses) return;
        add(prefix + "cross_attn_attn_gate", TensorRole::attention_gate, layer, {1});
        add(prefix + "cross_attn_mlp_gate", TensorRole::mlp_gate, layer, {1});
    }

    std::vector<TensorRule> take() { return std::move(table_); }

  private:
    void add_router(const std::string& module, int layer) {
        add(module + ".weight", TensorRole::router, layer, {spec_.experts->count, spec_.hidden_size});
        if (spec_.experts->router_bias) add(module + ".bias", TensorRole::router_bias, layer, {spec_.experts->count});
    }

    void add_delta(const std::string& module, int layer, const DeltaSpec& delta) {
        add(module + "conv1d.weight", TensorRole::delta_conv, layer, {delta.channels(), 1, delta.taps});
        add(module + "A_log", TensorRole::delta_a_log, layer, {delta.value_heads});
        add(module + "dt_bias", TensorRole::delta_dt_bias, layer, {delta.value_heads});
        add(module + "norm.weight", TensorRole::delta_norm, layer, {delta.value_dim});
    }

    void add_linear(const std::string& prefix, LinearId id) {
        const std::string module = prefix + spec_.module_of(id);
        const int64_t N = spec_.out_features(id);
        table_.push_back({module + ".weight", TensorRole::linear, id, {N, spec_.in_features(id)}, true});
        if (spec_.has_bias(id.projection)) table_.push_back({module + ".bias", TensorRole::bias, id, {N}, false});
    }

    const ModelSpec& spec_;
    std::vector<TensorRule> table_;
};

}  // namespace

std::string_view layer_norm_name(const ModelSpec& spec, TensorRole role) {
    const bool alone = spec.norms == NormPlacement::before;
    if (role == TensorRole::input_norm && spec.norms_before()) return "input_layernorm";
    if (role == TensorRole::post_norm && spec.norms_before())
        return alone ? "post_attention_layernorm" : "pre_feedforward_layernorm";
    if (role == TensorRole::attention_out_norm && spec.norms_after()) return "post_attention_layernorm";
    if (role == TensorRole::mlp_out_norm && spec.norms_after()) return "post_feedforward_layernorm";
    return {};
}

std::vector<TensorRule> tensor_table(const ModelSpec& spec) {
    TableBuilder builder(spec);
    const auto name = [&](const char* own) { return spec.stored_name(own); };
    builder.add(name("model.embed_tokens.weight"), TensorRole::embed_tokens, -1,
                {spec.embedding_rows(), spec.hidden_size});
    for (int layer = 0; layer < spec.num_layers; ++layer) builder.add_layer(layer);
    builder.add(name("model.norm.weight"), TensorRole::final_norm, -1, {spec.hidden_size});
    if (!spec.tie_word_embeddings)
        builder.add(name("lm_head.weight"), TensorRole::lm_head, -1, {spec.vocab_size, spec.hidden_size});
    return builder.take();
}

bool is_ignorable_tensor(const ModelSpec& spec, const std::string& hf_name) {
    if (hf_name == spec.stored_name("lm_head.weight")) return spec.tie_word_embeddings;
    // Buffers of transformers before 4.32: computed from the config, so a stored copy says nothing new.
    constexpr std::string_view suffix = "rotary_emb.inv_freq";
    return hf_name.starts_with(spec.stored_name("model.")) && hf_name.ends_with(suffix);
}

bool is_of_another_part(const ModelSpec& spec, const std::string& hf_name) {
    if (spec.delta && hf_name.starts_with("mtp.")) return true;  // layers that guess further tokens
    const bool before = spec.part_names == PartNames::before, tiles = spec.vision && spec.vision->tiles;
    const std::vector<std::string_view> parts =
        tiles    ? std::vector<std::string_view>{"vision_model.", "multi_modal_projector.", "model.vision_model.",
                                                 "model.multi_modal_projector."}
        : before ? std::vector<std::string_view>{"vision_tower.", "multi_modal_projector."}
                 : std::vector<std::string_view>{"visual.", "model.visual."};
    return !spec.part_of.empty() &&
           std::ranges::any_of(parts, [&](std::string_view part) { return hf_name.starts_with(part); });
}

}  // namespace unsloth::spec
