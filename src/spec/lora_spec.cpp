#include "unsloth/spec/lora_spec.h"

#include <algorithm>
#include <cmath>

#include "spec/lora_targets.h"
#include "unsloth/core/error.h"
#include "unsloth/spec/tower_lora.h"

namespace unsloth::spec {
namespace {

std::string module_path(const ModelSpec& model, std::size_t layer, Projection p) {
    return cat("model.", model.stem(), "layers.", layer, ".", model.module_of({static_cast<int>(layer), p}));
}

/// Whether PEFT would give the experts' tensor of this path an adapter by this target.
bool is_parameter(const std::string& path, const std::string& target) {
    return path == target || path.ends_with("." + target);
}

/// Usage Error for a key that gives its value to no adapter.
template <class Value>
void refuse_idle_keys(const std::string& option, const std::vector<std::pair<std::string, Value>>& entries,
                      const ModelSpec& model, const std::vector<LayerLora>& layers,
                      const std::vector<TowerLora>& tower) {
    const Patterns<Value> patterns(option, entries);
    enum class Use { none, without_adapter, shadowed, applies };
    std::vector<Use> uses(entries.size(), Use::none);
    const auto look = [&](const std::string& path, bool has_adapter) {
        const std::size_t first = patterns.first_match(path, 0);
        for (std::size_t i = first; i < entries.size(); i = patterns.first_match(path, i + 1))
            uses[i] = std::max(uses[i], !has_adapter ? Use::without_adapter
                                        : i == first ? Use::applies
                                                     : Use::shadowed);
    };
    for (std::size_t layer = 0; layer < layers.size(); ++layer)
        for (const Projection p : model.adaptable_of(static_cast<int64_t>(layer)))
            look(module_path(model, layer, p), layers[layer][p].r > 0);
    for (const TowerLora& linear : tower) look(linear.path(), /*has_adapter=*/true);
    for (std::size_t i = 0; i < entries.size(); ++i) {
        const std::string place = cat(option, ": '", entries[i].first, "' ");
        if (uses[i] == Use::without_adapter)
            throw Error("adapter.no-such-target", place + "matches modules without an adapter alone",
                        "lora.target_modules and lora.layers_to_transform say which get one.");
        if (uses[i] == Use::shadowed)
            throw Error("adapter.no-such-target", place + "never counts: keys before it match all of its modules",
                        "The first match wins: put it before them, or leave it out.");
        if (uses[i] == Use::none)
            throw Error("adapter.no-such-target", place + "matches no module of this model",
                        cat("A key is the end of a path from a dot on, or a regular expression for it: paths go "
                            "from ",
                            module_path(model, 0, model.linears.front()), " to ",
                            module_path(model, layers.size() - 1, model.linears.back()), "."));
    }
}

/// "gate_proj", "experts.3.up_proj", …; not "mlp.gate_proj", which is of a layer without experts.
bool names_an_expert(const std::string& target) {
    const bool of_mlp = target.ends_with("gate_proj") || target.ends_with("up_proj") || target.ends_with("down_proj");
    const std::size_t dot = target.rfind('.');
    return of_mlp && (dot == std::string::npos || !target.substr(0, dot).ends_with("mlp"));
}

/// What PEFT does not do with adapters of experts, or does in another way than its words say.
void check_experts(const LoraSpec& lora, const ModelSpec& model) {
    if (model.experts && !lora.target_is_regex)
        for (const std::string& target : lora.target_modules)
            if (names_an_expert(target))
                throw Error("adapter.no-such-target",
                            cat("lora.target_modules: '", target, "' is a matrix of each expert of this model"),
                            "Name attention's, q_proj to o_proj, there; lora.target_parameters "
                            "[\"mlp.experts.gate_up_proj\", \"mlp.experts.down_proj\"] adapts all experts.");
    if (lora.target_parameters.empty()) return;
    if (lora.lora_dropout > 0.0)
        throw Error("option.conflict", "lora.target_parameters goes without lora.lora_dropout, as in PEFT",
                    "Set lora_dropout to 0.");
    if (!lora.layers_to_transform.empty())
        throw Error("option.conflict", "lora.target_parameters goes without lora.layers_to_transform",
                    "Name the layers in it: \"layers.3.mlp.experts.down_proj\".");
    for (const std::string& target : lora.target_parameters) {
        bool found = false;
        for (int64_t layer = 0; layer < model.num_layers; ++layer)
            for (const Projection p : model.adaptable_of(layer))
                found = found || (is_of_experts(p) &&
                                  is_parameter(module_path(model, static_cast<std::size_t>(layer), p), target));
        if (!found)
            throw Error("adapter.no-such-target",
                        cat("lora.target_parameters: '", target, "' matches no experts of this model"),
                        model.experts ? "They are mlp.experts.gate_up_proj and mlp.experts.down_proj."
                                      : "The model has no experts: lora.target_modules names its projections.");
    }
}

void check_options(const LoraSpec& lora, const ModelSpec& model) {
    if (lora.r < 1) throw Error("option.out-of-range", cat("lora.r must be at least 1, but is ", lora.r));
    if (!std::isfinite(lora.lora_alpha)) throw Error("option.out-of-range", "lora.lora_alpha must be a finite number");
    if (!(lora.lora_dropout >= 0.0 && lora.lora_dropout < 1.0))
        throw Error("option.out-of-range", cat("lora.lora_dropout must be in [0, 1), but is ", lora.lora_dropout));
    for (const int64_t layer : lora.layers_to_transform) {
        if (layer >= 0 && layer < model.num_layers) continue;
        throw Error("adapter.no-such-target", cat("lora.layers_to_transform: there is no layer ", layer,
                                                  "; the model's layers are 0 to ", model.num_layers - 1));
    }
    for (const std::string& module : lora.modules_to_save) {
        if (module == "embed_tokens" || module == "lm_head") continue;
        throw Error("adapter.no-such-target", cat("lora.modules_to_save: '", module, "' cannot be trained in full"),
                    "Modules to save are embed_tokens and lm_head.");
    }
    if (lora.target_modules.empty() && lora.target_parameters.empty())
        throw Error("option.invalid-value", "lora.target_modules is empty: no projection would get an adapter");
    check_experts(lora, model);
}

/// Where the names of all projections that a matrix has the rows of are targets, it takes their place.
void with_fused_targets(LoraSpec& lora, const ModelSpec& model) {
    if (lora.target_is_regex) return;
    std::vector<std::string>& targets = lora.target_modules;
    if (lora.usual_targets && model.experts)
        std::erase_if(targets, [](const std::string& target) {
            for (int i = 0; i < separate_projections; ++i)
                if (const auto p = static_cast<Projection>(i); target == name_of(p)) return is_of_mlp(p);
            return false;
        });
    if (lora.usual_targets && model.delta)
        for (const Projection p : {Projection::delta_qkv, Projection::delta_z, Projection::delta_out})
            targets.emplace_back(name_of(p));
    for (const Projection fused : model.linears) {
        if (first_part(fused) == fused) continue;
        std::vector<std::string> parts;
        for (int i = 0; i < separate_projections; ++i)
            if (const auto p = static_cast<Projection>(i); fused_of(p) == fused) parts.emplace_back(name_of(p));
        const bool all = !parts.empty() && std::ranges::all_of(parts, [&](const std::string& part) {
            return std::ranges::find(targets, part) != targets.end();
        });
        if (!all) continue;
        std::erase_if(targets, [&](const std::string& target) {
            return target == name_of(fused) || std::ranges::find(parts, target) != parts.end();
        });
        targets.emplace_back(name_of(fused));
    }
}

}  // namespace

LoraSpec for_model(LoraSpec lora, const ModelSpec& model) {
    with_fused_targets(lora, model);
    if (model.part_of.empty() || lora.target_is_regex) return lora;
    if (lora.tower == TowerTargets::named && !resolve_tower_lora(lora, model).empty()) return lora;
    const auto joined = [](const auto& parts) {
        std::string text;
        for (const auto& part : parts) text += cat(text.empty() ? "" : "|", part);
        return text;
    };
    const std::string layers = lora.layers_to_transform.empty() ? "[0-9]+" : joined(lora.layers_to_transform);
    const std::string text =
        cat(R"(.*language_model\.layers\.()", layers, R"()\..*()", joined(lora.target_modules), ")");
    const bool tower = lora.tower == TowerTargets::all && !tower_linears(model).empty();
    lora.target_modules = {tower ? cat("(", text, ")|(", tower_pattern(model), ")") : text};
    lora.target_is_regex = true;
    lora.layers_to_transform.clear();
    return lora;
}

std::vector<LayerLora> resolve_lora(const LoraSpec& asked, const ModelSpec& model) {
    LoraSpec lora = asked;
    with_fused_targets(lora, model);
    check_options(lora, model);
    const Patterns<int64_t> ranks("lora.rank_pattern", lora.rank_pattern);
    const Patterns<double> alphas("lora.alpha_pattern", lora.alpha_pattern);
    Targets targets(lora, model);
    std::vector<LayerLora> layers(static_cast<std::size_t>(model.num_layers));
    bool any = false;
    for (int64_t layer = 0; layer < model.num_layers; ++layer) {
        layers[static_cast<std::size_t>(layer)].crosses = model.crosses(layer);
        for (const Projection p : model.projections_of(layer)) {
            const std::string path = module_path(model, static_cast<std::size_t>(layer), p);
            if (!targets.contains(path, layer)) continue;
            if (has_no_adapter(p))
                throw Error("adapter.unsupported",
                            cat("lora.target_modules names ", path, ", and ", name_of(Projection::delta_b), " and ",
                                name_of(Projection::delta_a), " have no adapters here"),
                            "They are small, and say how fast a gated delta net forgets: leave them out.");
            layers[static_cast<std::size_t>(layer)].add(p) =
                make_module(lora, ranks.value_for(path, lora.r), alphas.value_for(path, lora.lora_alpha), path);
            any = true;
        }
        for (const Projection p : model.adaptable_of(layer)) {
            const std::string path = module_path(model, static_cast<std::size_t>(layer), p);
            const bool named =
                is_of_experts(p) && std::ranges::any_of(lora.target_parameters, [&](const std::string& target) {
                    return is_parameter(path, target);
                });
            if (!named) continue;
            layers[static_cast<std::size_t>(layer)].add(p) =
                make_module(lora, ranks.value_for(path, lora.r), alphas.value_for(path, lora.lora_alpha), path);
            any = true;
        }
    }
    if (lora.tower == TowerTargets::named)  // a name may be one of the tower's alone
        for (const TowerLora& linear : tower_linears(model)) targets.contains(linear.path(), 0);
    targets.refuse_unused();
    if (!any)
        throw Error("adapter.unsupported", "lora.target_modules: no module of the language model has an adapter",
                    "Name some of it too, q_proj for example, in layers that have them.");
    return layers;
}

std::vector<LoraModule> lora_modules(const LoraSpec& lora, const std::vector<std::string>& paths) {
    const Patterns<int64_t> ranks("lora.rank_pattern", lora.rank_pattern);
    const Patterns<double> alphas("lora.alpha_pattern", lora.alpha_pattern);
    std::vector<LoraModule> modules;
    for (const std::string& path : paths)
        modules.push_back(
            make_module(lora, ranks.value_for(path, lora.r), alphas.value_for(path, lora.lora_alpha), path));
    return modules;
}

void refuse_idle_patterns(const LoraSpec& lora, const ModelSpec& model) {
    const std::vector<LayerLora> layers = resolve_lora(lora, model);
    const std::vector<TowerLora> tower = resolve_tower_lora(lora, model);
    refuse_idle_keys("lora.rank_pattern", lora.rank_pattern, model, layers, tower);
    refuse_idle_keys("lora.alpha_pattern", lora.alpha_pattern, model, layers, tower);
}

}  // namespace unsloth::spec
