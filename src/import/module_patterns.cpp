// Target modules as PEFT takes them: ends of paths, or one expression that a whole path has to fit.
#include <algorithm>
#include <regex>

#include "import/importer.h"
#include "unsloth/core/error.h"
#include "unsloth/spec/model_spec.h"

namespace unsloth::import {
namespace {

/// Where layers are: in a model of texts, and in two kinds that see pictures too.
constexpr const char* trunks[] = {"model.layers.", "model.language_model.layers.", "language_model.model.layers.",
                                  "base_model.model.model.layers."};
constexpr int layers = 64;

/// In how many layers of the trunk the projection fits.
int fitting_layers(const std::regex& expression, const std::string& trunk, spec::Projection projection) {
    int fitting = 0;
    for (int layer = 0; layer < layers; ++layer)
        fitting += std::regex_match(cat(trunk, layer, ".", path_of(projection)), expression) ? 1 : 0;
    return fitting;
}

/// The projections that fit in all layers of a trunk; nothing where some fit in some layers, or none in any.
std::optional<Json> fitting_projections(const std::regex& expression) {
    for (const char* trunk : trunks) {
        Json names = Json::array();
        for (int i = 0; i < spec::separate_projections; ++i) {
            const auto projection = static_cast<spec::Projection>(i);
            const int fitting = fitting_layers(expression, trunk, projection);
            if (fitting != 0 && fitting != layers) return std::nullopt;
            if (fitting == layers) names.push_back(name_of(projection));
        }
        if (names.empty()) continue;
        const std::string front = std::string(trunk).substr(0, std::string_view(trunk).rfind("layers."));
        for (const char* name : {"embed_tokens", "lm_head"})  // of the model, or of what is around its trunk
            if (std::regex_match(name, expression) || std::regex_match(front + name, expression) ||
                std::regex_match(cat("base_model.model.", name), expression))
                names.push_back(name);
        return names;
    }
    return std::nullopt;
}

/// "q_proj" of "self_attn.q_proj"; other names as they are.
std::string projection_at_end(const std::string& module) {
    for (int i = 0; i < spec::separate_projections; ++i) {
        const auto projection = static_cast<spec::Projection>(i);
        if (module == path_of(projection)) return std::string(name_of(projection));
    }
    return module;
}

}  // namespace

std::optional<Json> projections_of(Importer& importer, const std::string& key, const Json& modules) {
    if (modules.is_array()) {
        Json names = Json::array();
        for (const Json& module : modules)
            names.push_back(module.is_string() ? Json(projection_at_end(module)) : module);
        return names;
    }
    if (!modules.is_string()) return modules;
    try {
        if (const auto names = fitting_projections(std::regex(modules.get<std::string>()))) {
            importer.note(key, cat(shown(modules), " fits ", shown(*names), " in every layer"));
            return names;
        }
    } catch (const std::regex_error&) {
        importer.lose(key, cat(shown(modules), ": is no expression"));
        return std::nullopt;
    }
    importer.lose(key, cat(shown(modules), ": names projections of all layers alike; lora.layers_to_transform, ",
                           "rank_pattern and target_modules say which otherwise"));
    return std::nullopt;
}

}  // namespace unsloth::import
