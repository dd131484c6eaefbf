// Cases of products by tiled 4-bit weights, run on the CPU (tests/ops) and on the GPU (tests/gpu).
#pragma once

#include "ops/quant_cases.h"
#include "ops/tensor_testing.h"
#include "unsloth/ops/nf4_gemm.h"

namespace unsloth::nf4_gemm_cases {

struct Case {
    std::vector<int64_t> rows;  ///< of the stacked weights
    int64_t cols = 0;
    int64_t tail = 0;
    bool bias = false, residual = false;
    bool own_tails = false;  ///< each weight's rows have columns of the tail of their own, forward
};

/// Odd numbers of tiles, several weights, tails of less and more than a tile's 64 columns, several nested
/// blocks.
inline const std::vector<Case> cases = {
    {{64}, 64, 0, false, false},
    {{128}, 256, 16, true, true},
    {{192}, 320, 24, false, true},
    {{256, 64, 64}, 512, 48, true, false},
    {{320}, 1024, 72, true, true},
    {{1024}, 448, 8, false, false},
    {{256, 128, 128}, 512, 48, true, false, true},
    {{128, 256, 128}, 256, 432, false, true, true},
    {{128, 64}, 256, 32, false, false, true},
};

/// One product with its operands on a device, as slices of wider guarded storage, and its value in fp64.
struct Product {
    std::vector<ops::Nf4Tiles> weights;
    std::vector<ops::TailColumns> tail_columns;
    ops::Nf4Gemm args;
    at::Tensor before;    ///< out's storage before the product, on the CPU
    at::Tensor expected;  ///< fp64 [M, out], on the CPU
    at::Tensor by_fp32,
        spread;  ///< the same by weights that were not rounded, and the root of the sum of the squared terms
};

inline Product make(ops::Context& ctx, const Case& c, bool transposed, int64_t m, at::ScalarType type,
                    at::Generator generator) {
    using testing::Layout;
    const auto random = [&](at::IntArrayRef shape) { return at::randn(shape, generator).to(type); };
    const auto on_device = [&](const at::Tensor& values, Layout layout) {
        return testing::copy_with_storage(testing::slice_of(values, type, layout), ctx.device());
    };
    Product p;
    std::vector<at::Tensor> dequantised, exact;
    for (const int64_t rows : c.rows) {
        const ops::Quant4Tensor host = quant_cases::random_weight(rows, c.cols, true, generator);
        exact.push_back(quant_cases::reference(host));
        dequantised.push_back(exact.back().to(type));
        p.weights.push_back(ops::make_nf4_tiles(ctx, ctx.is_cuda() ? ops::upload(ctx, host.view()) : host));
    }
    const at::Tensor w_NK = at::cat(dequantised).to(at::kDouble);
    const int64_t sum = w_NK.size(transposed ? 0 : 1), out = w_NK.size(transposed ? 1 : 0);
    const at::Tensor x = random({m, sum + c.tail});
    const at::Tensor tail = random(transposed ? at::IntArrayRef{c.tail, out} : at::IntArrayRef{out, c.tail});
    if (c.own_tails && !transposed) {
        const int64_t count = c.tail / static_cast<int64_t>(c.rows.size());
        int64_t row = 0, column = 0;
        for (const int64_t rows : c.rows) {
            tail.narrow(0, row, rows).narrow(1, 0, column).zero_();
            tail.narrow(0, row, rows).narrow(1, column + count, c.tail - column - count).zero_();
            p.tail_columns.push_back({column, count});
            row += rows, column += count;
        }
    }
    const at::Tensor x64 = x.to(at::kDouble), tail64 = tail.to(at::kDouble);
    p.expected = at::mm(x64.narrow(1, 0, sum), transposed ? w_NK : w_NK.t()) +
                 at::mm(x64.narrow(1, sum, c.tail), transposed ? tail64 : tail64.t());
    const at::Tensor exact_NK = at::cat(exact).to(at::kDouble), exact_KO = transposed ? exact_NK : exact_NK.t();
    p.by_fp32 = p.expected + at::mm(x64.narrow(1, 0, sum), exact_KO - (transposed ? w_NK : w_NK.t()));
    p.spread = at::mm(x64.narrow(1, 0, sum).square(), exact_KO.square()).sqrt();
    p.args = {.weights = p.weights, .transposed = transposed, .x = on_device(x, Layout::wide)};
    if (c.tail > 0) p.args.tail_weight = on_device(tail, Layout::wide);
    p.args.tail_columns = p.tail_columns;
    if (c.bias) {
        const at::Tensor bias = random({out});
        p.args.bias = bias.to(ctx.device());
        p.expected = p.expected + bias.to(at::kDouble);
        p.by_fp32 = p.by_fp32 + bias.to(at::kDouble);
    }
    if (c.residual) {
        const at::Tensor residual = random({m, out});
        p.args.residual = on_device(residual, Layout::wide);
        p.expected = p.expected + residual.to(at::kDouble);
        p.by_fp32 = p.by_fp32 + residual.to(at::kDouble);
    }
    p.before = testing::poisoned_slice({m, out}, type, Layout::wide);
    p.args.out = testing::copy_with_storage(p.before, ctx.device());
    return p;
}

/// `out` (on the CPU) is the product within rounding to its type and the error of an fp32 sum, and nothing
/// beside it was written.
inline void expect_product(const Product& p, const at::Tensor& out) {
    const double unit = out.scalar_type() == at::kBFloat16 ? 1.01 / 256
                        : out.scalar_type() == at::kHalf   ? 1.01 / 2048
                                                           : 1e-6;
    testing::expect_close(out, p.expected, {unit, 2e-5, 0}, "product");
    testing::expect_untouched_outside(out, p.before, "product");
}

/// The kernel `few` makes, from codes that it rounds by 7.8e-4 in the mean: the product by fp32 weights within seven
/// times the deviation that this gives, and bf16's rounding.
inline void expect_product_of_few(const Product& p, const at::Tensor& out) {
    const at::Tensor error = (out.to(at::kDouble) - p.by_fp32).abs();
    const at::Tensor allowed = 7 * 7.8e-4 * p.spread + 1.01 / 256 * p.by_fp32.abs() + 1e-4;
    EXPECT_TRUE(at::all(error <= allowed).item<bool>()) << "worst share " << (error / allowed).max().item<double>();
    testing::expect_untouched_outside(out, p.before, "product");
}

/// What a form makes.
inline void expect_product(const Product& p, const at::Tensor& out, const ops::Nf4GemmChoice& form) {
    const bool pairs =
        form.kernel == ops::Nf4GemmChoice::Kernel::few || form.kernel == ops::Nf4GemmChoice::Kernel::sm90_pairs;
    pairs ? expect_product_of_few(p, out) : expect_product(p, out);
}

}  // namespace unsloth::nf4_gemm_cases
