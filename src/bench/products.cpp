#include "bench/products.h"

#if UNSLOTH_CUDA
#include <algorithm>
#include <chrono>

#include "bench/ops.h"
#include "unsloth/core/error.h"
#include "unsloth/session/session.h"

namespace unsloth::bench {
namespace {

using Clock = std::chrono::steady_clock;

/// Makes products of random operands.
class Operands {
  public:
    Operands(at::Device device, at::ScalarType dtype) : options_(at::TensorOptions(dtype).device(device)) {}

    /// y [rows, n] = x [rows, k] wᵀ, or x w when not `transposed`; rows of out `ld_out` elements apart.
    Product product(std::string name, int64_t rows, int64_t n, int64_t k, int64_t k_base, bool transposed, int64_t ld_w,
                    int64_t ld_out, bool residual) const {
        constexpr int64_t beyond_cache = int64_t{256} << 20, most_sets = 16;
        const int64_t elements = transposed ? n * ld_w : k * ld_w;
        Product result{.name = std::move(name), .k_base = k_base};
        const int64_t bytes = elements * static_cast<int64_t>(options_.dtype().itemsize());
        for (int64_t i = 0; i < std::clamp<int64_t>(beyond_cache / bytes + 1, 1, most_sets); ++i) {
            ops::Gemm g{
                .a = at::randn({rows, weights::row_stride(k)}, options_).narrow(1, 0, k),
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

}  // namespace

weights::LayerLayout adapted_layout(const config::LoadedConfig& loaded, const spec::ModelSpec& spec) {
    return weights::make_layout(spec, spec::resolve_lora(placement::lora_spec(loaded), spec));
}

ProductBench::ProductBench(const config::LoadedConfig& loaded, at::Device device)
    : spec(benched_spec(loaded, "llama-3.1-8b")), layout(adapted_layout(loaded, spec)), ctx(device) {
    ctx.workspace = at::empty({ops::gemm_workspace(device)}, at::TensorOptions(at::kByte).device(device));
}

void for_each_layer_product(const weights::LayerLayout& layout, at::Device device, at::ScalarType dtype, int64_t rows,
                            const std::function<void(const Product&)>& visit) {
    const Operands make(device, dtype);
    const int64_t widest = layout.widest_rank();
    for (const weights::Group g : layout.single_groups()) {
        const auto [n, k, r] = std::tuple{layout[g].n, layout[g].k, layout[g].r};
        const bool residual = g == weights::Group::o || g == weights::Group::down;
        visit(make.product(name_of(g), rows, n, k + r, k, true, layout[g].leading(),
                           g == weights::Group::gate_up ? weights::row_stride(n + r) : n, residual));
        visit(make.product(cat(name_of(g), " dx"), rows, k, n + r, n, false, layout[g].leading(),
                           weights::row_stride(k + widest), false));
    }
}

void for_each_head_product(const spec::ModelSpec& spec, at::Device device, at::ScalarType dtype, int64_t rows,
                           const std::function<void(const Product&)>& visit) {
    const Operands make(device, dtype);
    const int64_t chunk = placement::head_chunk_rows(spec, dtype, rows), vocab = spec.vocab_size,
                  hidden = spec.hidden_size;
    visit(make.product("lm_head", chunk, vocab, hidden, hidden, true, hidden, vocab, false));
    visit(make.product("lm_head dx", chunk, hidden, vocab, vocab, false, hidden, hidden, false));
}

std::vector<double> time_trials(ops::Context& ctx, ops::GemmTrials& all, const Product& product,
                                const std::vector<std::size_t>& trials, int64_t rounds) {
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
            if (round >= 0)
                ns[i].push_back(std::chrono::duration<double, std::nano>(Clock::now() - start).count() / calls);
        }
    }
    std::vector<double> medians;
    for (std::vector<double>& times : ns) {
        std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
        medians.push_back(times[times.size() / 2]);
    }
    return medians;
}

double time_alone(ops::Context& ctx, ops::GemmTrials& all, const Product& product, std::size_t trial) {
    constexpr double half_ms = 100, operations_per_ms = 6e11;
    const int calls = std::max(2, static_cast<int>(half_ms * operations_per_ms / product.operations()));
    double ns = 0;
    for (int half = 0; half < 2; ++half) {
        synchronize(ctx);
        const auto start = Clock::now();
        for (int call = 0; call < calls; ++call)
            all.run(trial, product.sets[static_cast<std::size_t>(call) % product.sets.size()]);
        synchronize(ctx);
        ns = std::chrono::duration<double, std::nano>(Clock::now() - start).count() / calls;
    }
    return ns;
}

}  // namespace unsloth::bench
#endif
