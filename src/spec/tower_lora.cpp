#include "unsloth/spec/tower_lora.h"

#include <algorithm>
#include <cctype>
#include <string_view>

#include "spec/lora_targets.h"
#include "unsloth/core/error.h"

namespace unsloth::spec {
namespace {

constexpr std::string_view weight = ".weight";

/// PEFT's layer index of a path: the number between two dots; -1: it has none.
int64_t layer_of(const std::string& path) {
    for (std::size_t dot = path.find('.'); dot != std::string::npos;) {
        const std::size_t next = path.find('.', dot + 1);
        if (next == std::string::npos) return -1;
        const std::string part = path.substr(dot + 1, next - dot - 1);
        if (!part.empty() && std::ranges::all_of(part, [](unsigned char c) { return std::isdigit(c) != 0; }))
            return std::stoll(part);
        dot = next;
    }
    return -1;
}

/// A module's name as an expression in which any number matches a block's.
std::string any_block(const std::string& module) {
    std::string expression;
    for (std::size_t begin = 0; begin < module.size();) {
        const std::size_t dot = std::min(module.find('.', begin), module.size());
        const std::string part = module.substr(begin, dot - begin);
        const bool number = std::ranges::all_of(part, [](unsigned char c) { return std::isdigit(c) != 0; });
        expression += number && dot < module.size() ? "[0-9]+" : part;
        if (dot < module.size()) expression += "\\.";
        begin = dot + 1;
    }
    return expression;
}

}  // namespace

std::vector<TowerLora> tower_linears(const ModelSpec& model) {
    std::vector<TowerLora> linears;
    if (!model.vision) return linears;
    for (const VisionTensor& tensor : vision_tensors(*model.vision)) {
        if (!holds_products(tensor)) continue;
        linears.push_back(
            {tensor.name.substr(0, tensor.name.size() - weight.size()), tensor.shape[0], tensor.shape[1]});
        if (model.vision->tiles) linears.back().root.clear();
    }
    return linears;
}

std::vector<TowerLora> resolve_tower_lora(const LoraSpec& lora, const ModelSpec& model) {
    std::vector<TowerLora> linears = tower_linears(model);
    if (lora.tower == TowerTargets::none) return {};
    if (lora.tower == TowerTargets::all && linears.empty())
        throw Error("adapter.no-such-target",
                    cat("lora.vision: ", model.part_of.empty() ? model.model_type : model.part_of,
                        " has no tower that adapters are trained in here"),
                    "Leave it out, or take a model of Llama 3.2 Vision, Qwen2.5-VL or Qwen3-VL.");
    const Patterns<int64_t> ranks("lora.rank_pattern", lora.rank_pattern);
    const Patterns<double> alphas("lora.alpha_pattern", lora.alpha_pattern);
    Targets targets(lora, model);
    std::vector<TowerLora> adapted;
    for (TowerLora& linear : linears) {
        const std::string path = linear.path();
        const bool all = lora.tower == TowerTargets::all && !lora.target_is_regex;
        if (!all && !targets.contains(path, layer_of(path))) continue;
        linear.lora = make_module(lora, ranks.value_for(path, lora.r), alphas.value_for(path, lora.lora_alpha), path);
        adapted.push_back(std::move(linear));
    }
    if (!adapted.empty() && lora.use_dora)
        throw Error("adapter.unsupported", "lora.use_dora cannot be combined with adapters in the tower (lora.vision)",
                    "Leave one of them out.");
    return adapted;
}

std::string tower_pattern(const ModelSpec& model) {
    const bool tiles = model.vision && model.vision->tiles;
    std::vector<std::string> names;
    std::string all;
    for (const TowerLora& linear : tower_linears(model)) {
        const std::string name = any_block(linear.module);
        if (std::ranges::find(names, name) != names.end()) continue;
        all += cat(names.empty() ? "" : "|", name);
        names.push_back(name);
    }
    return cat(".*", tiles ? "(" : R"(visual\.()", all, ")");
}

}  // namespace unsloth::spec
