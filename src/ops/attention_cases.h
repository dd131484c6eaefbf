// The queries to cuDNN about attention on CUDA: its cases and calls, whether it supports them, and within what limits.
#pragma once

#include "ops/attention_impl.h"

#if UNSLOTH_CUDA
#include <array>
#include <functional>
#include <vector>

#include "kernels/attention_cudnn.h"

namespace unsloth::ops {

/// Equal lengths that are a multiple of this take the dense form: a plan is made for each length, and there
/// are few of these.
inline constexpr int64_t dense_step = 128;

/// Which kernels have the portable form of such heads in 16 bit, and what they cost where cuDNN's would run.
struct PortableKernels {
    bool fast;
    const char *name, *cost;
};
PortableKernels portable_kernels(int64_t head_dim);
/// What those cost that are not fast.
inline constexpr const char* without_tensor_cores =
    "; where they serve the backward pass, a step of an 8B model takes 2.3 times as long with rows of 2048 tokens "
    "(H200), and more with longer ones";

/// What plans of one kind share (windows share the answers).
using Kind = std::array<int64_t, 5>;  // device, heads, kv heads, head_dim, dtype
Kind kind_of(const AttentionShape& shape, at::ScalarType dtype, at::Device device);
/// The sizes that attention_cudnn_workspace was last given for this kind; zeros: none yet.
PackedLimits planned_sizes(const Kind& kind);

inline kernels::HeadStrides strides_of(const at::Tensor& x_THd) {
    return {x_THd.stride(0), x_THd.stride(1)};
}
inline kernels::HeadRows rows_of(const at::Tensor& x_THd) {
    return {x_THd.data_ptr(), x_THd.stride(0), x_THd.stride(1)};
}
/// Whether all begin, and have rows and heads that begin, at multiples of 16 bytes.
bool aligned(std::initializer_list<const at::Tensor*> tensors);

/// What all cases of a direction share, with the strides of contiguous tensors: for asking.
kernels::CudnnCase asked_case(const AttentionShape& shape, at::ScalarType dtype, bool backward);
kernels::CudnnCase forward_case(const AttentionShape& shape, const AttentionForward& args);
kernels::CudnnCase backward_case(const AttentionShape& shape, const AttentionBackward& args, CudaForm form,
                                 bool deterministic);
/// Strides of contiguous tensors: for asking what cuDNN supports and how much scratch it takes, which do not
/// depend on them.
void set_dense_strides(kernels::CudnnCase& c);

bool same_lengths(const Segments& s);

/// What cuDNN takes for the case; none where it has no plan.
std::optional<int64_t> cudnn_workspace_of(at::Device device, const kernels::CudnnCase& c);
/// What is asked of cuDNN once per kind and process.
enum class Answer { rows, chunks };
bool remembered(Answer answer, const Kind& kind, const std::function<bool()>& ask);
/// Issues a case of the dense form on the context's stream; its scratch is the front of ctx.workspace.
void run_dense(const Context& ctx, const kernels::CudnnCase& c, const AttentionForward& args);
void run_dense(const Context& ctx, const kernels::CudnnCase& c, const AttentionBackward& args);

/// A cuDNN call: its plan, and the segments it takes, of them all heads or those from a kv head on.
struct CudnnCall {
    kernels::CudnnCase plan;
    PackedGroup segments;
    int64_t kv_head = 0;
};
/// The calls that serve a batch in cuDNN's dense or packed form: one, but for a packed backward of several groups and a
/// deterministic one of more than `scratch` bytes. None where a deterministic one fits in no pieces.
std::vector<CudnnCall> calls_of(kernels::CudnnCase c, const AttentionShape& shape, const Segments& segments,
                                CudaForm form, at::Device device, int64_t scratch);

}  // namespace unsloth::ops
#endif
