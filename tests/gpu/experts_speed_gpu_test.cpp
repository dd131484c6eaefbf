// Times of a layer of Qwen3-30B-A3B's experts by number of tokens, printed for the reader, who chooses from them who
// computes what. The assertions' bounds are far below what is expected.
#include <cstdio>

#include "gpu/gpu_testing.h"
#include "ops/nf4_experts_cases.h"

namespace unsloth {
namespace {

class ExpertsSpeedGpu : public testing::GpuTest {
  protected:
    static constexpr int64_t experts = 128, choices = 8, hidden = 2048, outputs = 2 * 768;

    static at::TensorOptions of(at::ScalarType type) { return at::TensorOptions(type).device(at::kCUDA); }
    static at::Tensor bf16(at::IntArrayRef shape) { return at::randn(shape, of(at::kBFloat16)); }

    /// Bytes per millisecond of a copy of a GiB.
    static double copy_rate() {
        static const double rate = [] {
            const at::Tensor from = bf16({int64_t{1} << 29}), to = at::empty_like(from);
            return 2.0 * static_cast<double>(from.nbytes()) / testing::milliseconds_of([&] { to.copy_(from); });
        }();
        return rate;
    }

    static double report(const std::string& name, double bytes, double operations, const std::function<void()>& call) {
        const double ms = testing::milliseconds_of(call), share = bytes / ms / copy_rate();
        std::printf("  %-44s %8.4f ms  %6.1f TF/s  %5.1f %% of a copy\n", name.c_str(), ms, operations / ms / 1e9,
                    100 * share);
        return share;
    }

