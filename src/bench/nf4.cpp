#include "bench/nf4.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <iostream>

#include <nlohmann/json.hpp>

#include "bench/ops.h"
#include "bench/products.h"
#include "unsloth/core/error.h"
#include "unsloth/core/log.h"
#include "unsloth/memory/plan.h"
#include "unsloth/ops/device.h"
#include "unsloth/ops/gemm.h"
#include "unsloth/ops/nf4_gemm.h"
#include "unsloth/session/session.h"
#include "unsloth/weights/layout.h"

namespace unsloth::bench {
namespace {

#if UNSLOTH_CUDA
using Clock = std::chrono::steady_clock;
using Kernel = ops::Nf4GemmChoice::Kernel;

/// A group's weights in every form that is compared.
struct WeightForms {
    std::vector<ops::Quant4Tensor> rows;
    std::vector<ops::Nf4Tiles> tiles;
    at::Tensor buffer;  ///< bf16 [N + R, K + R], the base within
};

/// Several sets of a group's weights, so that a product reads them from memory and not from the second-level cache.
std::vector<WeightForms> make_weights(ops::Context& ctx, const weights::MatrixGroup& group) {
    constexpr int64_t beyond_cache = int64_t{150} << 20, most_sets = 16;
    const auto options = at::TensorOptions(at::kBFloat16).device(ctx.device());
    std::vector<WeightForms> sets(
        static_cast<std::size_t>(std::clamp<int64_t>(beyond_cache / (group.n * group.k / 2) + 1, 2, most_sets)));
    for (WeightForms& set : sets) {
        set.buffer = at::randn({group.n + group.r, group.leading()}, options).mul_(0.02);
        for (const weights::Slice& slice : group.slices) {
            set.rows.push_back(ops::quantize_nf4(
                ctx, set.buffer.narrow(0, slice.n_begin, slice.n).narrow(1, 0, group.k).contiguous()));
            set.tiles.push_back(ops::make_nf4_tiles(ctx, set.rows.back()));
        }
    }
    return sets;
}

/// Microseconds of call(i), the median of three rounds of at least `least_ms`; a first impression where that is above
/// `hopeless_us`.
double time_us(ops::Context& ctx, const std::function<void(std::size_t)>& call, double least_ms = 2,
               double hopeless_us = 1e12) {
    const auto seconds_of = [&](int calls) {
        synchronize(ctx);
        const auto start = Clock::now();
        for (int i = 0; i < calls; ++i) call(static_cast<std::size_t>(i));
        synchronize(ctx);
        return std::chrono::duration<double>(Clock::now() - start).count();
    };
    seconds_of(1);  // loads kernels, chooses algorithms
    const double impression = seconds_of(2) / 2;
    if (impression * 1e6 > hopeless_us) return impression * 1e6;
    const int calls = std::clamp(static_cast<int>(1e-3 * least_ms / std::max(impression, 1e-6)), 1, 200);
    std::vector<double> rounds;
    for (int round = 0; round < 3; ++round) rounds.push_back(seconds_of(calls) / calls * 1e6);
    return median(rounds);
}

struct FormTimes {
    int64_t m = 0;
    double library_us = 0, dequantise_us = 0, own_us = 0;
    ops::Nf4GemmChoice form;

