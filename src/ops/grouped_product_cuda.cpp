// Grouped products on the GPU: CUTLASS's in LibTorch for bf16 on the cards that it is built for, and ours. LibTorch's
// function takes its out, unlike at::_grouped_mm; it is the part of that which does not allocate the result.
#include "ops/grouped_product_cuda.h"

#if UNSLOTH_CUDA
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/MemPool.h>
#include <ATen/native/cuda/GroupMM.h>

#include "kernels/experts.h"
#include "kernels/grouped_gemm.h"
#include "ops/checks.h"
#include "ops/cuda_handles.h"
#include "ops/kernel_arguments.h"

namespace unsloth::ops {
namespace {

/// Rows an expert from which on the library's tiles of 64 and 128 rows are filled.
constexpr int64_t library_rows_each = 16;

/// Its tensor copies want addresses and strides of 16 bytes; `x` may have two or three dimensions.
bool fits_tensor_copies(const at::Tensor& x) {
    bool fits = reinterpret_cast<std::uintptr_t>(x.const_data_ptr()) % 16 == 0 && x.size(-1) % 8 == 0;
    for (int64_t d = 0; d + 1 < x.dim(); ++d) fits = fits && (x.size(d) <= 1 || x.stride(d) % 8 == 0);
    return fits;
}

bool library_takes(const GroupedProduct& args) {
    const int major = at::cuda::getCurrentDeviceProperties()->major;
    return (major == 9 || major == 10) && args.x_nK.scalar_type() == at::kBFloat16 && !args.accumulate &&
           args.x_nK.size(1) > 0 && fits_tensor_copies(args.x_nK) && fits_tensor_copies(args.w_ENK) &&
           fits_tensor_copies(args.out_nN);
}

/// Where the library's own allocations come from: a pool that LibTorch does not give back to the driver when it empties
/// its cache, because recorded products write there again.
struct GroupedSlot final : HandleSlot {
    at::cuda::MemPool pool;
};

/// LibTorch's allocations on the context's stream, as long as this lasts. cudaMallocAsync has no pools and needs none:
/// a recording has that memory itself.
class AllocateInPool {
  public:
    explicit AllocateInPool(const Context& ctx) : device_(ctx.device().index()) {
        if (c10::cuda::CUDACachingAllocator::name() != "native") return;
        std::unique_ptr<HandleSlot>& slot = ctx.cuda().grouped;
        if (!slot) slot = std::make_unique<GroupedSlot>();
        pool_ = static_cast<GroupedSlot&>(*slot).pool.id();
        c10::cuda::CUDACachingAllocator::beginAllocateToPool(
            device_, *pool_, [stream = stream_of(ctx)](cudaStream_t of) { return of == stream; });
    }
    ~AllocateInPool() {
        if (!pool_) return;
        c10::cuda::CUDACachingAllocator::endAllocateToPool(device_, *pool_);
        c10::cuda::CUDACachingAllocator::releasePool(device_, *pool_);  // what the beginning counted
    }
    AllocateInPool(const AllocateInPool&) = delete;
    AllocateInPool& operator=(const AllocateInPool&) = delete;

  private:
    c10::DeviceIndex device_;
    std::optional<c10::MempoolId_t> pool_;
};

/// A dimension of one element may have any stride: it gets the one that it would have if packed.
at::Tensor with_plain_strides(const at::Tensor& x) {
    std::vector<int64_t> strides(x.strides().begin(), x.strides().end());
    for (int64_t d = x.dim() - 2; d >= 0; --d) {
        const auto at = static_cast<std::size_t>(d);
        if (x.size(d) <= 1) strides[at] = strides[at + 1] * x.size(d + 1);
    }
    return x.as_strided(x.sizes(), strides, x.storage_offset());
}

void by_library(Context& ctx, const GroupedProduct& args) {
    at::Tensor out = with_plain_strides(args.out_nN);
    const at::Tensor w = with_plain_strides(args.w_ENK);
    const AllocateInPool pool(ctx);
    at::cuda::detail::bf16bf16_grouped_mm(with_plain_strides(args.x_nK), args.transpose_w ? w.transpose(1, 2) : w,
                                          args.ends_E, std::nullopt, out);
    if (!args.bias_EN.defined()) return;
    kernels::add_expert_bias({.rows = args.out_nN.size(0),
                              .columns = args.out_nN.size(1),
                              .experts = static_cast<int>(args.ends_E.numel()),
                              .type = dtype_of(args.out_nN),
                              .out = target_of(args.out_nN),
                              .bias = args.bias_EN.const_data_ptr(),
                              .ends = args.ends_E.const_data_ptr<int32_t>()},
                             stream_of(ctx));
}

int64_t stride_of(const at::Tensor& x, int64_t dimension) {
    return x.size(dimension) <= 1 ? 0 : x.stride(dimension);
}
kernels::ConstMatrix rows_of(const at::Tensor& x) {
    return {x.const_data_ptr(), stride_of(x, 0)};
}

}  // namespace

void grouped_product_cuda(Context& ctx, const GroupedProduct& args) {
    const bool takes = args.choice != GroupedChoice::kernel && library_takes(args);
    UNSLOTH_CHECK(takes || args.choice != GroupedChoice::library, args.label,
                  ": the library does not take these operands on this card");
    const int64_t experts = args.ends_E.numel();
    if (takes && (args.choice == GroupedChoice::library || args.x_nK.size(0) >= library_rows_each * experts))
        return by_library(ctx, args);
    kernels::grouped_gemm({.rows = args.x_nK.size(0),
                           .n = args.out_nN.size(1),
                           .k = args.x_nK.size(1),
                           .experts = static_cast<int>(experts),
                           .type = dtype_of(args.x_nK),
                           .x = rows_of(args.x_nK),
                           .w = {args.w_ENK.const_data_ptr(), stride_of(args.w_ENK, 0), stride_of(args.w_ENK, 1)},
                           .out = {args.out_nN.mutable_data_ptr(), stride_of(args.out_nN, 0)},
                           .transpose = args.transpose_w,
                           .accumulate = args.accumulate,
                           .bias = args.bias_EN.defined() ? args.bias_EN.const_data_ptr() : nullptr,
                           .ends = args.ends_E.const_data_ptr<int32_t>()},
                          stream_of(ctx));
}

void grouped_gradient_cuda(Context& ctx, const GroupedGradient& args) {
    kernels::grouped_gradient(
        {.m = args.a_nM.size(1),
         .n = args.b_nN.size(1),
         .experts = static_cast<int>(args.ends_E.numel()),
         .type = dtype_of(args.a_nM),
         .a = rows_of(args.a_nM),
         .b = rows_of(args.b_nN),
         .out = {args.out_EMN.mutable_data_ptr(), stride_of(args.out_EMN, 0), stride_of(args.out_EMN, 1)},
         .scale = static_cast<float>(args.scale),
         .ends = args.ends_E.const_data_ptr<int32_t>()},
        stream_of(ctx));
}

}  // namespace unsloth::ops
#endif
