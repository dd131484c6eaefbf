#include "unsloth/formats/pruning.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "formats/json.h"
#include "unsloth/core/error.h"

namespace unsloth::formats {

spec::ModelSpec pruned_spec(const spec::ModelSpec& base, const Pruning& pruning) {
    spec::ModelSpec spec = base;
    spec.num_layers = static_cast<int64_t>(pruning.layers.size());
    spec.layers.clear();
    for (const int64_t layer : pruning.layers) spec.layers.push_back(base.layers.at(static_cast<std::size_t>(layer)));
    if (!pruning.neurons.empty()) spec.intermediate_size = static_cast<int64_t>(pruning.neurons.front().size());
    if (std::ranges::none_of(spec.layers, &spec::LayerSpec::experts)) spec.experts.reset();
    for (const std::vector<int64_t>& kept : pruning.experts)
        if (!kept.empty()) spec.experts->count = static_cast<int64_t>(kept.size());
    return spec;
}

std::string pruned_config(const std::string& original, const Pruning& pruning, int64_t layers) {
    if (static_cast<int64_t>(pruning.layers.size()) == layers) return original;
    Json config = parse_json<Json>(original, "config.json");
    config.erase("mlp_only_layers");
    for (auto& [key, value] : config.items()) {
        if (!value.is_array() || key.find("layer") == std::string::npos) continue;
        if (static_cast<int64_t>(value.size()) != layers)
            throw Error("model.unsupported",
                        cat("config.json: ", key, " has ", value.size(), " entries for ", layers,
                            " layers: which of them remain is not known"),
                        "Prune neurons with --intermediate; or remove the key, if the model does not need it.");
        Json kept = Json::array();
        for (const int64_t layer : pruning.layers) kept.push_back(value[static_cast<std::size_t>(layer)]);
        value = std::move(kept);
    }
    config["num_hidden_layers"] = pruning.layers.size();
    return config.dump();
}

namespace {

using Products = std::vector<std::pair<float, int64_t>>;  // and their columns

/// Sets the `count` of `n` weights with the least products to zero. `products` is scratch.
void zero_least_of(const float* norms, int64_t n, int64_t count, float* weights, Products& products) {
    products.clear();
    for (int64_t i = 0; i < n; ++i) products.emplace_back(std::abs(weights[i]) * norms[i], i);
    std::nth_element(products.begin(), products.begin() + count, products.end());
    for (int64_t k = 0; k < count; ++k) weights[products[static_cast<std::size_t>(k)].second] = 0.0F;
}

}  // namespace

void zero_least(Sparsity sparsity, const float* norms, int64_t cols, float* row) {
    Products products;
    switch (sparsity) {
        case Sparsity::none:
            return;
        case Sparsity::half:
            return zero_least_of(norms, cols, cols / 2, row, products);
        case Sparsity::two_of_four:
            UNSLOTH_CHECK(cols % 4 == 0, cols, " columns");
            for (int64_t i = 0; i < cols; i += 4) zero_least_of(norms + i, 4, 2, row + i, products);
            return;
    }
}

std::vector<double> column_norms(const TensorSource& matrix) {
    constexpr int64_t at_a_time = 64;
    const int64_t rows = matrix.rows(), cols = matrix.cols();
    std::vector<double> sums(static_cast<std::size_t>(cols));
    std::vector<float> values(static_cast<std::size_t>(std::min(at_a_time, rows) * cols));
    for (int64_t begin = 0; begin < rows; begin += at_a_time) {
        const int64_t end = std::min(rows, begin + at_a_time);
        matrix.read_f32(begin, end, values.data());
        for (int64_t row = 0; row < end - begin; ++row)
            for (int64_t col = 0; col < cols; ++col) {
                const double value = values[static_cast<std::size_t>(row * cols + col)];
                sums[static_cast<std::size_t>(col)] += value * value;
            }
    }
    matrix.drop();
    for (double& sum : sums) sum = std::sqrt(sum);
    return sums;
}

std::vector<int64_t> places_of_largest(const std::vector<double>& values, int64_t count) {
    std::vector<int64_t> places(values.size());
    std::iota(places.begin(), places.end(), 0);
    std::ranges::stable_sort(places, std::ranges::greater(),
                             [&](int64_t place) { return values[static_cast<std::size_t>(place)]; });
    places.resize(static_cast<std::size_t>(count));
    std::ranges::sort(places);
    return places;
}

}  // namespace unsloth::formats
