#include "app/prune_report.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <numeric>

#include "unsloth/core/error.h"

namespace unsloth::app {
namespace {

using Json = nlohmann::ordered_json;

/// Four significant digits: a number a neuron is enough to read.
double rounded(double value) {
    char text[32];
    std::snprintf(text, sizeof text, "%.4g", value);
    return std::strtod(text, nullptr);
}

std::string shown(double value) {
    char text[32];
    std::snprintf(text, sizeof text, "%.4g", value);
    return text;
}

/// The place of a base's layer among those that remain; nullopt: it is removed.
std::optional<std::size_t> place_of(const formats::Pruning& pruning, int64_t layer) {
    const auto found = std::ranges::find(pruning.layers, layer);
    if (found == pruning.layers.end()) return std::nullopt;
    return static_cast<std::size_t>(found - pruning.layers.begin());
}

std::vector<int64_t> missing_of(int64_t count, const std::vector<int64_t>& kept) {
    std::vector<int64_t> all(static_cast<std::size_t>(count)), missing;
    std::iota(all.begin(), all.end(), 0);
    std::ranges::set_difference(all, kept, std::back_inserter(missing));
    return missing;
}

/// Of the sum of all neurons' importance what remains.
double kept_share(const std::vector<double>& importance, const std::vector<int64_t>& kept) {
    const double all = std::accumulate(importance.begin(), importance.end(), 0.0);
    double sum = 0;
    for (const int64_t neuron : kept) sum += importance[static_cast<std::size_t>(neuron)];
    return all == 0 ? 1 : sum / all;
}

const char* name_of(PruneMethod method) {
    return method == PruneMethod::block_influence ? "block_influence" : method == PruneMethod::last ? "last" : "scan";
}

Json experts_json(const PruneRequest& request, const spec::ModelSpec& base, const PruneReport& report) {
    Json layers = Json::array();
    for (std::size_t layer = 0; layer < report.before.experts.size(); ++layer) {
        const engine_api::Calibration::Experts& of_layer = report.before.experts[layer];
        if (of_layer.kept.empty()) continue;
        layers.push_back({{"layer", layer},
                          {"kept", of_layer.kept},
                          {"removed", missing_of(base.experts->count, of_layer.kept)},
                          {"kept_share", rounded(kept_share(of_layer.saliency, of_layer.kept))},
                          {"tokens", of_layer.tokens},
                          {"saliency", of_layer.saliency}});
    }
    return {{"before", base.experts->count},
            {"after", request.experts},
            {"method", "reap"},
            {"saliency_of",
             "mean over the tokens that the router gave an expert of its weight times the L2 norm of the expert's "
             "output, with the layers below already pruned; 0: no token"},
            {"layers", layers}};
}

Json layers_json(const PruneRequest& request, const spec::ModelSpec& base, const PruneReport& report) {
    Json json = {{"before", base.num_layers},
                 {"after", report.pruning.layers.size()},
                 {"method", name_of(request.method)},
                 {"removed", missing_of(base.num_layers, report.pruning.layers)},
                 {"block_influence", report.before.influence}};
    for (const auto& removal : report.before.scan) {
        Json losses = Json::object();
        for (const auto& [layer, loss] : removal.candidates) losses[std::to_string(layer)] = loss;
        json["scan"].push_back({{"removed", removal.layer}, {"loss", removal.loss}, {"loss_without", losses}});
    }
    return json;
}

Json neurons_json(const spec::ModelSpec& base, const PruneReport& report) {
    Json importance = Json::array(), removed = Json::array(), shares = Json::array();
    for (std::size_t k = 0; k < report.pruning.layers.size(); ++k) {
        const auto& of_layer = report.importance[static_cast<std::size_t>(report.pruning.layers[k])];
        Json& row = importance.emplace_back(Json::array());
        for (const double value : of_layer) row.push_back(rounded(value));
        removed.push_back(missing_of(base.intermediate_size, report.pruning.neurons[k]));
        shares.push_back(rounded(kept_share(of_layer, report.pruning.neurons[k])));
    }
    return {
        {"before", base.intermediate_size},
        {"after", report.pruning.neurons.front().size()},
        {"importance_of", "L2 over rows of the mean over tokens of |activation|, times the L2 norm of the down column"},
        {"kept_share", shares},
        {"removed", removed},
        {"importance", importance}};
}

/// Ascending numbers as "0-3, 5".
std::string ranges_of(const std::vector<int64_t>& numbers) {
    std::string text;
    for (std::size_t first = 0, end = 0; first < numbers.size(); first = end) {
        end = first + 1;
        while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
        text += cat(text.empty() ? "" : ", ", numbers[first]);
        if (end - first > 1) text += cat(end - first > 2 ? "-" : ", ", numbers[end - 1]);
    }
    return text;
}

std::string experts_table(const PruneReport& report) {
    std::string text =
        "layers, the share of their experts' saliency that remains, the experts without a token, and those that remain";
    for (std::size_t layer = 0; layer < report.before.experts.size(); ++layer) {
        const engine_api::Calibration::Experts& of_layer = report.before.experts[layer];
        if (of_layer.kept.empty()) continue;
        char line[96];
        std::snprintf(line, sizeof line, "\n  %4zu  %10s  %4lld  ", layer,
                      shown(kept_share(of_layer.saliency, of_layer.kept)).c_str(),
                      static_cast<long long>(std::ranges::count(of_layer.tokens, 0)));
        text += line + ranges_of(of_layer.kept);
    }
    return text;
}

}  // namespace

std::string prune_table(const PruneRequest& request, const spec::ModelSpec& base, const PruneReport& report) {
    const bool layers = request.layers > 0, neurons = request.intermediate > 0;
    if (request.experts > 0) return experts_table(report);
    std::string text = layers && neurons
                           ? "layers, by block influence, and the share of their neurons' importance that "
                             "remains"
                       : layers  ? "layers, by block influence"
                       : neurons ? "layers, and the share of their neurons' importance that remains"
                                 : "";
    if (text.empty()) return cat("--wanda: all ", base.num_layers, " layers, 7 matrices each");
    for (int64_t layer = 0; layer < base.num_layers; ++layer) {
        const auto place = place_of(report.pruning, layer);
        const auto i = static_cast<std::size_t>(layer);
        char line[96];
        std::snprintf(
            line, sizeof line, "\n  %4lld  %10s  %10s", static_cast<long long>(layer),
            layers ? shown(report.before.influence[i]).c_str() : "",
            neurons && place ? shown(kept_share(report.importance[i], report.pruning.neurons[*place])).c_str() : "");
        text += cat(line, place ? "" : "  removed");
    }
    return text;
}

std::string prune_json(const PruneRequest& request, const std::string& model, const spec::ModelSpec& base,
                       const PruneReport& report) {
    Json json = {{"model", model},
                 {"calibration", request.calibration},
                 {"rows", report.before.rows},
                 {"tokens", report.before.tokens},
                 {"loss_before", report.before.loss},
                 {"loss_after", report.loss_after}};
    if (request.layers > 0) json["num_hidden_layers"] = layers_json(request, base, report);
    if (request.intermediate > 0) json["intermediate_size"] = neurons_json(base, report);
    if (request.experts > 0) json["num_experts"] = experts_json(request, base, report);
    if (request.wanda != formats::Sparsity::none)
        json["wanda"] = request.wanda == formats::Sparsity::half ? "0.5" : "2:4";
    return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace unsloth::app
