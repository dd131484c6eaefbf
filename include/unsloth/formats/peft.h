// PEFT's LoRA adapter folders: adapter_config.json and adapter_model.safetensors (PEFT 0.21's files; older ones are
// read).
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "unsloth/formats/safetensors.h"
#include "unsloth/spec/tower_lora.h"

namespace unsloth::formats {

struct PeftConfig {
    spec::LoraSpec lora;
    std::string base_model_name_or_path;  ///< as the user gave it
    std::string rope_scaling;    ///< JSON object that the base's config.json has not; empty: none (PEFT skips it)
    std::string base_mark = {};  ///< formats/base_mark.h; in the metadata of the weights' file; empty: not known
};

/// Input Error, naming file and key, for what this program does not train: biases, fan_in_fan_out, other adapter
/// types, other initialisations that change the base, and options of PEFT that change the computation.
PeftConfig read_peft_config(const std::filesystem::path& folder);
PeftConfig parse_peft_config(const std::string& json_text, const std::string& source);

/// The metadata of adapter_model.safetensors.
SafetensorsWriter::Metadata adapter_metadata(const PeftConfig& config);

/// The text of adapter_config.json as PEFT 0.21 writes it: sorted keys, indent 2, inference_mode true.
std::string write_peft_config(const PeftConfig& config);

/// "base_model.model.model.layers.{i}.{path}.lora_A.weight" [r, K] and "….lora_B.weight" [N, r].
/// `stem`: ModelSpec::stem(), which a part of another model has before "layers" and "embed_tokens". Of a layer's
/// experts A is [E r, K], each one's rows in turn, and B [N, r E], the experts innermost; they are of the module of
/// experts, or, `within`, of its "base_layer" (LayerLora::is_within). `crosses`: the layer's attention is cross_attn.
std::string lora_a_name(spec::LinearId id, std::string_view stem = {}, bool within = false, bool crosses = false);
std::string lora_b_name(spec::LinearId id, std::string_view stem = {}, bool within = false, bool crosses = false);
/// DoRA's "….lora_magnitude_vector" [N].
std::string magnitude_name(spec::LinearId id, std::string_view stem = {}, bool crosses = false);
/// Of a tower's linear: "base_model.model.{TowerLora::path()}.lora_A.weight", and B's.
std::string tower_lora_a_name(const spec::TowerLora& linear);
std::string tower_lora_b_name(const spec::TowerLora& linear);
/// For "embed_tokens" and "lm_head" [V, D]: "base_model.model.model.embed_tokens.weight",
/// "base_model.model.lm_head.weight".
std::string saved_module_name(const std::string& module, std::string_view stem = {});

/// Names and shapes of an adapter's tensors in `dtype`, layer by layer, A, B, magnitude, then the tower's and
/// modules_to_save.
std::vector<TensorDecl> adapter_tensors(const spec::LoraSpec& lora, const spec::ModelSpec& model,
                                        spec::DType dtype = spec::DType::f32);

/// An adapter folder that fits a model: every expected tensor is there in its shape and a floating type, and no other
/// but the embeddings and the head, which PEFT stores by itself when the vocabulary was changed.
struct Adapter {
    PeftConfig config;
    std::vector<spec::LayerLora> layers;  ///< resolve_lora(config.lora, model)
    SafetensorsFile file;
    std::string stem = {};                    ///< ModelSpec::stem() of the model that it fits
    std::vector<spec::TowerLora> tower = {};  ///< resolve_tower_lora(config.lora, model)

    const TensorView& a(spec::LinearId id) const { return file.at(lora_a_name(id, stem, is_within(id), crosses(id))); }
    const TensorView& b(spec::LinearId id) const { return file.at(lora_b_name(id, stem, is_within(id), crosses(id))); }
    bool is_within(spec::LinearId id) const {
        return layers[static_cast<std::size_t>(id.layer)].is_within(id.projection);
    }
    bool crosses(spec::LinearId id) const { return layers[static_cast<std::size_t>(id.layer)].crosses; }
    const TensorView& magnitude(spec::LinearId id) const { return file.at(magnitude_name(id, stem, crosses(id))); }
    const TensorView& saved_module(const std::string& module) const { return file.at(saved_module_name(module, stem)); }
    /// "embed_tokens" or "lm_head" [V, D] that is stored, though modules_to_save does not name it; nullptr: it is not.
    const TensorView* stand_in(const std::string& module) const;
    /// input Error where one is stored, for a use that would lose it.
    void refuse_stand_ins(const std::string& use, const std::string& advice) const;
};

/// Input Error that names the tensors when some are missing, unknown or of another shape.
Adapter read_adapter(const std::filesystem::path& folder, const spec::ModelSpec& model);

}  // namespace unsloth::formats
