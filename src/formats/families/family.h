// The model families that this program trains: one row each of what differs between their classes in transformers, and
// of what llama.cpp calls and gives them. All else of a family is in its config.json.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/json.h"
#include "unsloth/spec/model_spec.h"

namespace unsloth::formats {

/// How a family's config.json tells in what its layers differ. `read` fills spec.layers, which has one for each layer
/// with full attention, and what these refer to.
struct LayerKeys {
    void (*read)(const JsonReader& config, spec::ModelSpec& spec);
    void (*write)(const spec::ModelSpec& spec, Json& config);
};

/// An architecture of llama.cpp.
struct GgufArchitecture {
    std::string_view name;
    bool permutes_heads = false;  ///< wants the rows of q and k in another order (gguf/layout.h)
    bool all_biases = false;      ///< has tensors for the biases of the output projection and of the MLP
    bool rope_divisors = false;   ///< has rope_freqs.weight, which llama3's scaling needs
    bool any_head_size = true;    ///< heads need not be hidden_size wide together
    enum class Large : uint8_t { none, grouped, all };
    Large large = Large::none;  ///< which models of 80 layers it takes for one of 70 billion parameters
};
inline constexpr GgufArchitecture gguf_llama = {.name = "llama",
                                                .permutes_heads = true,
                                                .all_biases = true,
                                                .rope_divisors = true,
                                                .large = GgufArchitecture::Large::grouped};

struct Family {
    std::string_view model_type, class_name;  ///< as config.json says them
    GgufArchitecture gguf;
    bool kv_heads_default = false;         ///< num_key_value_heads may be absent: as many as there are heads
    std::optional<int64_t> head_dim = {};  ///< where config.json has none; nullopt: hidden_size / num_attention_heads
    bool head_dim_key = true;              ///< the class writes head_dim
    bool attention_bias_key = false;       ///< attention_bias says whether q, k, v and o have biases
    bool mlp_bias_key = false;             ///< mlp_bias says whether gate, up and down have
    bool qkv_bias = false;                 ///< q, k and v always have biases
    bool qk_norm = false;                  ///< RMSNorm over head_dim on q and k
    const LayerKeys* layers = nullptr;     ///< nullptr: they are alike
};

extern const Family llama_family, mistral_family, qwen2_family, qwen3_family;

/// nullptr: none has this model_type.
const Family* find_family(std::string_view model_type);
/// The family of a spec that this program read or made.
const Family& family_of(const spec::ModelSpec& spec);
/// "llama, mistral, … and qwen3"
std::string family_names();

}  // namespace unsloth::formats
