#include "unsloth/spec/tensor_table.h"

#include <string_view>
#include <utility>

#include "unsloth/core/error.h"

namespace unsloth::spec {
namespace {

class TableBuilder {
  public:
    explicit TableBuilder(const ModelSpec& spec) : spec_(spec) {}

    void add(std::string name, TensorRole role, int layer, std::vector<int64_t> shape) {
        const bool matrix = shape.size() == 2;
        table_.push_back({std::move(name), role, {layer}, std::move(shape), matrix});
    }

    void add_layer(int layer) {
        const std::string prefix = cat("model.layers.", layer, ".");
        const int64_t D = spec_.hidden_size;
        add(prefix + "input_layernorm.weight", TensorRole::input_norm, layer, {D});
        for (const Projection p : spec_.linears) {
            if (p == Projection::o && spec_.qk_norm) {
                add(prefix + "self_attn.q_norm.weight", TensorRole::q_norm, layer, {spec_.head_dim});
                add(prefix + "self_attn.k_norm.weight", TensorRole::k_norm, layer, {spec_.head_dim});
            }
            add_linear(prefix, {layer, p});
            if (p == Projection::o) add(prefix + "post_attention_layernorm.weight", TensorRole::post_norm, layer, {D});
        }
    }

    std::vector<TensorRule> take() { return std::move(table_); }

  private:
    void add_linear(const std::string& prefix, LinearId id) {
        const Projection p = id.projection;
        const std::string module = prefix + std::string(path_of(p));
        const int64_t N = spec_.out_features(p);
        table_.push_back({module + ".weight", TensorRole::linear, id, {N, spec_.in_features(p)}, true});
        if (spec_.has_bias(p)) table_.push_back({module + ".bias", TensorRole::bias, id, {N}, false});
    }

    const ModelSpec& spec_;
    std::vector<TensorRule> table_;
};

}  // namespace

std::vector<TensorRule> tensor_table(const ModelSpec& spec) {
    TableBuilder builder(spec);
    builder.add("model.embed_tokens.weight", TensorRole::embed_tokens, -1, {spec.vocab_size, spec.hidden_size});
    for (int layer = 0; layer < spec.num_layers; ++layer) builder.add_layer(layer);
    builder.add("model.norm.weight", TensorRole::final_norm, -1, {spec.hidden_size});
    if (!spec.tie_word_embeddings)
        builder.add("lm_head.weight", TensorRole::lm_head, -1, {spec.vocab_size, spec.hidden_size});
    return builder.take();
}

bool is_ignorable_tensor(const ModelSpec& spec, const std::string& hf_name) {
    if (hf_name == "lm_head.weight") return spec.tie_word_embeddings;
    // Buffers of transformers before 4.32: computed from the config, so a stored copy says nothing new.
    constexpr std::string_view suffix = "rotary_emb.inv_freq";
    return hf_name.starts_with("model.") && hf_name.ends_with(suffix);
}

}  // namespace unsloth::spec