    /// Whether the tiles are faster by more than such measurements differ.
    bool tiles_win() const { return own_us < 0.97 * dequantise_us; }
};

std::string text_of(const ops::Nf4GemmChoice& form) {
    if (form.kernel == Kernel::sm90) return cat("sm90(", form.tokens, ", ", form.split, ")");
    if (form.kernel == Kernel::sm90_pairs) return cat("pairs(", form.tokens, ", ", form.split, ")");
    if (form.kernel == Kernel::few) return cat("few(", form.tokens, ")");
    return cat("portable(", form.token_groups, ", ", form.strips, ", ", form.warps, ")");
}

/// Whether a form is worth timing at m tokens: small tiles of tokens read the weights again and again.
bool worth_timing(const ops::Nf4GemmChoice& form, int64_t m) {
    constexpr int64_t most_portable = 64, most_few = 16, widest = 256, card_is_full = 2048;
    if (form.kernel == Kernel::few) return m <= most_few;
    if (form.kernel == Kernel::portable) return m <= most_portable;
    return 2 * form.tokens >= std::min(m, widest) && (m < card_is_full || form.split == 1);
}

/// One product for m tokens in its three ways.
FormTimes measure(ops::Context& ctx, const weights::MatrixGroup& group, const std::vector<WeightForms>& sets,
                  bool transposed, int64_t m) {
    const auto options = at::TensorOptions(at::kBFloat16).device(ctx.device());
    const int64_t in = transposed ? group.n : group.k, out_columns = transposed ? group.k : group.n;
    log::debug("bench nf4: ", m, " tokens, n ", group.n, ", k ", group.k, transposed ? ", transposed" : "");
    const at::Tensor x = at::randn({m, weights::row_stride(in + group.r)}, options).narrow(1, 0, in + group.r),
                     out = at::empty({m, out_columns}, options);
    const auto product = [&](std::size_t i) {
        const at::Tensor& w = sets[i % sets.size()].buffer;
        ops::gemm(ctx,
                  {.a = x,
                   .b = transposed ? w.narrow(1, 0, group.k) : w.narrow(0, 0, group.n).narrow(1, 0, group.inputs()),
                   .out = out,
                   .transpose_b = !transposed});
    };
    FormTimes result{.m = m, .library_us = time_us(ctx, product)};
    result.dequantise_us = time_us(ctx, [&](std::size_t i) {
        const WeightForms& set = sets[i % sets.size()];
        std::vector<spec::Quant4View> rows;
        std::vector<at::Tensor> outs;
        for (std::size_t s = 0; s < group.slices.size(); ++s) {
            rows.push_back(set.rows[s].view());
            outs.push_back(set.buffer.narrow(0, group.slices[s].n_begin, group.slices[s].n).narrow(1, 0, group.k));
        }
        ops::dequantize_4bit(ctx, rows, outs);
        product(i);
    });
    const auto own = [&](const ops::Nf4GemmChoice& form) {
        return [&, form](std::size_t i) {
            const WeightForms& set = sets[i % sets.size()];
            ops::Nf4Gemm args{.weights = set.tiles, .transposed = transposed, .x = x, .out = out};
            if (group.r > 0)
                args.tail_weight = transposed ? set.buffer.narrow(0, group.n, group.r).narrow(1, 0, group.k)
                                              : set.buffer.narrow(0, 0, group.n).narrow(1, group.k, group.r);
            ops::nf4_gemm(ctx, args, form);
        };
    };
    // All forms shortly, then the fastest again.
    std::vector<std::pair<double, ops::Nf4GemmChoice>> forms;
    double best = result.dequantise_us;
    for (const ops::Nf4GemmChoice& form : ops::nf4_gemm_forms(ctx.device(), transposed)) {
        if (!worth_timing(form, m)) continue;
        log::debug("bench nf4: ", m, " tokens by ", text_of(form));
        forms.emplace_back(time_us(ctx, own(form), 0.1, 1.5 * best), form);
        best = std::min(best, forms.back().first);
    }
    constexpr std::size_t finalists = 4;
    std::sort(forms.begin(), forms.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    if (forms.size() > finalists) forms.resize(finalists);
    for (const auto& [quick, form] : forms) {
        const double us = time_us(ctx, own(form));
        if (result.own_us == 0 || us < result.own_us) result.own_us = us, result.form = form;
    }
    return result;
}

void print(const engine_api::BenchRequest& request, const std::string& name, const weights::MatrixGroup& group,
           const FormTimes& r) {
    const double share = r.library_us / r.own_us;
    if (request.json) {
        std::cout << nlohmann::ordered_json{{"bench", "nf4"},
                                            {"product", name},
                                            {"m", r.m},
                                            {"n", group.n},
                                            {"k", group.k},
                                            {"r", group.r},
                                            {"library_us", r.library_us},
                                            {"dequantise_and_library_us", r.dequantise_us},
                                            {"own_us", r.own_us},
                                            {"form", text_of(r.form)},
                                            {"own_share_of_library", share}}
                         .dump()
                  << std::endl;
        return;
    }
    std::printf("%-12s %6lld %10.1f %12.1f %10.1f %6.0f%%  %-22s %s\n", name.c_str(), static_cast<long long>(r.m),
                r.library_us, r.dequantise_us, r.own_us, 100 * share, text_of(r.form).c_str(),
                r.tiles_win() ? "tiles" : "dequantise");
}

/// A form as a table's kernel and its parameters.
void set_kernel(spec::KernelChoice& choice, const ops::Nf4GemmChoice& form) {
    switch (form.kernel) {
        case Kernel::few:
            choice.kernel = spec::KernelSource::few;
            choice.parameters = {form.tokens};
            return;
        case Kernel::sm90:
        case Kernel::sm90_pairs:
            choice.kernel = form.kernel == Kernel::sm90 ? spec::KernelSource::sm90 : spec::KernelSource::sm90_pairs;
            choice.parameters = {form.tokens, form.split};
            return;
        default:
            choice.kernel = spec::KernelSource::portable;
            choice.parameters = {form.token_groups, form.strips, form.warps};
    }
}

/// Choices up to the largest m for which the tiles are faster: the form measured at m is used from the m
/// before it (exclusive) up to m.
std::vector<spec::KernelChoice> choices_of(const weights::MatrixGroup& group, bool transposed,
                                           const std::vector<FormTimes>& measured) {
    std::vector<spec::KernelChoice> choices;
    int64_t first = 0;
    for (const FormTimes& r : measured) {
        if (!r.tiles_win()) break;
        spec::KernelChoice& choice = choices.emplace_back();
        choice.op = spec::KernelOperator::gemm_nf4;
        choice.form = transposed ? spec::ProductForm::nn : spec::ProductForm::nt;
        choice.tokens = {first, r.m};
        choice.n = {group.n, group.n};
        choice.k = {group.k, group.k};
        set_kernel(choice, r.form);
        first = r.m + 1;
    }
    return choices;
}
#endif

}  // namespace

#if UNSLOTH_CUDA
std::vector<spec::KernelChoice> nf4_choices(ops::Context& ctx, const weights::LayerLayout& layout) {
    std::vector<spec::KernelChoice> all;
    for (const weights::Group g : layout.single_groups()) {
        const std::vector<WeightForms> sets = make_weights(ctx, layout[g]);
        for (const bool transposed : {false, true}) {
            std::vector<FormTimes> measured;
            for (const int64_t m : {1, 4, 8, 16, 32, 64, 128, 256, 512}) {
                measured.push_back(measure(ctx, layout[g], sets, transposed, m));
                if (!measured.back().tiles_win()) break;
            }
            const std::vector<spec::KernelChoice> choices = choices_of(layout[g], transposed, measured);
            all.insert(all.end(), choices.begin(), choices.end());
        }
    }
    return all;
}
#endif

void bench_nf4(const config::LoadedConfig& loaded, [[maybe_unused]] const engine_api::BenchRequest& request) {
    const at::Device device = ops::choose_device(loaded.config.hardware.device);
#if UNSLOTH_CUDA
    if (device.is_cuda()) {
        ProductBench bench(loaded, device);
        const weights::LayerLayout& layout = bench.layout;
        if (!request.json)
            std::printf("%s\n%-12s %6s %10s %12s %10s %7s\n", memory::describe_device(device).c_str(), "product",
                        "tokens", "library us", "dequant+ us", "tiles us", "of lib.");
        const std::vector<int64_t> all_tokens =
            request.batch > 0 ? std::vector<int64_t>{request.batch}
                              : std::vector<int64_t>{1, 8, 16, 32, 64, 128, 256, 512, 2048, 8192, 16384};
        for (const weights::Group g : layout.single_groups()) {
            const std::vector<WeightForms> sets = make_weights(bench.ctx, layout[g]);
            for (const bool transposed : {false, true}) {
                std::vector<FormTimes> measured;
                for (const int64_t m : all_tokens) {
                    measured.push_back(measure(bench.ctx, layout[g], sets, transposed, m));
                    print(request, cat(name_of(g), transposed ? " dx" : ""), layout[g], measured.back());
                }
                for (const spec::KernelChoice& choice : choices_of(layout[g], transposed, measured))
                    (request.json ? std::cerr : std::cout) << spec::choice_text(choice) << std::endl;
            }
        }
        return;
    }
#endif
    throw Error("device.needs-gpu", cat("bench nf4 compares kernels of a GPU; the device is ", device.str()));
}

}  // namespace unsloth::bench
