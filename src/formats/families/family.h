// The model families that this program trains: one row each of what differs between their classes in transformers, and
// of what llama.cpp calls and gives them. All else of a family is in its config.json.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/json.h"
#include "unsloth/spec/model_spec.h"

namespace unsloth::formats {

/// What a family's config.json has keys of its own for: in what its layers differ, and multipliers. `read` fills
/// spec.layers, which has one for each layer with full attention, and what these refer to.
struct FamilyKeys {
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
    bool query_beta = false;      ///< reads RopeSpec::query_beta
    bool longrope = false;        ///< has tensors for the factors of longrope
    bool multipliers = false;     ///< reads those of embeddings, residual stream, scores and logits
    bool experts = false;         ///< each layer's MLP is of experts, whose weights are RouterWeights::of_chosen
    /// What it knows of layers with a window.
    enum class Windows : uint8_t {
        none,
        common,      ///< one for all layers
        by_layer,    ///< which layers have one; the others' scaled rope is not theirs
        five_of_six  ///< all layers but each sixth have one, with a rope of theta 10000
    };
    Windows windows = Windows::none;
    int64_t no_rope_interval = 0;  ///< each layer of this number has no rope; 0: all have one
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
    bool qk_norm = false;                  ///< RMSNorm on q and k, over head_dim
    bool qk_norm_of_all_heads = false;     ///< or over all heads together
    spec::NormPlacement norms = spec::NormPlacement::before;
    double norm_offset = 0;  ///< norms multiply by their weight and this
    spec::GateActivation gate_activation = spec::GateActivation::silu;
    std::string_view activation_key = "hidden_act";
    bool fused = false;             ///< one matrix for q, k and v, and one for gate and up
    bool query_beta = false;        ///< reads llama_4_scaling_beta
    bool partial_rotation = false;  ///< reads partial_rotary_factor
    bool longrope_by_old_names =
        false;  ///< "su" and "yarn" mean longrope, and the original length is next to the object
    enum class Axes : uint8_t { none, sections, interleaved };
    Axes axes = Axes::none;            ///< M-RoPE: how mrope_section is read
    bool axes_required = true;         ///< without them config.json is no such model's; text has one position for all
    bool ropes_by_layer_type = false;  ///< one for layers of full attention, one for those with a window
    const FamilyKeys* keys = nullptr;  ///< nullptr: it has none
    /// An object: values of keys that config.json may omit, if they differ from those that all families share.
    std::string_view defaults = {};
};

/// A model of several parts, of which this program trains the one for text.
struct Whole {
    std::string_view model_type, class_name;
    std::string_view text_type;  ///< of the part, where its text_config does not say
    bool tied = false;           ///< tie_word_embeddings where config.json does not say; the part's own does not count
    spec::PartNames names = spec::PartNames::before;
    /// config.json may have the text part's keys next to vision_config, in no object of their own.
    bool flat = false;
    /// Fills spec.vision from the whole config.json; nullptr: this program does not run the vision part.
    void (*read_vision)(const JsonReader& config, spec::ModelSpec& spec) = nullptr;
};
const Whole* find_whole(std::string_view model_type);

extern const Family llama_family, mistral_family, ministral3_family, qwen2_family, qwen3_family, qwen3_moe_family,
    qwen2_5_vl_family, qwen3_vl_family, gpt_oss_family, granite_family, smollm3_family, phi3_family, gemma3_family,
    olmo3_family, mllama_family, qwen3_5_family;

void read_qwen2_5_vision(const JsonReader& config, spec::ModelSpec& spec);
void read_qwen3_vision(const JsonReader& config, spec::ModelSpec& spec);
void read_mllama_vision(const JsonReader& config, spec::ModelSpec& spec);
/// What transformers calls the modules of a tower: since 4.52, and before.
std::vector<std::string> tower_modules(const spec::VisionSpec& vision);
inline constexpr int64_t most_tower_size = int64_t{1} << 16, most_tower_layers = 512;
/// Of a tower's config an integer from 1 to `most`; `usual` where there is none.
int64_t tower_size(const JsonReader& config, const char* key, int64_t usual, int64_t most = most_tower_size);
/// Numbers of layers below vision.depth, each once.
std::vector<int64_t> tower_layers(const JsonReader& config, const char* key, std::vector<int64_t> usual,
                                  const spec::VisionSpec& vision);
/// What an image's values are normalised by, as the folder's processor_config.json or preprocessor_config.json says;
/// unchanged without either. Input Error for steps that this program does not take.
void read_image_values(const std::filesystem::path& folder, spec::VisionSpec& vision);

/// "silu", "gelu_pytorch_tanh": as config.json says it.
constexpr std::string_view activation_name(spec::GateActivation activation) {
    return activation == spec::GateActivation::gelu_tanh ? "gelu_pytorch_tanh" : "silu";
}
/// Of each layer whether it has a window, by layer_types; without these full_attention(layer) decides.
std::vector<bool> windowed_layers(const JsonReader& config, const spec::ModelSpec& spec,
                                  const std::function<bool(int64_t layer)>& windowed);
/// "sliding_attention" or "full_attention" for each layer.
Json layer_types(const spec::ModelSpec& spec);
/// The window that all layers with one share; 0: none has one. CheckError where they differ.
int64_t common_window(const spec::ModelSpec& spec);
/// Weight of the load-balancing loss that transformers adds in training where output_router_logits is set; `usual`: the
/// class's, where config.json has none.
double router_aux(const JsonReader& config, double usual);
void write_router_aux(const spec::ModelSpec& spec, Json& config);
/// Where a key has a value but null or false: Error "model.unsupported" by its name.
void refuse_key(const JsonReader& config, std::string_view key);

/// nullptr: none has this model_type.
const Family* find_family(std::string_view model_type);
/// The family of a spec that this program read or made.
const Family& family_of(const spec::ModelSpec& spec);
/// "llama, mistral, … and qwen3"
std::string family_names();

}  // namespace unsloth::formats
