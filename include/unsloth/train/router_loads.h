// How a step's tokens spread over the experts of each layer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace unsloth::train {

/// Of the experts of a layer, over all ranks and micro-batches of a step. Rows have no padding: every token counts.
struct RouterLoad {
    double mean = 0;       ///< tokens an expert
    double most = 0;       ///< tokens of the expert with most of them, over the mean: from 1 to experts / choices
    int64_t dead = 0;      ///< experts that no token chose
    bool crowded = false;  ///< `most` is nearer to all tokens than to the mean

    friend bool operator==(const RouterLoad&, const RouterLoad&) = default;
};
/// By layer; nothing: the layer has no experts. Empty for a model without, and of a step that is not logged.
using RouterLoads = std::vector<std::optional<RouterLoad>>;

/// Of a layer, from how many tokens chose each of its experts. Each token makes `choices` choices.
RouterLoad router_load_of(const std::vector<double>& tokens_E, int64_t choices);

/// Of the layer with the greatest `most`, and the sum over layers; 0 without loads.
double greatest_load(const RouterLoads& loads);
int64_t dead_experts(const RouterLoads& loads);
/// What a log line should say of loads that are bad: a crowded layer, or dead experts where the mean is 100 tokens or
/// more; else empty.
std::string bad_loads_text(const RouterLoads& loads);

}  // namespace unsloth::train
