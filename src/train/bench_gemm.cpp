#include "unsloth/train/bench_gemm.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <iostream>
#include <map>
#include <numeric>

#include <nlohmann/json.hpp>

#include "unsloth/core/error.h"
#include "unsloth/model/decoder_layer.h"
#include "unsloth/model/layout.h"
#include "unsloth/ops/gemm.h"
#include "unsloth/ops/gemm_trials.h"
#include "unsloth/train/bench_ops.h"
#include "unsloth/train/session.h"

namespace unsloth::train {
namespace {

#if UNSLOTH_CUDA
using Clock = std::chrono::steady_clock;

/// A product with several sets of operands, so that small ones come from memory as in a step, not from the cache.
struct Product {
    std::string name;
    std::vector<ops::Gemm> sets;
    int64_t k_base = 0;  ///< without adapters

    int64_t m() const { return sets[0].out.size(0); }
    int64_t n() const { return sets[0].out.size(1); }
    int64_t k() const { return sets[0].a.size(1); }
    double operations() const { return 2.0 * static_cast<double>(m()) * static_cast<double>(n()) * static_cast<double>(k()); }
};

/// Makes products of random operands.
class Operands {
  public:
    Operands(at::Device device, at::ScalarType dtype) : options_(at::TensorOptions(dtype).device(device)) {}

    /// y [rows, n] = x [rows, k] wᵀ, or x w when `w_KN`; rows of out `ld_out` elements apart.
    Product product(std::string name, int64_t rows, int64_t n, int64_t k, int64_t k_base, bool transposed, int64_t ld_w, int64_t ld_out,
                    bool residual) const {
        constexpr int64_t beyond_cache = int64_t{256} << 20, most_sets = 16;
        const int64_t elements = transposed ? n * ld_w : k * ld_w;
        Product result{.name = std::move(name), .k_base = k_base};
        const int64_t bytes = elements * static_cast<int64_t>(options_.dtype().itemsize());
        for (int64_t i = 0; i < std::clamp<int64_t>(beyond_cache / bytes + 1, 1, most_sets); ++i) {
            ops::Gemm g{.a = at::randn({rows, k}, options_),
                        .b = at::randn({transposed ? n : k, ld_w}, options_).mul_(0.02).narrow(1, 0, transposed ? k : n),
                        .out = at::empty({rows, ld_out}, options_).narrow(1, 0, n),
                        .transpose_b = transposed};
            if (residual) {
                g.beta = 1.0;
                g.c = at::randn({rows, n}, options_);
            }
            result.sets.push_back(std::move(g));
        }
        return result;
    }

  private:
    at::TensorOptions options_;
};

/// Calls `visit` with every product of a layer and of the lm_head, one at a time.
void for_each_product(const ModelSpec& spec, const model::LayerLayout& layout, at::Device device, at::ScalarType dtype, int64_t rows,
                      const std::function<void(const Product&)>& visit) {
    const Operands make(device, dtype);
    const int64_t widest = layout.widest_rank(), hidden = spec.hidden_size;
    for (const model::Group g : model::all_groups) {
        const auto [n, k, r] = std::tuple{layout[g].n, layout[g].k, layout[g].r};
        const bool residual = g == model::Group::o || g == model::Group::down;
        visit(make.product(name_of(g), rows, n, k + r, k, true, k + r, g == model::Group::gate_up ? n + r : n, residual));
        visit(make.product(cat(name_of(g), " dx"), rows, k, n + r, n, false, k + r, k + widest, false));
    }
    const int64_t chunk = head_chunk_rows(spec, dtype, rows), vocab = spec.vocab_size;
    visit(make.product("lm_head", chunk, vocab, hidden, hidden, true, hidden, vocab, false));
    visit(make.product("lm_head dx", chunk, hidden, vocab, vocab, false, hidden, hidden, false));
}

/// Nanoseconds of each of `trials`, the median of rounds that take turns, so that all see the same clock.
std::vector<double> time_trials(ops::Context& ctx, ops::GemmTrials& all, const Product& product, const std::vector<std::size_t>& trials,
                                int64_t rounds) {
    constexpr double least_ms = 10, operations_per_ms = 6e11;
    const int calls = std::max(2, static_cast<int>(least_ms * operations_per_ms / product.operations()));
    std::vector<std::vector<double>> ns(trials.size());
    for (int64_t round = -1; round < rounds; ++round) {  // the first one loads the kernels
        for (std::size_t i = 0; i < trials.size(); ++i) {
            synchronize(ctx);
            const auto start = Clock::now();
            for (int call = 0; call < (round < 0 ? 1 : calls); ++call)
                all.run(trials[i], product.sets[static_cast<std::size_t>(call) % product.sets.size()]);
            synchronize(ctx);
            if (round >= 0) ns[i].push_back(std::chrono::duration<double, std::nano>(Clock::now() - start).count() / calls);
        }
    }
    std::vector<double> medians;
    for (std::vector<double>& times : ns) {
        std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
        medians.push_back(times[times.size() / 2]);
    }
    return medians;
}

/// Nanoseconds of one trial after it alone has run for a while: a card at its power limit then has the clock that the trial's own
/// energy allows, which trials that take turns share.
double time_alone(ops::Context& ctx, ops::GemmTrials& all, const Product& product, std::size_t trial) {
    constexpr double half_ms = 100, operations_per_ms = 6e11;
    const int calls = std::max(2, static_cast<int>(half_ms * operations_per_ms / product.operations()));
    double ns = 0;
    for (int half = 0; half < 2; ++half) {
        synchronize(ctx);
        const auto start = Clock::now();
        for (int call = 0; call < calls; ++call) all.run(trial, product.sets[static_cast<std::size_t>(call) % product.sets.size()]);
        synchronize(ctx);
        ns = std::chrono::duration<double, std::nano>(Clock::now() - start).count() / calls;
    }
    return ns;
}

/// The cost of a wave of each algorithm, from products of different K: least squares of ns_per_k K + ns.
class WaveCosts {
  public:
    void add(const ops::GemmTrials& trials, const Product& product, const std::vector<double>& ns) {
        const bool transposed = product.sets[0].transpose_b;
        for (std::size_t i = 0; i < ns.size(); ++i)
            if (trials.in_waves(i))
                points_[{transposed, trials.name(i)}].push_back({static_cast<double>(product.k()), ns[i] / trials.waves(i)});
        ++products_[transposed];
    }

