// Products whose rows belong to experts: checks, and the CPU's form, a product for each expert.
#include "ops/checks.h"
#include "ops/grouped_product_cuda.h"
#include "unsloth/ops/experts.h"
#include "unsloth/ops/gemm.h"
#include "unsloth/ops/profiler.h"

namespace unsloth::ops {
namespace {

void check_experts(const Context& ctx, const char* name, const at::Tensor& of_E, int64_t experts, int64_t rows,
                   int64_t columns, at::ScalarType type) {
    check_tensor(ctx, name, of_E, {experts, rows, columns}, type);
    UNSLOTH_CHECK((rows <= 1 || of_E.stride(1) >= columns) && (experts <= 1 || of_E.stride(0) >= columns), name,
                  " has rows that overlap");
}

int64_t check_ends(const Context& ctx, const at::Tensor& ends_E) {
    UNSLOTH_CHECK(ends_E.defined() && ends_E.numel() >= 1 && ends_E.numel() <= most_experts, "ends of 1 to ",
                  most_experts, " experts are expected");
    check_contiguous(ctx, "ends", ends_E, {ends_E.numel()}, at::kInt);
    return ends_E.numel();
}

void check(const Context& ctx, const GroupedProduct& args) {
    const int64_t experts = check_ends(ctx, args.ends_E);
    check_matrix(ctx, "x", args.x_nK);
    check_matrix(ctx, "out", args.out_nN, args.x_nK.size(0), -1, args.x_nK.scalar_type());
    const int64_t k = args.x_nK.size(1), n = args.out_nN.size(1);
    check_experts(ctx, "w", args.w_ENK, experts, args.transpose_w ? n : k, args.transpose_w ? k : n,
                  args.x_nK.scalar_type());
    if (args.bias_EN.defined()) check_contiguous(ctx, "bias", args.bias_EN, {experts, n}, args.out_nN.scalar_type());
}

void check(const Context& ctx, const GroupedGradient& args) {
    const int64_t experts = check_ends(ctx, args.ends_E);
    check_matrix(ctx, "a", args.a_nM);
    check_matrix(ctx, "b", args.b_nN, args.a_nM.size(0), -1, args.a_nM.scalar_type());
    check_experts(ctx, "out", args.out_EMN, experts, args.a_nM.size(1), args.b_nN.size(1), at::kFloat);
}

/// work(expert, first row, rows) for each expert that has any.
template <class Work>
void for_each_expert(const at::Tensor& ends_E, int64_t rows, const Work& work) {
    const int32_t* const ends = ends_E.const_data_ptr<int32_t>();
    int64_t begin = 0;
    for (int64_t e = 0; e < ends_E.numel(); ++e) {
        UNSLOTH_CHECK(ends[e] >= begin && ends[e] <= rows, "rows of expert ", e, " end at ", ends[e], " of ", rows);
        if (ends[e] > begin) work(e, begin, ends[e] - begin);
        begin = ends[e];
    }
    UNSLOTH_CHECK(begin == rows, "experts have ", begin, " rows of ", rows);
}

}  // namespace

void grouped_product(Context& ctx, const GroupedProduct& args) {
    const Region region(ctx, args.label);
    check(ctx, args);
    if (args.out_nN.numel() == 0) return;
#if UNSLOTH_CUDA
    if (ctx.is_cuda()) return grouped_product_cuda(ctx, args);
#endif
    for_each_expert(args.ends_E, args.x_nK.size(0), [&](int64_t e, int64_t first, int64_t rows) {
        Gemm product{.a = args.x_nK.narrow(0, first, rows),
                     .b = args.w_ENK[e],
                     .out = args.out_nN.narrow(0, first, rows),
                     .transpose_b = args.transpose_w,
                     .beta = args.accumulate ? 1.0 : 0.0,
                     .label = args.label};
        if (args.bias_EN.defined()) product.bias = args.bias_EN[e];
        gemm(ctx, product);
    });
}

void grouped_gradient(Context& ctx, const GroupedGradient& args) {
    const Region region(ctx, args.label);
    check(ctx, args);
    if (args.out_EMN.numel() == 0) return;
#if UNSLOTH_CUDA
    if (ctx.is_cuda()) return grouped_gradient_cuda(ctx, args);
#endif
    for_each_expert(args.ends_E, args.a_nM.size(0), [&](int64_t e, int64_t first, int64_t rows) {
        gemm(ctx, {.a = args.a_nM.narrow(0, first, rows),
                   .b = args.b_nN.narrow(0, first, rows),
                   .out = args.out_EMN[e],
                   .transpose_a = true,
                   .alpha = args.scale,
                   .beta = 1.0,
                   .label = args.label});
    });
}

int64_t grouped_library_bytes(at::Device device) {
    return device.is_cuda() ? int64_t{2} << 20 : 0;
}

}  // namespace unsloth::ops
