#include "bench/tune.h"

#include <algorithm>
#include <cstdio>
#include <numeric>

#include "bench/ops.h"
#include "bench/products.h"
#include "unsloth/core/error.h"

namespace unsloth::bench {
namespace {

#if UNSLOTH_CUDA
void append_new(std::vector<std::size_t>& to, std::size_t trial) {
    if (std::find(to.begin(), to.end(), trial) == to.end()) to.push_back(trial);
}

/// What is worth a step: ours, the library's choice, the fastest in turns, and of more of those the fastest alone.
std::vector<std::size_t> finalists(ops::Context& ctx, ops::GemmTrials& trials, const Product& product) {
    constexpr std::size_t in_turn = 3, tried_alone = 12, alone = 4;
    constexpr int64_t rounds = 3;
    std::vector<std::size_t> all(trials.count());
    std::iota(all.begin(), all.end(), std::size_t{0});
    const std::vector<double> ns = time_trials(ctx, trials, product, all, rounds);
    std::sort(all.begin(), all.end(), [&](std::size_t x, std::size_t y) { return ns[x] < ns[y]; });
    std::vector<std::size_t> result{trials.ours()};
    append_new(result, trials.first());
    for (std::size_t i = 0; i < std::min(in_turn, all.size()); ++i) append_new(result, all[i]);
    std::vector<std::pair<double, std::size_t>> by_energy;
    for (std::size_t i = 0; i < std::min(tried_alone, all.size()); ++i)
        by_energy.emplace_back(time_alone(ctx, trials, product, all[i]), all[i]);
    std::sort(by_energy.begin(), by_energy.end());
    for (std::size_t i = 0; i < std::min(alone, by_energy.size()); ++i) append_new(result, by_energy[i].second);
    return result;
}
#endif

}  // namespace

void require_tunable(const config::Config& config, at::Device device) {
    if (!device.is_cuda())
        throw usage_error(
            cat("bench step --tune compares algorithms of a GPU's library; the device is ", device.str()));
    if (config.hardware.cuda_graphs)
        throw usage_error("bench step --tune changes products between steps, and recorded steps keep theirs",
                          "Add --hardware.cuda_graphs false.");
}

void tune_products([[maybe_unused]] BenchedModel& benched, [[maybe_unused]] StepTimer& timer,
                   [[maybe_unused]] const config::LoadedConfig& loaded,
                   [[maybe_unused]] const config::BenchRequest& request) {
#if UNSLOTH_CUDA
    ops::Context& ctx = benched.ctx();
    const weights::LayerLayout layout = adapted_layout(loaded, benched.spec());
    const at::ScalarType dtype = benched.request().dtype;
    std::vector<std::string> lines;
    for_each_layer_product(layout, ctx.device(), dtype, benched.request().sizes.tokens, [&](const Product& product) {
        ops::GemmTrials trials(ctx, product.sets[0]);
        const std::vector<std::size_t> tried = finalists(ctx, trials, product);
        std::vector<double> ms;
        for (const std::size_t trial : tried) {
            trials.prefer(trial);
            timer.run(1);
            ms.push_back(timer.run(request.steps).ms);
            std::printf("%-12s %9.3f ms a step  %s\n", product.name.c_str(), ms.back(), trials.name(trial).c_str());
            std::fflush(stdout);
        }
        const auto best = static_cast<std::size_t>(std::min_element(ms.begin(), ms.end()) - ms.begin());
        trials.prefer(tried[best]);
        lines.push_back(trials.product_line(tried[best], product.m(), product.m(), product.k_base));
    });
    for (const std::string& line : lines) std::printf("%s\n", line.c_str());
#endif
}

}  // namespace unsloth::bench
