#include <algorithm>
#include <array>

#include "formats/families/family.h"
#include "unsloth/core/error.h"

namespace unsloth::formats {
namespace {

constexpr std::array families = {&llama_family,   &mistral_family,   &ministral3_family, &qwen2_family,
                                 &qwen3_family,   &qwen3_moe_family, &qwen2_5_vl_family, &qwen3_vl_family,
                                 &gpt_oss_family, &granite_family,   &smollm3_family,    &phi3_family,
                                 &gemma3_family,  &olmo3_family,     &mllama_family,     &qwen3_5_family};

constexpr std::array wholes = {
    Whole{"gemma3", "Gemma3ForConditionalGeneration", "gemma3_text", true},
    Whole{"mistral3", "Mistral3ForConditionalGeneration", "mistral", true},
    Whole{"qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl_text", false, spec::PartNames::within, true,
          read_qwen2_5_vision},
    Whole{"qwen3_vl", "Qwen3VLForConditionalGeneration", "qwen3_vl_text", false, spec::PartNames::within, false,
          read_qwen3_vision},
    Whole{"qwen3_5", "Qwen3_5ForConditionalGeneration", "qwen3_5_text", false, spec::PartNames::within},
    Whole{"mllama", "MllamaForConditionalGeneration", "mllama_text_model", false, spec::PartNames::before, false,
          read_mllama_vision},
};

}  // namespace

const Whole* find_whole(std::string_view model_type) {
    const auto* const found = std::ranges::find(wholes, model_type, &Whole::model_type);
    return found == wholes.end() ? nullptr : found;
}

const Family* find_family(std::string_view model_type) {
    const auto* const found = std::ranges::find(families, model_type, [](const Family* f) { return f->model_type; });
    return found == families.end() ? nullptr : *found;
}

const Family& family_of(const spec::ModelSpec& spec) {
    const Family* const family = find_family(spec.model_type);
    UNSLOTH_CHECK(family != nullptr, "no family '", spec.model_type, "'");
    return *family;
}

std::vector<bool> windowed_layers(const JsonReader& config, const spec::ModelSpec& spec,
                                  const std::function<bool(int64_t layer)>& windowed) {
    std::vector<bool> has_window(static_cast<std::size_t>(spec.num_layers));
    const auto types = config.strings("layer_types");
    if (config.has("layer_types") && static_cast<int64_t>(types.size()) != spec.num_layers)
        throw Error("model.bad-config", cat(config["layer_types"].where(), " has ", types.size(), " entries for ",
                                            spec.num_layers, " layers"));
    for (std::size_t layer = 0; layer < has_window.size(); ++layer) {
        if (types.empty()) {
            has_window[layer] = windowed(static_cast<int64_t>(layer));
            continue;
        }
        if (types[layer] != "full_attention" && types[layer] != "sliding_attention")
            throw Error("model.unsupported",
                        cat(config["layer_types"].where(), ": '", types[layer], "' is not supported"));
        has_window[layer] = types[layer] == "sliding_attention";
    }
    return has_window;
}

Json layer_types(const spec::ModelSpec& spec) {
    Json types = Json::array();
    for (const spec::LayerSpec& layer : spec.layers)
        types.push_back(layer.window > 0 ? "sliding_attention" : "full_attention");
    return types;
}

int64_t common_window(const spec::ModelSpec& spec) {
    int64_t window = 0;
    for (const spec::LayerSpec& layer : spec.layers) {
        UNSLOTH_CHECK(layer.window == 0 || window == 0 || layer.window == window,
                      "config.json has one sliding_window for all layers");
        window = std::max(window, layer.window);
    }
    return window;
}

double router_aux(const JsonReader& config, double usual) {
    if (!config.boolean("output_router_logits").value_or(false)) return 0;
    const double weight = config.number("router_aux_loss_coef").value_or(usual);
    if (weight < 0) config["router_aux_loss_coef"].refuse("at least 0");
    return weight;
}

void write_router_aux(const spec::ModelSpec& spec, Json& config) {
    if (!spec.experts || spec.experts->router_aux == 0) return;
    config["output_router_logits"] = true;
    config["router_aux_loss_coef"] = spec.experts->router_aux;
}

void refuse_key(const JsonReader& config, std::string_view key) {
    if (config.has(key) && config[key].value() != false)
        throw Error("model.unsupported", cat(config[key].where(), ": ", config[key].value().dump(),
                                             " is not supported for ", *config.string("model_type")));
}

std::vector<std::string> tower_modules(const spec::VisionSpec& vision) {
    if (vision.tiles)
        return {"model.vision_model", "vision_model", "model.multi_modal_projector", "multi_modal_projector"};
    return {"model.visual", "visual"};
}

std::string family_names() {
    std::string names;
    for (const Family* const family : families) {
        const char* const before = names.empty() ? "" : family == families.back() ? " and " : ", ";
        names += cat(before, family->model_type);
    }
    return names;
}

}  // namespace unsloth::formats
