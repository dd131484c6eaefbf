// What kernels take of a context and a tensor. Of builds with CUDA.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/lora_gemm.h"
#include "kernels/rows_view.h"
#include "unsloth/ops/context.h"
#include "unsloth/ops/gemm_coded.h"

namespace unsloth::ops {

inline cudaStream_t stream_of(const Context& ctx) {
    return static_cast<cudaStream_t>(ctx.stream());
}
/// Of x[rows, cols]; a matrix of one row may carry any stride: it gets one that kernels of 8 elements a read accept.
inline int64_t padded_row_stride(const at::Tensor& x) {
    return x.size(0) <= 1 ? (x.size(1) + 7) / 8 * 8 : x.stride(0);
}
inline kernels::ConstMatrix source_of(const at::Tensor& tensor) {
    return {tensor.const_data_ptr(), tensor.stride(0)};
}
inline kernels::Matrix target_of(const at::Tensor& tensor) {
    return {tensor.mutable_data_ptr(), tensor.stride(0)};
}
/// Of rows of x; of none where there are no codes.
inline kernels::CodedRows coded_rows_of(const CodedMatrix& x) {
    if (!x.codes.defined()) return {};
    const bool int8 = is_int8(x);
    return {.format = int8 ? kernels::CodeFormat::int8 : kernels::CodeFormat::e4m3,
            .codes = x.codes.const_data_ptr(),
            .scales = x.scales.const_data_ptr<float>(),
            .scale_stride = int8 ? x.scales.stride(0) : 0,
            .factors = x.factors.defined() ? x.factors.const_data_ptr() : nullptr};
}

}  // namespace unsloth::ops
