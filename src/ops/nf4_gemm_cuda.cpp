// Tiled 4-bit weights on CUDA: tensors to the kernels' plain descriptions.
#include "ops/nf4_gemm_cuda.h"

#if UNSLOTH_CUDA
#include <cuda_runtime_api.h>

#include "kernels/common/launch.h"
#include "kernels/nf4_gemm.h"
#include "kernels/nf4_tiles.h"
#include "ops/kernel_arguments.h"
#include "unsloth/core/error.h"

namespace unsloth::ops {
namespace {

/// What the kernel's arguments refer to.
struct ByWeight {
    std::array<spec::Nf4TilesView, kernels::nf4_gemm_most_weights> views;
    std::array<kernels::TailColumns, kernels::nf4_gemm_most_weights> tail_columns;
};

/// The kernel's arguments; `of` must outlive them.
kernels::Nf4GemmArgs describe(const Nf4Gemm& g, ByWeight& of) {
    for (std::size_t i = 0; i < g.weights.size(); ++i) of.views[i] = g.weights[i].view();
    kernels::Nf4GemmArgs args;
    args.weights = of.views.data();
    if (!g.tail_columns.empty()) {
        for (std::size_t i = 0; i < g.weights.size(); ++i)
            of.tail_columns[i] = {g.tail_columns[i].begin, g.tail_columns[i].count};
        args.tail_columns = of.tail_columns.data();
    }
    args.count = static_cast<int>(g.weights.size());
    args.transposed = g.transposed;
    args.m = g.x.size(0);
    args.x = {g.x.const_data_ptr(), padded_row_stride(g.x)};
    if (g.tail_weight.defined()) {
        args.tail = g.tail_weight.size(g.transposed ? 0 : 1);
        args.tail_weight = {g.tail_weight.const_data_ptr(), g.tail_weight.stride(0)};
    }
    if (g.bias) args.bias = g.bias->const_data_ptr();
    if (g.residual) args.residual = {g.residual->const_data_ptr(), padded_row_stride(*g.residual)};
    args.out = {g.out.data_ptr(), padded_row_stride(g.out)};
    return args;
}

}  // namespace

void make_nf4_tiles_cuda(Context& ctx, const spec::Quant4View& weight, uint8_t* tiles) {
    kernels::make_nf4_tiles(weight, tiles, stream_of(ctx));
}

void dequantize_nf4_tiles_cuda(Context& ctx, const spec::Nf4TilesView& weight, const at::Tensor& out_NK) {
    UNSLOTH_CHECK(out_NK.scalar_type() == at::kBFloat16, "out_NK is ", out_NK.scalar_type(), ", expected bfloat16");
    kernels::dequantize_nf4_tiles(weight, out_NK.data_ptr(), out_NK.stride(0), stream_of(ctx));
}

std::vector<Nf4GemmChoice> nf4_gemm_forms_cuda(at::Device device, bool transposed) {
    using Kernel = Nf4GemmChoice::Kernel;
    std::vector<Nf4GemmChoice> forms;
    for (const int tokens : {4, 8})
        if (!transposed) forms.push_back({.kernel = Kernel::few, .tokens = tokens});
    for (int groups = 1; groups <= 8; groups *= 2)
        for (int strips = 1; strips <= 4; strips *= 2)
            for (int warps = 4; warps <= 16; warps *= 2)
                if (kernels::nf4_gemm_has({groups, strips, warps}))
                    forms.push_back({Kernel::portable, groups, strips, warps});
    cudaDeviceProp properties{};
    UNSLOTH_CUDA_CHECK(cudaGetDeviceProperties(&properties, device.index()));
    if (!kernels::built_for_hopper() || properties.major != 9 || properties.minor != 0) return forms;
    for (const int tokens : {64, 128})
        for (int split = 1; split <= 8; ++split)
            if (!transposed) forms.push_back({.kernel = Kernel::sm90_pairs, .tokens = tokens, .split = split});
    for (const int tokens : {16, 32, 64, 128, 256})
        for (int split = 1; split <= 8; ++split)
            if (kernels::nf4_gemm_sm90_has({tokens, split}))
                forms.push_back({.kernel = Kernel::sm90, .tokens = tokens, .split = split});
    return forms;
}

bool nf4_gemm_supported_cuda(const Nf4Gemm& g) {
    if (g.weights.empty() || g.weights.size() > kernels::nf4_gemm_most_weights) return false;
    ByWeight of;
    return kernels::nf4_gemm_supported(describe(g, of));
}

void nf4_gemm_cuda(Context& ctx, const Nf4Gemm& g, const Nf4GemmChoice& choice) {
    ByWeight of;
    const kernels::Nf4GemmArgs args = describe(g, of);
    switch (choice.kernel) {
        case Nf4GemmChoice::Kernel::portable:
            return kernels::nf4_gemm(args, {choice.token_groups, choice.strips, choice.warps}, stream_of(ctx));
        case Nf4GemmChoice::Kernel::sm90:
            return kernels::nf4_gemm_sm90(args, {choice.tokens, choice.split}, stream_of(ctx));
        case Nf4GemmChoice::Kernel::sm90_pairs:
            return kernels::nf4_gemm_sm90(args, {choice.tokens, choice.split, /*pairs=*/true}, stream_of(ctx));
        case Nf4GemmChoice::Kernel::few:
            return kernels::nf4_gemm_few(args, choice.tokens, stream_of(ctx));
        case Nf4GemmChoice::Kernel::dequantize:
            break;
    }
    UNSLOTH_CHECK(false, "nf4_gemm: the choice is to dequantise, which is the caller's to do");
}

}  // namespace unsloth::ops
#endif
