// LoRA's products on our kernels: tensors to the kernel library's plain description.
#include "ops/lora_cuda.h"

#if UNSLOTH_CUDA
#include <cuda_runtime_api.h>

#include <algorithm>

#include "kernels/common/launch.h"
#include "kernels/lora_gemm.h"
#include "ops/checks.h"
#include "ops/cuda_handles.h"
#include "ops/kernel_arguments.h"
#include "unsloth/ops/profiler.h"
#include "unsloth/spec/kernel_table.h"

namespace unsloth::ops {
namespace {

/// What the choice and the plans look at, read from the driver once.
struct LoraSlot final : HandleSlot {
    bool runs = false;  ///< our kernels
    int compute_major = 0;
    int multiprocessors = 0;
};

const LoraSlot& card(const Context& ctx) {
    std::unique_ptr<HandleSlot>& slot = ctx.cuda().lora;
    if (!slot) {
        cudaDeviceProp properties{};
        const cudaError_t status = cudaGetDeviceProperties(&properties, ctx.device().index());
        UNSLOTH_CHECK(status == cudaSuccess, "cudaGetDeviceProperties: ", cudaGetErrorString(status));
        auto made = std::make_unique<LoraSlot>();
        made->runs = kernels::built_for_hopper() && lora_runs_on(properties.major, properties.sharedMemPerBlockOptin);
        made->compute_major = properties.major;
        made->multiprocessors = properties.multiProcessorCount;
        slot = std::move(made);
    }
    return static_cast<const LoraSlot&>(*slot);
}

/// A matrix of one row may carry any stride: give it its width.
int64_t row_stride(const at::Tensor& x) {
    return x.size(0) <= 1 ? x.size(1) : x.stride(0);
}
kernels::ConstMatrix source(const at::Tensor& x) {
    return {x.const_data_ptr(), row_stride(x)};
}
kernels::Matrix target(const at::Tensor& x) {
    return {x.mutable_data_ptr(), row_stride(x)};
}

kernels::LoraProjection described(const Context& ctx, const LoraU& args) {
    kernels::LoraProjection p;
    p.tokens = args.u_TR.size(0), p.k = args.a_RK.size(1), p.r = args.a_RK.size(0);
    p.type = dtype_of(args.u_TR);
    p.codes = coded_rows_of(args.codes);
    if (!args.codes.codes.defined()) p.x = source(args.x_TK);
    p.a = source(args.a_RK), p.u = target(args.u_TR);
    if (args.copy_TR.defined()) p.copy = target(args.copy_TR);
    if (args.owner_T.defined()) {
        check_contiguous(ctx, "owner of tokens", args.owner_T, {p.tokens}, at::kInt);
        check_contiguous(ctx, "owner of columns", args.owner_R, {p.r}, at::kInt);
        p.token_owner = args.owner_T.const_data_ptr<int32_t>(), p.column_owner = args.owner_R.const_data_ptr<int32_t>();
    }
    return p;
}

bool supported(const Context& ctx, const kernels::LoraProjection& p) {
    return card(ctx).runs && kernels::lora_supports(p, card(ctx).compute_major);
}

bool fits(const LoraDy& args) {
    return args.slices.size() <= static_cast<std::size_t>(kernels::most_lora_parts);
}

kernels::LoraBackward described(const LoraDy& args) {
    kernels::LoraBackward p;
    p.tokens = args.v_TR.size(0), p.n = args.b_NR.size(0), p.r = args.b_NR.size(1);
    p.type = dtype_of(args.v_TR);
    p.codes = coded_rows_of(args.codes);
    if (!args.codes.codes.defined()) p.dy = source(args.dy_TN);
    p.b = source(args.b_NR), p.v = target(args.v_TR), p.u = args.u_TR.const_data_ptr();
    if (!fits(args)) return p;
    for (const LoraSlice& slice : args.slices)
        p.parts[p.part_count++] = {slice.n_begin,
                                   slice.n,
                                   slice.r_begin,
                                   slice.r,
                                   slice.rank,
                                   static_cast<float>(slice.scale),
                                   slice.rank > 0 ? slice.db.mutable_data_ptr<float>() : nullptr};
    return p;
}

bool supported(const Context& ctx, const LoraDy& args, const kernels::LoraBackward& p) {
    int64_t reserved = 0;
    for (const LoraSlice& slice : args.slices) reserved += slice.r;
    const int64_t bytes = ctx.workspace.defined() ? ctx.workspace.nbytes() : 0;
    const bool fills_v = reserved == p.r;
    return card(ctx).runs && fits(args) && fills_v && args.u_TR.is_contiguous() &&
           kernels::lora_supports(p, card(ctx).compute_major) &&
           bytes >= kernels::lora_workspace(p, kernels::lora_plan(p, card(ctx).multiprocessors)).least;
}

/// Whether our kernel shall run; CheckError when it must and cannot. No other reads codes.
bool chosen(const Context& ctx, const CodedMatrix& codes, LoraChoice choice, const spec::ProductKey& product,
            bool supported) {
    const bool must = choice == LoraChoice::kernel || codes.codes.defined(), may = choice != LoraChoice::library;
    UNSLOTH_CHECK(!must || (may && supported), "lora: the kernel does not take these operands");
    if (must || !may || !supported) return must;
    const spec::KernelChoice* measured = ctx.kernels->find(product);
    return measured != nullptr && measured->kernel == spec::KernelSource::sm90;
}

}  // namespace

bool lora_reads_codes_cuda(const Context& ctx, const LoraU& args) {
    return supported(ctx, described(ctx, args));
}

bool lora_reads_codes_cuda(const Context& ctx, const LoraDy& args) {
    return supported(ctx, args, described(args));
}

bool lora_u_cuda(Context& ctx, const LoraU& args) {
    const kernels::LoraProjection p = described(ctx, args);
    const spec::ProductKey key{.op = spec::KernelOperator::lora_u, .tokens = p.tokens, .k = p.k, .rank = p.r};
    const bool takes = supported(ctx, p), measured = args.choice == LoraChoice::measured;
    // The library's product needs another kernel for what tokens do not own.
    const bool always = args.owner_T.defined() && measured && takes && ctx.kernels->card.compute_capability >= 90;
    if (!always && !chosen(ctx, args.codes, args.choice, key, takes)) return false;
    const Region region(ctx, args.label);
    kernels::lora_u(p, kernels::lora_plan(p), stream_of(ctx));
    return true;
}

bool lora_dy_cuda(Context& ctx, const LoraDy& args) {
    const kernels::LoraBackward p = described(args);
    int64_t widest = 0;
    for (const LoraSlice& slice : args.slices) widest = std::max(widest, slice.r);
    const spec::ProductKey key{.op = spec::KernelOperator::lora_dy, .tokens = p.tokens, .n = p.n, .rank = widest};
    if (!chosen(ctx, args.codes, args.choice, key, supported(ctx, args, p))) return false;
    const Region region(ctx, args.label);
    kernels::lora_v_db(p, kernels::lora_plan(p, card(ctx).multiprocessors), ctx.workspace.mutable_data_ptr(),
                       ctx.workspace.nbytes(), stream_of(ctx));
    return true;
}

}  // namespace unsloth::ops
#endif
