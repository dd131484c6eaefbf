#include "formats/peft_names.h"

#include <string_view>
#include <utility>
#include <vector>

#include "unsloth/core/error.h"
#include "unsloth/formats/peft.h"

namespace unsloth::formats {
namespace {

/// The module that PEFT gives an adapter to.
std::string adapted_module(spec::LinearId id, std::string_view stem, bool within, bool crosses) {
    const std::string layer = cat("base_model.model.model.", stem, "layers.", id.layer, ".");
    if (!is_of_experts(id.projection)) return layer + spec::path_of(id, crosses);
    return cat(layer, "mlp.experts", within ? ".base_layer" : "");
}

}  // namespace

std::string lora_a_name(spec::LinearId id, std::string_view stem, bool within, bool crosses) {
    return adapted_module(id, stem, within, crosses) + ".lora_A.weight";
}

std::string lora_b_name(spec::LinearId id, std::string_view stem, bool within, bool crosses) {
    return adapted_module(id, stem, within, crosses) + ".lora_B.weight";
}

std::string magnitude_name(spec::LinearId id, std::string_view stem, bool crosses) {
    return adapted_module(id, stem, /*within=*/false, crosses) + ".lora_magnitude_vector";
}

std::string tower_lora_a_name(const spec::TowerLora& linear) {
    return cat("base_model.model.", linear.path(), ".lora_A.weight");
}

std::string tower_lora_b_name(const spec::TowerLora& linear) {
    return cat("base_model.model.", linear.path(), ".lora_B.weight");
}

std::string saved_module_name(const std::string& module, std::string_view stem) {
    const bool head = module == "lm_head";
    return cat("base_model.model.", head ? "" : "model.", head ? "" : stem, module, ".weight");
}

void take_older_names(SafetensorsFile& file, const spec::ModelSpec& model) {
    if (model.part_of.empty()) return;
    constexpr std::string_view root = "base_model.model.", path = "base_model.model.model.";
    // Names below the text model: in models that hold one of its own class, and in those that were one themselves.
    const std::string before = cat(root, model.stem());
    const bool tells = model.part_names == spec::PartNames::before;
    const auto name_now = [&](std::string_view name) -> std::string {
        for (const char* const tower : {"visual.", "vision_model.", "multi_modal_projector."})
            if (name.starts_with(cat(root, tower))) return cat(path, name.substr(root.size()));
        const auto is_of_text = [](std::string_view below) {
            return below.starts_with("layers.") || below.starts_with("embed_tokens.");
        };
        if (name.starts_with(before)) {
            std::string_view below = name.substr(before.size());
            if (below.starts_with("lm_head.")) return cat(root, below);
            constexpr std::string_view inner = "model.";
            if (below.starts_with(inner)) return cat(path, model.stem(), below.substr(inner.size()));
        }
        if (tells || !name.starts_with(path) || !is_of_text(name.substr(path.size()))) return {};
        return cat(path, model.stem(), name.substr(path.size()));
    };
    const auto is_older = [&](std::string_view name) { return !name_now(name).empty(); };
    std::vector<TensorBlob> made;
    for (const TensorView& tensor : file.tensors())
        if (is_older(tensor.name))
            made.push_back(
                {{name_now(tensor.name), tensor.dtype, tensor.shape}, {tensor.data.begin(), tensor.data.end()}});
    if (!made.empty()) file.replace(is_older, std::move(made));
}

}  // namespace unsloth::formats
