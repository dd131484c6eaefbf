// The products of a training step as cases to time: of a layer's groups and of the lm_head. Built with UNSLOTH_CUDA
// only.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "unsloth/engine_api/engine.h"
#include "unsloth/ops/gemm.h"
#include "unsloth/ops/gemm_trials.h"
#include "unsloth/weights/layout.h"

namespace unsloth::bench {

/// The groups of a layer of such a model, with lora.*'s adapters.
weights::LayerLayout adapted_layout(const config::LoadedConfig& loaded, const spec::ModelSpec& spec);

/// What benches of single products work with on a GPU: shapes of model.path, or of llama-3.1-8b where there is none.
struct ProductBench {
    ProductBench(const config::LoadedConfig& loaded, at::Device device);
    spec::ModelSpec spec;
    weights::LayerLayout layout;
    ops::Context ctx;  ///< with a workspace for products
};

/// A product with several sets of operands, so that small ones come from memory as in a step, not from the cache.
struct Product {
    std::string name;
    std::vector<ops::Gemm> sets;
    int64_t k_base = 0;  ///< without adapters

    int64_t m() const { return sets[0].out.size(0); }
    int64_t n() const { return sets[0].out.size(1); }
    int64_t k() const { return sets[0].a.size(1); }
    double operations() const {
        return 2.0 * static_cast<double>(m()) * static_cast<double>(n()) * static_cast<double>(k());
    }
};

/// Calls `visit` with every product of a layer for `rows` rows, one at a time, random operands on the device, in the
/// strides that a step has.
void for_each_layer_product(const weights::LayerLayout& layout, at::Device device, at::ScalarType dtype, int64_t rows,
                            const std::function<void(const Product&)>& visit);
/// The same of the lm_head, which takes `rows` rows in chunks: of one chunk.
void for_each_head_product(const spec::ModelSpec& spec, at::Device device, at::ScalarType dtype, int64_t rows,
                           const std::function<void(const Product&)>& visit);

/// Nanoseconds of each of `trials`, the median of rounds that take turns, so that all see the same clock.
std::vector<double> time_trials(ops::Context& ctx, ops::GemmTrials& all, const Product& product,
                                const std::vector<std::size_t>& trials, int64_t rounds);

/// Nanoseconds of one trial after it alone has run for a while: a card at its power limit then has the clock that the
/// trial's own energy allows, which trials that take turns share.
double time_alone(ops::Context& ctx, ops::GemmTrials& all, const Product& product, std::size_t trial);

}  // namespace unsloth::bench