    /// Lines of those that every product of their form could take: others were measured on other work.
    std::vector<std::string> lines() const {
        std::vector<std::string> result;
        for (const auto& [key, points] : points_) {
            if (static_cast<int>(points.size()) < products_.at(key.first)) continue;
            double k = 0, t = 0, kk = 0, kt = 0;
            for (const auto& [x, y] : points) k += x, t += y, kk += x * x, kt += x * y;
            const auto count = static_cast<double>(points.size());
            const double spread = kk * count - k * k;
            if (spread <= 0) continue;
            const double slope = (kt * count - k * t) / spread;
            result.push_back(ops::GemmTrials::tile_line(key.first, slope, (t - slope * k) / count, key.second));
        }
        return result;
    }

  private:
    std::map<std::pair<bool, std::string>, std::vector<std::pair<double, double>>> points_;
    std::map<bool, int> products_;
};

void print(const BenchRequest& request, const Product& product, double library, double ours, double best, const std::string& name) {
    const auto rate = [&](double ns) { return product.operations() / ns / 1e3; };
    const std::string shape = cat(product.m(), "x", product.n(), "x", product.k());
    if (request.json) {
        nlohmann::ordered_json line{{"bench", "gemm"}, {"product", product.name}, {"shape", shape}, {"library_tflops", rate(library)},
                                    {"tflops", rate(ours)}};
        if (request.tune) line["best_tflops"] = rate(best), line["best"] = name;
        std::cout << line.dump() << "\n";
        return;
    }
    std::printf("%-12s %-22s %8.1f %8.1f %+6.1f%%", product.name.c_str(), shape.c_str(), rate(library), rate(ours), 100 * (library / ours - 1));
    if (request.tune) std::printf(" %8.1f  %s", rate(best), name.c_str());
    std::printf("\n");
}
#endif

}  // namespace

void bench_gemm(const LoadedConfig& loaded, [[maybe_unused]] const BenchRequest& request) {
    const at::Device device = choose_device(loaded.config.hardware.device);
#if UNSLOTH_CUDA
    if (device.is_cuda()) {
        const ModelSpec spec = benched_spec(loaded, "llama-3.1-8b");
        const model::LayerLayout layout = model::make_layout(spec, resolve_lora(lora_spec(loaded.config.lora), spec));
        const at::ScalarType dtype = model::scalar_type(loaded.config.model.dtype);
        ops::Context ctx(device);
        ctx.workspace = at::empty({ops::gemm_workspace(device)}, at::TensorOptions(at::kByte).device(device));
        if (!request.json) std::printf("%s\n%-12s %-22s %8s %8s\n", describe_device(device).c_str(), "product", "shape", "library", "ours");
        WaveCosts costs;
        std::vector<std::string> lines;
        for_each_product(spec, layout, device, dtype, request.batch * request.seq, [&](const Product& product) {
            ops::GemmTrials trials(ctx, product.sets[0]);
            std::vector<std::size_t> timed;
            if (request.tune) {
                std::vector<std::size_t> all(trials.count());
                std::iota(all.begin(), all.end(), std::size_t{0});
                const std::vector<double> ns = time_trials(ctx, trials, product, all, std::clamp<int64_t>(request.steps, 3, 7));
                costs.add(trials, product, ns);
                std::sort(all.begin(), all.end(), [&](std::size_t x, std::size_t y) { return ns[x] < ns[y]; });
                timed.assign(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(all.size(), 6)));
            }
            const double library = time_alone(ctx, trials, product, trials.first()), ours = time_alone(ctx, trials, product, trials.ours());
            std::size_t best = trials.ours();
            double least = ours;
            for (const std::size_t trial : timed) {
                const double ns = time_alone(ctx, trials, product, trial);
                if (ns < least) least = ns, best = trial;
            }
            print(request, product, library, ours, least, trials.name(best));
            if (request.tune && least < 0.99 * ours) lines.push_back(trials.product_line(best, product.m(), product.m(), product.k_base));
        });
        for (const std::string& line : costs.lines()) lines.push_back(line);
        for (const std::string& line : lines) (request.json ? std::cerr : std::cout) << line << "\n";
        std::cout.flush();
        return;
    }
#endif
    throw usage_error(cat("bench gemm compares algorithms of a GPU's library; the device is ", device.str()));
}

}  // namespace unsloth::train
