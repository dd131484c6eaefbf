// Attention on CUDA: which kernels serve a call, and the call.
#include "ops/attention_cases.h"

#if UNSLOTH_CUDA
#include <algorithm>
#include <array>
#include <limits>
#include <mutex>

#include "kernels/attention_cudnn.h"
#include "kernels/attention_mma.h"
#include "kernels/attention_portable.h"
#include "kernels/attention_sinks.h"
#include "kernels/common/launch.h"
#include "ops/attention_by_heads.h"
#include "ops/attention_chunks.h"
#include "ops/attention_packed.h"
#include "ops/attention_tiles.h"
#include "unsloth/core/error.h"
#include "unsloth/core/log.h"
#include "unsloth/ops/dtype.h"
#include "unsloth/spec/kernel_table.h"

namespace unsloth::ops {
namespace {

using kernels::CudnnAttention;
using kernels::CudnnCase;

// ------------------------------------------------------------------------------------------------------------------
// choice

/// The form by the lengths alone: what forward and backward of the same segments agree on without a word, and
/// so lse's order.
CudaForm form_of(const AttentionShape& shape, const Segments& s, at::ScalarType dtype, at::Device device) {
    const bool planned = same_lengths(s) || planned_sizes(kind_of(shape, dtype, device)).keys > 0;
    if (!planned || !cudnn_serves(shape, dtype, device)) return CudaForm::portable;
    // Other lengths would need a plan each; and cuDNN's backward on sm_90 is known to let the zero keys
    // after a length of 64 modulo 128 into rows of strongly negative scores when no padding mask is
    // there to exclude them.
    const bool dense = s.uniform && s.max_q % dense_step == 0;
    if (dense) return CudaForm::dense;
    if (!same_lengths(s) && equal_chunks(s) && cudnn_serves_chunks(shape, dtype, device)) return CudaForm::chunks;
    if (packed_backward_serves(shape)) return CudaForm::packed;
    static std::once_flag said;
    std::call_once(said, [&] {
        const PortableKernels portable = portable_kernels(shape.head_dim);
        log::warning("attention over rows of unequal length (or no multiple of ", dense_step, ") with head_dim ",
                     shape.head_dim, ": ", portable.name, " serve it, cuDNN's want a head_dim that is a multiple of 16",
                     portable.cost);
    });
    return CudaForm::portable;
}

/// Whether the card's table gives a pass that cuDNN supports to our own kernels; they take the statistics of either.
bool own_are_faster(const Context& ctx, const AttentionShape& shape, const Segments& s, spec::ProductForm direction) {
    const spec::KernelChoice* measured = ctx.kernels->find({.op = spec::KernelOperator::attention,
                                                            .form = direction,
                                                            .tokens = s.q_offsets.back(),
                                                            .n = s.max_k,
                                                            .k = shape.head_dim});
    return measured != nullptr && measured->kernel == spec::KernelSource::portable;
}

int64_t workspace_bytes(const Context& ctx) {
    return ctx.workspace.defined() ? static_cast<int64_t>(ctx.workspace.nbytes()) : 0;
}

/// Whether the planned scratch holds the case and the other bytes as well; false for a plan that cuDNN does not have.
bool fits(const Context& ctx, const CudnnCase& c, int64_t extra) {
    std::optional<int64_t> bytes = CudnnAttention::of(ctx.device().index()).workspace(c);
    if (bytes) *bytes += extra;
    if (bytes && *bytes > workspace_bytes(ctx)) {
        static std::once_flag said;
        std::call_once(said, [&] {
            const PortableKernels portable = portable_kernels(c.head_dim);
            log::warning("cuDNN attention would take ", *bytes, " bytes of scratch, ", workspace_bytes(ctx),
                         " were planned: ", portable.name, " serve such batches", portable.cost);
        });
    }
    return bytes && *bytes <= workspace_bytes(ctx);
}

/// Whether cuDNN's offsets reach the gradients that it keeps for each head, of sequences as long as the longest.
bool reaches(const CudnnCase& c) {
    return !c.backward || within_reach(c.batch * std::max(c.length, c.keys) * c.heads * c.head_dim);
}

bool warn_out_of_reach(const CudnnCase& c, const Segments& segments) {
    static std::once_flag said;
    std::call_once(said, [&] {
        const PortableKernels portable = portable_kernels(c.head_dim);
        log::warning("attention of ", segments.q_offsets.back(), " tokens over ", segments.k_offsets.back(),
                     " has, even of one kv head, more than the 2^31 elements that cuDNN reaches: ", portable.name,
                     " serve such batches", portable.cost);
    });
    return false;
}

bool warn_no_piece_fits(int64_t head_dim) {
    static std::once_flag said;
    std::call_once(said, [&] {
        const PortableKernels portable = portable_kernels(head_dim);
        log::warning(
            "training.deterministic: the planned scratch holds no part of cuDNN's repeatable backward pass of "
            "attention: ",
            portable.name, " serve such batches", portable.cost);
    });
    return false;
}

/// Whether cuDNN takes the call within the planned scratch: by one kv head after the other it is dense.
bool takes(const Context& ctx, const AttentionShape& shape, const Segments& segments, CudnnCase c, CudaForm form,
           Reach reach) {
    if (reach == Reach::nothing) return warn_out_of_reach(c, segments);
    const bool by_heads = reach == Reach::by_heads;
    const AttentionShape asked = by_heads ? one_kv_head(shape) : shape;
    const int64_t extra =
        by_heads ? kv_head_bytes(shape, segments.q_offsets.back(), segments.k_offsets.back(), c.backward) : 0;
    c.heads = asked.heads;
    c.kv_heads = asked.kv_heads;
    if (by_heads) set_dense_strides(c);
    const auto runs = [&](const CudnnCase& plan, int64_t own) {
        return (reaches(plan) || warn_out_of_reach(plan, segments)) && fits(ctx, plan, extra + own);
    };
    if (form == CudaForm::chunks)
        return std::ranges::all_of(chunk_calls(c, asked, segments),
                                   [&](const ChunkCall& call) { return runs(call.plan, call.bytes()); });
    const std::vector<CudnnCall> calls = calls_of(c, asked, segments, form, ctx.device(), workspace_bytes(ctx) - extra);
    if (calls.empty()) return warn_no_piece_fits(c.head_dim);
    return std::ranges::all_of(calls, [&](const CudnnCall& call) { return runs(call.plan, 0); });
}

bool warn_unaligned() {
    static std::once_flag said;
    std::call_once(said, [] {
        log::warning("attention's tensors are not 16-byte aligned: the slower portable kernels serve them",
                     without_tensor_cores);
    });
    return false;
}

bool warn_repeatable_is_slow(int64_t head_dim) {
    const PortableKernels portable = portable_kernels(head_dim);
    static std::array<std::once_flag, 2> said;
    std::call_once(said[portable.fast ? 1 : 0], [&] {
        log::warning("training.deterministic: ", portable.name, " serve the backward pass of attention; ",
                     "cuDNN's is repeatable for rows of one length (a multiple of ", dense_step,
                     ", no packing) of which one kv head has at most ", repeatable_scores >> 30,
                     " GiB of scores, and for others of at least ", worth_tiles,
                     " tokens in the mean, without a sliding window, whole or cut at multiples of ", dense_step,
                     portable.cost);
    });
    return false;
}

bool side_by_side(const AttentionShape& shape, std::initializer_list<const at::Tensor*> tensors) {
    return std::ranges::all_of(tensors,
                               [&](const at::Tensor* x) { return x->size(1) == 1 || x->stride(1) == shape.head_dim; });
}

/// Whether cuDNN's repeatable backward takes the rows in tiles within the planned scratch; says why it does not.
bool takes_tiles(const Context& ctx, const AttentionShape& shape, const Segments& segments,
                 const AttentionBackward& args) {
    std::optional<int64_t> bytes;
    if (side_by_side(shape, {&args.dout, &args.q, &args.k, &args.v, &args.out, &args.dq, &args.dk, &args.dv}))
        bytes = tiles_workspace(shape, args.q.scalar_type(), ctx.device(), segments);
    if (!bytes) return warn_repeatable_is_slow(shape.head_dim);
    return *bytes <= workspace_bytes(ctx) || warn_no_piece_fits(shape.head_dim);
}

}  // namespace

CudaChoice choose_forward(const Context& ctx, const AttentionShape& shape, const Segments& segments,
                          const AttentionForward& args) {
    const CudaForm form = form_of(shape, segments, args.q.scalar_type(), ctx.device());
    if (form == CudaForm::portable) return {form, form};
    const bool usable = (aligned({&args.q, &args.k, &args.v, &args.out}) || warn_unaligned()) &&
                        !own_are_faster(ctx, shape, segments, spec::ProductForm::nt);
    const Reach reach = reach_of(shape, {&args.q, &args.k, &args.v, &args.out});
    if (!usable || !takes(ctx, shape, segments, forward_case(shape, args), form, reach))
        return {CudaForm::portable, form};
    return {form, form, reach == Reach::by_heads};
}

CudaChoice choose_backward(const Context& ctx, const AttentionShape& shape, const Segments& segments,
                           const AttentionBackward& args) {
    const CudaForm form = form_of(shape, segments, args.q.scalar_type(), ctx.device());
    if (form == CudaForm::portable) return {form, form};
    const bool measured = own_are_faster(ctx, shape, segments, spec::ProductForm::nn);
    const bool repeatable = !ctx.deterministic || (form == CudaForm::dense && cudnn_may_repeat(shape, segments.max_q));
    if (!repeatable && !measured && takes_tiles(ctx, shape, segments, args)) return {CudaForm::tiles, form};
    const bool usable = (aligned({&args.dout, &args.q, &args.k, &args.v, &args.out, &args.dq, &args.dk, &args.dv}) ||
                         warn_unaligned()) &&
                        repeatable && !measured;
    const Reach reach =
        reach_of(shape, {&args.dout, &args.q, &args.k, &args.v, &args.out, &args.dq, &args.dk, &args.dv});
    const CudnnCase c = backward_case(shape, args, form, ctx.deterministic);
    if (!usable || !takes(ctx, shape, segments, c, form, reach)) return {CudaForm::portable, form};
    return {form, form, reach == Reach::by_heads};
}

// --------------------------------------------------------------------------------------------------------------------
// calls

namespace {

kernels::RowStatistics statistics(const at::Tensor& lse, CudaForm order, const AttentionShape& shape,
                                  const Segments& segments) {
    if (!lse.defined()) return {};
    float* data = lse.data_ptr<float>();
    switch (order) {
        case CudaForm::dense:
        case CudaForm::chunks:
            return kernels::RowStatistics::by_segment(data, shape.heads, segments.max_q);
        case CudaForm::packed:
            return kernels::RowStatistics::by_token(data, shape.heads);
        default:
            return kernels::RowStatistics::by_head(data, segments.q_offsets.back());
    }
}

kernels::PortableAttention portable_arguments(const AttentionShape& shape, const Segments& segments,
                                              const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                              const at::Tensor& out, const at::Tensor& lse, CudaForm order) {
    kernels::PortableAttention a;
    a.dtype = dtype_of(q.scalar_type());
    a.heads = static_cast<int>(shape.heads);
    a.kv_heads = static_cast<int>(shape.kv_heads);
    a.head_dim = static_cast<int>(shape.head_dim);
    a.window = static_cast<int>(std::min<int64_t>(shape.window, std::numeric_limits<int>::max() / 2));
    a.scale = static_cast<float>(shape.scale);
    a.q_offsets = segments.q_offsets_device.data_ptr<int32_t>();
    a.k_offsets = segments.k_offsets_device.data_ptr<int32_t>();
    a.segments = static_cast<int>(segments.count());
    a.q_tokens = segments.q_offsets.back();
    a.k_tokens = segments.k_offsets.back();
    a.q = rows_of(q), a.k = rows_of(k), a.v = rows_of(v), a.out = rows_of(out);
    a.lse = statistics(lse, order, shape, segments);
    return a;
}

kernels::CudnnPointers pointers_of(const AttentionForward& args) {
    kernels::CudnnPointers p;
    p.q = args.q.data_ptr(), p.k = args.k.data_ptr(), p.v = args.v.data_ptr(), p.out = args.out.data_ptr();
    p.statistics = args.lse.defined() ? args.lse.data_ptr<float>() : nullptr;
    return p;
}

kernels::CudnnPointers pointers_of(const AttentionBackward& args) {
    kernels::CudnnPointers p = pointers_of(AttentionForward{args.q, args.k, args.v, args.out, args.lse});
    p.dout = args.dout.data_ptr();
    p.dq = rows_of(args.dq), p.dk = rows_of(args.dk), p.dv = rows_of(args.dv);
    return p;
}

template <class Arguments>
void issue(const Context& ctx, const CudnnCase& c, const Arguments& args) {
    CudnnAttention::of(ctx.device().index())
        .run(c, pointers_of(args), ctx.workspace.data_ptr(), static_cast<cudaStream_t>(ctx.stream()));
}

/// Where the rows and heads of a dense call begin.
kernels::CudnnPointers part_of(const CudnnCall& call, const AttentionShape& shape, kernels::CudnnPointers p) {
    const CudnnCase& c = call.plan;
    const int64_t row = call.segments.first, head = call.kv_head * (shape.heads / shape.kv_heads);
    const auto moved = [&](void* data, const kernels::HeadStrides& strides, int64_t first_head) -> void* {
        constexpr int64_t element = 2;
        return static_cast<char*>(data) + (row * c.length * strides.row + first_head * strides.head) * element;
    };
    p.q = moved(p.q, c.q, head), p.k = moved(p.k, c.k, call.kv_head), p.v = moved(p.v, c.v, call.kv_head);
    p.out = moved(p.out, c.out, head);
    if (p.statistics) p.statistics += (row * shape.heads + head) * c.length;
    if (!c.backward) return p;
    p.dout = moved(p.dout, c.dout, head);
    p.dq.data = moved(p.dq.data, c.dq, head);
    p.dk.data = moved(p.dk.data, c.dk, call.kv_head), p.dv.data = moved(p.dv.data, c.dv, call.kv_head);
    return p;
}

void run_cudnn(const Context& ctx, const std::vector<CudnnCall>& calls, const AttentionShape& shape,
               const Segments& segments, kernels::CudnnPointers p) {
    UNSLOTH_CHECK(!calls.empty(), "attention: a form was chosen that fits in no pieces");
    const auto stream = static_cast<cudaStream_t>(ctx.stream());
    CudnnAttention& cudnn = CudnnAttention::of(ctx.device().index());
    for (const CudnnCall& call : calls) {
        if (call.plan.packed) {
            p.offsets = segments.q_offsets_device.data_ptr<int32_t>() + call.segments.first;
            p.key_offsets = segments.k_offsets_device.data_ptr<int32_t>() + call.segments.first;
            p.sequences = call.segments.count;
        }
        cudnn.run(call.plan, call.plan.packed ? p : part_of(call, shape, p), ctx.workspace.data_ptr(), stream);
    }
    const CudnnCase& c = calls.front().plan;
    if (c.packed && c.backward)
        cudnn.unpack_gradients(c, p, segments.q_offsets.back(), segments.k_offsets.back(), ctx.workspace.data_ptr(),
                               stream);
}

void forward_without_sinks(Context& ctx, const AttentionShape& shape, const Segments& segments,
                           const AttentionForward& args, CudaChoice choice) {
    if (choice.kernels == CudaForm::portable) {
        const auto a =
            portable_arguments(shape, segments, args.q, args.k, args.v, args.out, args.lse, choice.lse_order);
        return kernels::attention_portable_forward(a, static_cast<cudaStream_t>(ctx.stream()));
    }
    if (choice.by_heads) return attention_forward_by_heads(ctx, shape, segments, args, choice.kernels);
    if (choice.kernels == CudaForm::chunks)
        return attention_forward_by_chunks(ctx, chunk_calls(forward_case(shape, args), shape, segments), args);
    const auto calls =
        calls_of(forward_case(shape, args), shape, segments, choice.kernels, ctx.device(), workspace_bytes(ctx));
    run_cudnn(ctx, calls, shape, segments, pointers_of(args));
}

}  // namespace

void run_dense(const Context& ctx, const CudnnCase& c, const AttentionForward& args) {
    issue(ctx, c, args);
}

void run_dense(const Context& ctx, const CudnnCase& c, const AttentionBackward& args) {
    issue(ctx, c, args);
}

void attention_cuda_forward(Context& ctx, const AttentionShape& shape, const Segments& segments,
                            const AttentionForward& args, CudaChoice choice) {
    forward_without_sinks(ctx, shape, segments, args, choice);
    if (!args.sinks.defined()) return;
    kernels::AttentionSinks a;
    a.dtype = dtype_of(args.q.scalar_type());
    a.tokens = args.q.size(0);
    a.heads = static_cast<int>(shape.heads);
    a.head_dim = static_cast<int>(shape.head_dim);
    a.sinks = args.sinks.const_data_ptr<float>();
    a.out = {args.out.mutable_data_ptr(), args.out.stride(0), args.out.stride(1)};
    a.lse = statistics(args.lse, choice.lse_order, shape, segments);
    a.length = segments.max_q;
    kernels::attention_sinks(a, static_cast<cudaStream_t>(ctx.stream()));
}

void attention_cuda_backward(Context& ctx, const AttentionShape& shape, const Segments& segments,
                             const AttentionBackward& args, CudaChoice choice) {
    if (choice.kernels == CudaForm::portable) {
        const int64_t bytes = shape.heads * args.q.size(0) * static_cast<int64_t>(sizeof(float));
        UNSLOTH_CHECK(workspace_bytes(ctx) >= bytes, "attention: the backward pass needs ", bytes,
                      " bytes of workspace, there are ", workspace_bytes(ctx));
        const auto a =
            portable_arguments(shape, segments, args.q, args.k, args.v, args.out, args.lse, choice.lse_order);
        const kernels::PortableAttentionGradients g{rows_of(args.dout), rows_of(args.dq), rows_of(args.dk),
                                                    rows_of(args.dv), static_cast<float*>(ctx.workspace.data_ptr())};
        return kernels::attention_portable_backward(a, g, static_cast<cudaStream_t>(ctx.stream()));
    }
    if (choice.by_heads) return attention_backward_by_heads(ctx, shape, segments, args, choice.kernels);
    if (choice.kernels == CudaForm::tiles)
        return attention_backward_by_tiles(ctx, shape, segments, args, choice.lse_order,
                                           longest_tile(shape, segments.max_q));
    const CudnnCase c = backward_case(shape, args, choice.kernels, ctx.deterministic);
    if (choice.kernels == CudaForm::chunks)
        return attention_backward_by_chunks(ctx, chunk_calls(c, shape, segments), args);
    const auto calls = calls_of(c, shape, segments, choice.kernels, ctx.device(), workspace_bytes(ctx));
    run_cudnn(ctx, calls, shape, segments, pointers_of(args));
}

}  // namespace unsloth::ops
#endif