    /// A router's choices for so many tokens.
    struct Chosen {
        explicit Chosen(ops::Context& ctx, int64_t tokens)
            : logits(at::randn({tokens, experts}, of(at::kFloat))),
              ids(at::zeros({tokens, choices}, of(at::kInt))),
              weights(at::zeros({tokens, choices}, of(at::kFloat))),
              order{at::zeros({experts}, of(at::kInt)), at::zeros({tokens * choices}, of(at::kInt)),
                    at::zeros({tokens, choices}, of(at::kInt))} {
            ctx.workspace =
                at::empty({ops::order_workspace(ctx.device(), tokens * choices, experts) + 1}, of(at::kByte));
            route(ctx);
            sort(ctx);
        }
        void route(ops::Context& ctx) const {
            ops::route(ctx, {.logits_TE = logits, .ids_Tk = ids, .weights_Tk = weights});
        }
        void sort(ops::Context& ctx) const { ops::order_by_expert(ctx, ids, order); }
        at::Tensor logits, ids, weights;
        ops::ExpertOrder order;
    };
};

TEST_F(ExpertsSpeedGpu, RowsOfAllTokens) {
    ops::Context ctx(at::kCUDA);
    const int64_t tokens = 16384, rows = tokens * choices;
    const Chosen chosen(ctx, tokens);
    const at::Tensor z = bf16({rows, hidden}), x = bf16({tokens, hidden}), y = at::empty_like(x),
                     dweights = at::empty_like(chosen.weights);
    const auto row_bytes = static_cast<double>(hidden * z.element_size());
    report("route", static_cast<double>(chosen.logits.nbytes()), 0, [&] { chosen.route(ctx); });
    report("order_by_expert", 3.0 * static_cast<double>(chosen.ids.nbytes()), 0, [&] { chosen.sort(ctx); });
    EXPECT_GT(report("combine", static_cast<double>(rows + 2 * tokens) * row_bytes, 0,
                     [&] {
                         ops::combine(ctx, {.z_nD = z,
                                            .places_Tk = chosen.order.places_Tk,
                                            .weights_Tk = chosen.weights,
                                            .residual_TD = x,
                                            .y_TD = y});
                     }),
              0.3);
    EXPECT_GT(report("combine_backward", static_cast<double>(2 * rows + tokens) * row_bytes, 0,
                     [&] {
                         ops::combine_backward(ctx, {.dy_TD = x,
                                                     .z_nD = z,
                                                     .places_Tk = chosen.order.places_Tk,
                                                     .weights_Tk = chosen.weights,
                                                     .dz_nD = z,
                                                     .dweights_Tk = dweights});
                     }),
              0.3);
}

TEST_F(ExpertsSpeedGpu, Products) {
    ops::Context ctx(at::kCUDA);
    const at::Tensor w = bf16({experts, outputs, hidden});
    at::Generator generator = at::detail::createCPUGenerator(5);
    const testing::GroupedShape shape{std::vector<int64_t>(experts), hidden, outputs};
    const ops::Nf4Experts tiles = testing::random_nf4_experts(ctx, shape, generator),
                          mxfp4 = testing::random_nf4_experts(ctx, shape, generator, testing::InTiles::mxfp4);
    const auto weight_bytes = static_cast<double>(w.nbytes());
    EXPECT_GT(report("dequantise all", weight_bytes * 1.258, 0, [&] { ops::dequantize_nf4_experts(ctx, tiles, w); }),
              0.4);
    EXPECT_GT(
        report("dequantise all of MXFP4", weight_bytes * 1.266, 0, [&] { ops::dequantize_nf4_experts(ctx, mxfp4, w); }),
        0.4);
    const bool has_library = at::cuda::getCurrentDeviceProperties()->major == 9;
    for (const int64_t tokens : {1, 8, 64, 256, 1024, 4096, 16384}) {
        const Chosen chosen(ctx, tokens);
        const int64_t rows = tokens * choices;
        const at::Tensor x = bf16({rows, hidden}), out = bf16({rows, outputs}),
                         da = at::zeros({experts, 16, hidden}, of(at::kFloat));
        const auto touched = static_cast<double>(std::get<0>(at::_unique(chosen.ids)).numel()) / experts;
        const double bytes = touched * weight_bytes, operations = 2.0 * static_cast<double>(rows * hidden * outputs);
        const std::string name = std::to_string(tokens) + " tokens: ";
        for (const ops::GroupedChoice choice : {ops::GroupedChoice::kernel, ops::GroupedChoice::library}) {
            const bool ours = choice == ops::GroupedChoice::kernel;
            if (!ours && !has_library) continue;
            for (const bool forward : {true, false}) {
                const double share = report(name + (forward ? "x W^T " : "dy W  ") + (ours ? "kernel" : "library"),
                                            bytes, operations, [&] {
                                                ops::grouped_product(ctx, {.x_nK = forward ? x : out,
                                                                           .w_ENK = w,
                                                                           .ends_E = chosen.order.ends_E,
                                                                           .out_nN = forward ? out : x,
                                                                           .transpose_w = forward,
                                                                           .choice = choice});
                                            });
                if (ours && tokens == 64) {
                    EXPECT_GT(share, 0.25) << "weights of few rows are read slowly";
                }
            }
        }
        if (tokens <= 1024) {
            const double share = report(name + "x W^T of tiles", bytes * 0.258, operations, [&] {
                ops::nf4_grouped_product(ctx,
                                         {.x_nK = x, .weights = tiles, .ends_E = chosen.order.ends_E, .out_nN = out});
            });
            if (tokens == 64) {
                EXPECT_GT(share, 0.15) << "tiles of few rows are read slowly";
            }
            report(name + "x W^T of MXFP4 tiles", bytes * 0.266, operations, [&] {
                ops::nf4_grouped_product(ctx,
                                         {.x_nK = x, .weights = mxfp4, .ends_E = chosen.order.ends_E, .out_nN = out});
            });
        }
        report(name + "dA of rank 16", static_cast<double>(x.nbytes()), 0, [&] {
            ops::grouped_gradient(
                ctx, {.a_nM = out.narrow(1, 0, 16), .b_nN = x, .ends_E = chosen.order.ends_E, .out_EMN = da});
        });
    }
}

}  // namespace
}  // namespace unsloth
