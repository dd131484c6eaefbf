// Experts in 4-bit tiles, on the CPU (tests/ops) and on the GPU (tests/gpu).
#pragma once

#include "ops/experts_cases.h"
#include "ops/quant_cases.h"
#include "unsloth/ops/nf4_experts.h"

namespace unsloth::testing {

/// Experts without rows, more than 16 rows, an odd number of tiles of outputs, several nested blocks.
inline const std::vector<GroupedShape> nf4_expert_shapes = {
    {{0, 1, 3, 0}, 64, 64}, {{16, 17, 0, 40, 2}, 320, 192}, {{5}, 1024, 128}, {{0, 0, 33}, 448, 320}};

enum class InTiles { nf4, mxfp4 };

/// `hosts`: takes each one in rows, on the host.
inline ops::Nf4Experts random_nf4_experts(ops::Context& ctx, const GroupedShape& shape, at::Generator generator,
                                          InTiles form = InTiles::nf4,
                                          std::vector<ops::Quant4Tensor>* hosts = nullptr) {
    std::vector<ops::Nf4Tiles> experts;
    for (std::size_t e = 0; e < shape.rows.size(); ++e) {
        ops::Quant4Tensor host = form == InTiles::mxfp4 ? quant_cases::random_mxfp4(shape.n, shape.k, generator)
                                                        : quant_cases::random_weight(shape.n, shape.k, true, generator);
        if (form == InTiles::mxfp4)
            host.absmax = at::randint(119, 126, host.absmax.sizes(), generator, at::kByte);
        else
            host.nested_offset += 0.01F * static_cast<float>(e);
        if (hosts != nullptr) hosts->push_back(host);
        experts.push_back(ops::make_nf4_tiles(ctx, ctx.is_cuda() ? ops::upload(ctx, host.view()) : host));
    }
    return ops::make_nf4_experts(ctx, std::move(experts));
}

/// All experts at once, and each alone: the same bits. [E, N, K] on the context's device.
inline at::Tensor expect_dequantised_alike(ops::Context& ctx, const ops::Nf4Experts& weights, at::ScalarType type) {
    const auto experts = static_cast<int64_t>(weights.experts.size());
    const at::Tensor before = poisoned_slice({experts * weights.rows, weights.cols}, type, Layout::wide);
    const at::Tensor flat = copy_with_storage(before, ctx.device());
    const at::Tensor all = flat.as_strided({experts, weights.rows, weights.cols},
                                           {weights.rows * flat.stride(0), flat.stride(0), 1}, flat.storage_offset());
    ops::dequantize_nf4_experts(ctx, weights, all);
    expect_untouched_outside(copy_with_storage(flat, at::kCPU), before, "experts");
    for (int64_t e = 0; e < experts; ++e) {
        const at::Tensor alone = at::empty({weights.rows, weights.cols}, all.options());
        ops::dequantize_nf4_tiles(ctx, weights.experts[static_cast<std::size_t>(e)], alone);
        EXPECT_TRUE(at::equal(all[e], alone)) << e;
    }
    return all;
}

inline void expect_nf4_experts(at::Device device, at::ScalarType type, InTiles form = InTiles::nf4) {
    ops::Context ctx(device);
    at::Generator generator = at::detail::createCPUGenerator(17);
    for (const GroupedShape& shape : nf4_expert_shapes)
        for (const bool accumulate : {false, true}) {
            SCOPED_TRACE(name_of(shape) + (accumulate ? " +=" : ""));
            std::vector<ops::Quant4Tensor> hosts;
            const ops::Nf4Experts weights = random_nf4_experts(ctx, shape, generator, form, &hosts);
            const at::Tensor w = expect_dequantised_alike(ctx, weights, type).to(at::kCPU, at::kDouble);
            for (std::size_t e = 0; e < hosts.size(); ++e)
                EXPECT_TRUE(
                    at::equal(w[static_cast<int64_t>(e)], quant_cases::reference(hosts[e]).to(type).to(at::kDouble)))
                    << "tiles of " << e;
            const int64_t rows = rows_of(shape);
            const at::Tensor x = slice_of(at::randn({rows, shape.k}, generator), type, Layout::wide);
            const at::Tensor bias = slice_of(at::randn({w.size(0), shape.n}, generator), type, Layout::wide);
            const at::Tensor before = accumulate ? slice_of(at::randn({rows, shape.n}, generator), type, Layout::wide)
                                                 : poisoned_slice({rows, shape.n}, type, Layout::wide);
            const at::Tensor out = copy_with_storage(before, ctx.device()), ends = ends_of(shape);
            ops::nf4_grouped_product(ctx, {.x_nK = copy_with_storage(x, ctx.device()),
                                           .weights = weights,
                                           .ends_E = ends.to(ctx.device()),
                                           .out_nN = out,
                                           .bias_EN = copy_with_storage(bias, ctx.device()),
                                           .accumulate = accumulate});
            const at::Tensor expected = accumulate ? before.to(at::kDouble) : at::zeros({rows, shape.n}, at::kDouble);
            for_each_group(ends, x.to(at::kDouble), [&](int64_t e, const at::Tensor& of_e, int64_t begin, int64_t end) {
                expected.slice(0, begin, end).add_(of_e.matmul(w[e].t()) + bias[e].to(at::kDouble));
            });
            const at::Tensor result = copy_with_storage(out, at::kCPU);
            expect_close(result, expected, tolerance_of_sums(type), "product");
            expect_untouched_outside(result, before, "product");
        }
}

}  // namespace unsloth::testing
