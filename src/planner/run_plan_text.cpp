#include "unsloth/planner/run_plan_text.h"

#include <algorithm>

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "unsloth/core/error.h"

namespace unsloth::planner {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr int keep_count = 4, place_count = 4;
constexpr int64_t most_layers = 4096;  // as formats/hf_config.h allows

template <class Value>
std::optional<Value> value_named(const OrderedJson& name, int count) {
    for (int i = 0; name.is_string() && i < count; ++i)
        if (name.get<std::string>() == name_of(static_cast<Value>(i))) return static_cast<Value>(i);
    return std::nullopt;
}

std::optional<int64_t> positive(const OrderedJson& object, const char* key) {
    const auto found = object.find(key);
    if (found == object.end() || !found->is_number_integer() || found->get<int64_t>() < 1) return std::nullopt;
    return found->get<int64_t>();
}

}  // namespace

const char* name_of(spec::Keep keep) {
    constexpr const char* names[keep_count] = {"everything", "mlp", "attention", "input"};
    return names[static_cast<int>(keep)];
}

const char* name_of(spec::Place place) {
    constexpr const char* names[place_count] = {"device", "host", "disk", "peer"};
    return names[static_cast<int>(place)];
}

std::string describe_keep(const spec::RunPlan& run) {
    std::vector<std::pair<std::string, int64_t>> counts;
    for (const spec::LayerPlan& layer : run.layers) {
        const std::string name = spec::name_of(layer);
        const auto found = std::find_if(counts.begin(), counts.end(), [&](const auto& c) { return c.first == name; });
        if (found == counts.end()) {
            counts.emplace_back(name, 1);
        } else {
            ++found->second;
        }
    }
    std::string text = counts.size() == 1 ? counts.front().first : "";
    if (counts.size() > 1)
        for (const auto& [name, count] : counts) text += cat(text.empty() ? "" : ", ", count, " x ", name);
    if (run.inputs_in_fp8) text += "; inputs wait in fp8";
    if (run.row_tile > 0) text += cat("; ", run.row_tile, " tokens of an MLP at a time");
    return text;
}

std::string run_plan_json(const spec::RunPlan& run) {
    OrderedJson layers = OrderedJson::array();
    for (std::size_t i = 0; i < run.layers.size(); ++i) {
        const spec::LayerPlan& layer = run.layers[i];
        if (i > 0 && layer == run.layers[i - 1]) {
            layers.back()["count"] = layers.back()["count"].get<int64_t>() + 1;
            continue;
        }
        layers.push_back({{"count", 1},
                          {"keep", name_of(layer.keep)},
                          {"activations_at", name_of(layer.activations_at)},
                          {"weights_at", name_of(layer.weights_at)},
                          {"cached", layer.cached}});
    }
    return OrderedJson{{"layers", layers},           {"head_tile", run.head_tile},
                       {"row_tile", run.row_tile},   {"inputs_in_fp8", run.inputs_in_fp8},
                       {"in_flight", run.in_flight}, {"pass_rows", run.pass_rows}}
        .dump();
}

std::optional<spec::RunPlan> parse_run_plan(const std::string& text) {
    const OrderedJson json = OrderedJson::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) return std::nullopt;
    const auto tile = positive(json, "head_tile"), in_flight = positive(json, "in_flight");
    const auto layers = json.find("layers");
    if (!tile || !in_flight || layers == json.end() || !layers->is_array()) return std::nullopt;
    spec::RunPlan run;
    run.head_tile = *tile;
    run.row_tile = positive(json, "row_tile").value_or(0);
    run.inputs_in_fp8 = json.value("inputs_in_fp8", OrderedJson()) == true;
    run.in_flight = *in_flight;
    run.pass_rows = positive(json, "pass_rows").value_or(0);
    for (const OrderedJson& entry : *layers) {
        if (!entry.is_object()) return std::nullopt;
        const auto count = positive(entry, "count");
        const auto keep = value_named<spec::Keep>(entry.value("keep", OrderedJson()), keep_count);
        const auto activations = value_named<spec::Place>(entry.value("activations_at", OrderedJson()), place_count);
        const auto weights = value_named<spec::Place>(entry.value("weights_at", OrderedJson()), place_count);
        const OrderedJson cached = entry.value("cached", OrderedJson());
        if (!count || !keep || !activations || !weights || !cached.is_boolean()) return std::nullopt;
        if (static_cast<int64_t>(run.layers.size()) + *count > most_layers) return std::nullopt;
        run.layers.insert(run.layers.end(), static_cast<std::size_t>(*count),
                          spec::LayerPlan{*keep, *activations, cached.get<bool>(), *weights});
    }
    if (run.layers.empty()) return std::nullopt;
    return run;
}

}  // namespace unsloth::planner
