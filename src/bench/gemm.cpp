#include "bench/gemm.h"

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <map>
#include <numeric>

#include <nlohmann/json.hpp>

#include "bench/ops.h"
#include "bench/products.h"
#include "unsloth/core/error.h"
#include "unsloth/memory/plan.h"
#include "unsloth/ops/device.h"
#include "unsloth/ops/dtype.h"
#include "unsloth/ops/gemm.h"
#include "unsloth/ops/gemm_trials.h"
#include "unsloth/session/session.h"
#include "unsloth/weights/layout.h"

namespace unsloth::bench {
namespace {

#if UNSLOTH_CUDA
/// The cost of a wave of each algorithm, from products of different K: least squares of ns_per_k K + ns.
class WaveCosts {
  public:
    void add(const ops::GemmTrials& trials, const Product& product, const std::vector<double>& ns) {
        const bool transposed = product.sets[0].transpose_b;
        for (std::size_t i = 0; i < ns.size(); ++i) {
            if (!trials.in_waves(i)) continue;
            Costs& costs = costs_[{transposed, trials.name(i)}];
            costs.choice = trials.choice(i, {}, 0);
            costs.points.push_back({static_cast<double>(product.k()), ns[i] / trials.waves(i)});
        }
        ++products_[transposed];
    }

    /// Choices of those that every product of their form could take: others were measured on other work.
    std::vector<spec::KernelChoice> choices() const {
        std::vector<spec::KernelChoice> result;
        for (const auto& [key, costs] : costs_) {
            if (static_cast<int>(costs.points.size()) < products_.at(key.first)) continue;
            double k = 0, t = 0, kk = 0, kt = 0;
            for (const auto& [x, y] : costs.points) k += x, t += y, kk += x * x, kt += x * y;
            const auto count = static_cast<double>(costs.points.size());
            const double spread = kk * count - k * k;
            if (spread <= 0) continue;
            const double slope = (kt * count - k * t) / spread;
            spec::KernelChoice& choice = result.emplace_back(costs.choice);
            constexpr int64_t fewest = 1024;  // rows and columns from which the time is that of the waves
            choice.tokens = choice.n = choice.k = {fewest, spec::Interval::no_end};
            choice.wave = {slope, (t - slope * k) / count};
        }
        return result;
    }

  private:
    struct Costs {
        spec::KernelChoice choice;
        std::vector<std::pair<double, double>> points;
    };
    std::map<std::pair<bool, std::string>, Costs> costs_;
    std::map<bool, int> products_;
};

void print(const engine_api::BenchRequest& request, const Product& product, double library, double ours, double best,
           const std::string& name) {
    const auto rate = [&](double ns) { return product.operations() / ns / 1e3; };
    const std::string shape = cat(product.m(), "x", product.n(), "x", product.k());
    if (request.json) {
        nlohmann::ordered_json line{{"bench", "gemm"},
                                    {"product", product.name},
                                    {"shape", shape},
                                    {"library_tflops", rate(library)},
                                    {"tflops", rate(ours)}};
        if (request.tune) line["best_tflops"] = rate(best), line["best"] = name;
        std::cout << line.dump() << "\n";
        return;
    }
    std::printf("%-12s %-22s %8.1f %8.1f %+6.1f%%", product.name.c_str(), shape.c_str(), rate(library), rate(ours),
                100 * (library / ours - 1));
    if (request.tune) std::printf(" %8.1f  %s", rate(best), name.c_str());
    std::printf("\n");
}
#endif

}  // namespace

void bench_gemm(const config::LoadedConfig& loaded, [[maybe_unused]] const engine_api::BenchRequest& request) {
    const at::Device device = ops::choose_device(loaded.config.hardware.device);
#if UNSLOTH_CUDA
    if (device.is_cuda()) {
        ProductBench bench(loaded, device);
        const at::ScalarType dtype = ops::scalar_type(loaded.config.model.dtype);
        if (!request.json)
            std::printf("%s\n%-12s %-22s %8s %8s\n", memory::describe_device(device).c_str(), "product", "shape",
                        "library", "ours");
        WaveCosts costs;
        std::vector<std::string> lines;
        const auto time_product = [&](const Product& product) {
            ops::GemmTrials trials(bench.ctx, product.sets[0]);
            std::vector<std::size_t> timed;
            if (request.tune) {
                std::vector<std::size_t> all(trials.count());
                std::iota(all.begin(), all.end(), std::size_t{0});
                const std::vector<double> ns =
                    time_trials(bench.ctx, trials, product, all, std::clamp<int64_t>(request.steps, 3, 7));
                costs.add(trials, product, ns);
                std::sort(all.begin(), all.end(), [&](std::size_t x, std::size_t y) { return ns[x] < ns[y]; });
                timed.assign(all.begin(),
                             all.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(all.size(), 6)));
            }
            const double library = time_alone(bench.ctx, trials, product, trials.first()),
                         ours = time_alone(bench.ctx, trials, product, trials.ours());
            std::size_t best = trials.ours();
            double least = ours;
            for (const std::size_t trial : timed) {
                const double ns = time_alone(bench.ctx, trials, product, trial);
                if (ns < least) least = ns, best = trial;
            }
            print(request, product, library, ours, least, trials.name(best));
            if (request.tune && least < 0.99 * ours)
                lines.push_back(spec::choice_text(trials.choice(best, {product.m(), product.m()}, product.k_base)));
        };
        const int64_t rows = request.batch * request.seq;
        for_each_layer_product(bench.layout, device, dtype, rows, time_product);
        for_each_head_product(bench.spec, device, dtype, rows, time_product);
        for (const spec::KernelChoice& choice : costs.choices()) lines.push_back(spec::choice_text(choice));
        for (const std::string& line : lines) (request.json ? std::cerr : std::cout) << line << "\n";
        std::cout.flush();
        return;
    }
#endif
    throw Error("device.needs-gpu",
                cat("bench gemm compares algorithms of a GPU's library; the device is ", device.str()));
}

}  // namespace unsloth::bench
