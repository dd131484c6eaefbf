#include "commands/precision_sensitivity.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "unsloth/core/check.h"
#include "unsloth/core/log.h"
#include "unsloth/formats/model_writer.h"
#include "unsloth/train/json_number.h"

namespace unsloth::commands {
namespace {

using Json = nlohmann::ordered_json;
using PrecisionEntries = std::vector<std::pair<std::string, std::string>>;

constexpr double share_that_stays = 0.5;  // of the added losses' sum

/// A projection of all layers that have it.
struct Kind {
    std::string path;
    double parameters = 0, added = 0;
};

std::vector<Kind> kinds_of(const spec::ModelSpec& model) {
    std::vector<Kind> kinds;
    for (int layer = 0; layer < model.num_layers; ++layer) {
        for (const spec::Projection p : model.projections_of(layer)) {
            if (spec::has_no_adapter(p)) continue;  // a few rows, which no type quantizes
            const std::string path = model.module_of({.layer = layer, .projection = p});
            auto at = std::find_if(kinds.begin(), kinds.end(), [&](const Kind& kind) { return kind.path == path; });
            if (at == kinds.end()) at = kinds.insert(at, Kind{path});
            at->parameters += static_cast<double>(model.out_features(p) * model.in_features(p));
        }
    }
    return kinds;
}

std::string key_of(const Kind& kind, const spec::ModelSpec& model) {
    return cat("model.layers.0-", model.num_layers - 1, ".", kind.path);
}

config::LoadedConfig held_as(config::LoadedConfig loaded, PrecisionEntries precision) {
    loaded.config.model.load_in_4bit = loaded.config.model.load_in_8bit = false;
    loaded.config.model.precision = std::move(precision);
    return loaded;
}

}  // namespace

Json precision_sensitivity(const config::LoadedConfig& loaded, const spec::ModelSpec& model, spec::WeightType type,
                           const LossOf& loss_of) {
    const std::string name = spec::name_of(type);
    std::vector<Kind> kinds = kinds_of(model);
    const double plain = loss_of(held_as(loaded, {}));
    log::info("loss with all matrices as they are stored: ", plain);
    PrecisionEntries all;
    for (Kind& kind : kinds) {
        all.emplace_back(key_of(kind, model), name);
        kind.added = loss_of(held_as(loaded, {all.back()})) - plain;
        log::info("loss with ", kind.path, " in ", name, ": ", plain + kind.added);
    }
    const double quantized = loss_of(held_as(loaded, all));
    log::info("loss with all of these in ", name, ": ", quantized);

    std::stable_sort(kinds.begin(), kinds.end(),
                     [](const Kind& a, const Kind& b) { return a.added / a.parameters > b.added / b.parameters; });
    double sum = 0;
    for (const Kind& kind : kinds) sum += std::max(kind.added, 0.0);
    const std::string unquantized = spec::name_of(formats::resolve_weight_type(spec::WeightType::automatic, model));
    PrecisionEntries mixed = {{"default", name}};
    double left = sum;
    for (const Kind& kind : kinds) {
        if (left <= share_that_stays * sum) break;
        mixed.emplace_back(key_of(kind, model), unquantized);
        left -= kind.added;
    }
    const double loss = loss_of(held_as(loaded, mixed));
    log::info("loss with the proposed model.precision: ", loss);

    std::stable_sort(kinds.begin(), kinds.end(), [](const Kind& a, const Kind& b) { return a.added > b.added; });
    Json results{{"eval_loss", train::number(plain)},
                 {"eval_loss_quantized", train::number(quantized)},
                 {"eval_loss_mixed", train::number(loss)}};
    for (const Kind& kind : kinds) results["loss_added"][kind.path] = train::number(kind.added);
    for (const auto& [key, held] : mixed) results["precision"][key] = held;
    return results;
}

}  // namespace unsloth::commands
