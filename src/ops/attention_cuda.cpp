// Attention on CUDA: which kernels serve a call, and the call.
#include "ops/attention_impl.h"

#if UNSLOTH_CUDA
#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <mutex>

#include "kernels/attention_cudnn.h"
#include "kernels/attention_mma.h"
#include "kernels/attention_portable.h"
#include "kernels/common/launch.h"
#include "ops/attention_by_heads.h"
#include "ops/attention_packed.h"
#include "unsloth/core/error.h"
#include "unsloth/core/log.h"
#include "unsloth/ops/dtype.h"
#include "unsloth/spec/kernel_table.h"

namespace unsloth::ops {
namespace {

using kernels::CudnnAttention;
using kernels::CudnnCase;
using kernels::HeadRows;
using kernels::HeadStrides;

constexpr int64_t alignment = 256;
/// Equal lengths that are a multiple of this take the dense form: a plan is made for each length, and there
/// are few of these.
constexpr int64_t dense_step = 128;
/// The packed forward takes a batch in one call, of at least this many sequences, so that few plans serve it.
constexpr int64_t least_forward_batch = 8;

/// What the portable kernels cost where cuDNN's would run, and tensor cores do not serve them, or do.
constexpr const char* without_tensor_cores =
    "; where they serve the backward pass, a step of an 8B model takes 2.3 times as long with rows of 2048 tokens "
    "(H200), and more with longer ones";
constexpr const char* on_tensor_cores =
    "; they take twice as long as cuDNN's, which is 3 to 6 % of a step of an 8B model with rows of 2048 tokens and "
    "35 % with rows of 16384 (H200)";
constexpr const char* on_tensor_cores_wide =
    "; by their count of products and of bytes from shared memory they take one and a half times (sm_80 to sm_89) to "
    "three times (sm_90) as long as cuDNN's would";

/// Which kernels have the portable form of such heads in 16 bit, and what they cost.
struct PortableKernels {
    bool fast;
    const char *name, *cost;
};
PortableKernels portable_kernels(int64_t head_dim) {
    if (kernels::attention_mma_serves(spec::DType::bf16, static_cast<int>(head_dim)))
        return {true, "own kernels on tensor cores", head_dim <= 128 ? on_tensor_cores : on_tensor_cores_wide};
    return {false, "the slower portable kernels", without_tensor_cores};
}

// ---------------------------------------------------------------------------------------------- what was
// planned, what works

/// What plans of one kind have in common (windows share the answers).
using Kind = std::array<int64_t, 5>;  // device, heads, kv heads, head_dim, dtype
Kind kind_of(const AttentionShape& shape, at::ScalarType dtype, at::Device device) {
    return {device.index(), shape.heads, shape.kv_heads, shape.head_dim, static_cast<int64_t>(dtype)};
}

/// Process-wide, as the plans are.
struct Registry {
    std::mutex mutex;
    std::map<Kind, PackedLimits> sizes;  ///< what attention_workspace was last told
    std::map<Kind, bool> served;
};
Registry& registry() {
    static Registry instance;
    return instance;
}

PackedLimits planned_sizes(const Kind& kind) {
    Registry& r = registry();
    const std::lock_guard lock(r.mutex);
    const auto found = r.sizes.find(kind);
    return found == r.sizes.end() ? PackedLimits{} : found->second;
}

// -------------------------------------------------------------------------------------------------------------
// cuDNN cases

CudnnCase base_case(const AttentionShape& shape, at::ScalarType dtype) {
    CudnnCase c;
    c.half = dtype == at::kHalf;
    c.heads = shape.heads;
    c.kv_heads = shape.kv_heads;
    c.head_dim = shape.head_dim;
    c.scale = shape.scale;
    return c;
}

/// The length that a plan is made for decides whether a window can be felt.
void set_length(CudnnCase& c, const AttentionShape& shape, int64_t batch, int64_t length) {
    c.batch = batch;
    c.length = length;
    c.window = shape.window < length ? shape.window : 0;
}

void set_packed(CudnnCase& c, const AttentionShape& shape, PackedBucket bucket, int64_t tokens) {
    c.packed = 1;
    c.tokens = tokens;
    set_length(c, shape, bucket.batch, bucket.length);
}

HeadStrides dense_strides(int64_t heads, int64_t head_dim) {
    return {heads * head_dim, head_dim};
}
HeadStrides strides_of(const at::Tensor& x) {
    return {x.stride(0), x.stride(1)};
}
HeadRows rows_of(const at::Tensor& x) {
    return {x.data_ptr(), x.stride(0), x.stride(1)};
}

/// Strides of contiguous tensors: for asking what cuDNN serves and how much scratch it takes, which do not
/// depend on them.
void set_dense_strides(CudnnCase& c) {
    c.q = c.out = dense_strides(c.heads, c.head_dim);
    c.k = c.v = dense_strides(c.kv_heads, c.head_dim);
    if (!c.backward) return;
    c.dout = c.dq = c.q;
    c.dk = c.dv = c.k;
}

CudnnCase forward_case(const AttentionShape& shape, const AttentionForward& args) {
    CudnnCase c = base_case(shape, args.q.scalar_type());
    c.statistics = args.lse.defined();
    c.q = strides_of(args.q), c.k = strides_of(args.k), c.v = strides_of(args.v), c.out = strides_of(args.out);
    return c;
}

CudnnCase backward_case(const AttentionShape& shape, const AttentionBackward& args, CudaForm form, bool deterministic) {
    CudnnCase c = base_case(shape, args.q.scalar_type());
    c.backward = 1;
    c.deterministic = deterministic;
    c.q = strides_of(args.q), c.k = strides_of(args.k), c.v = strides_of(args.v), c.out = strides_of(args.out);
    c.dout = strides_of(args.dout);
    if (form == CudaForm::packed) {  // through dense copies: see attention_cudnn.h
        c.dq = dense_strides(shape.heads, shape.head_dim);
        c.dk = c.dv = dense_strides(shape.kv_heads, shape.head_dim);
    } else {
        c.dq = strides_of(args.dq), c.dk = strides_of(args.dk), c.dv = strides_of(args.dv);
    }
    return c;
}

bool same_lengths(const Segments& s) {
    return s.uniform || s.q_offsets == s.k_offsets;
}

/// A cuDNN call: its plan, and the segments it takes.
struct CudnnCall {
    CudnnCase plan;
    PackedGroup segments;
};

/// The calls that serve a batch in cuDNN's dense or packed form: one, but for a packed backward of several
/// groups.
std::vector<CudnnCall> calls_of(CudnnCase c, const AttentionShape& shape, const Segments& segments, CudaForm form,
                                const Kind& kind) {
    const PackedGroup all{0, segments.count(), segments.max_k};
    if (form == CudaForm::dense) {
        set_length(c, shape, all.count, all.longest);
        return {{c, all}};
    }
    PackedLimits limits = planned_sizes(kind);
    c.bottom_right = !same_lengths(segments);
    if (c.bottom_right) limits = limits.of_keys();
    if (!c.backward) {
        set_packed(c, shape, packed_bucket(limits, all.count, all.longest, least_forward_batch), 0);
        return {{c, all}};
    }
    std::vector<CudnnCall> calls;
    const int64_t tokens = packed_tokens(limits, segments.k_offsets.back());
    for (const PackedGroup& group : packed_groups(limits, segments.k_offsets)) {
        set_packed(c, shape, packed_bucket(limits, group.count, group.longest), tokens);
        calls.push_back({c, group});
    }
    return calls;
}

// ------------------------------------------------------------------------------------------------------------------
// choice

bool aligned(std::initializer_list<const at::Tensor*> tensors) {
    return std::all_of(tensors.begin(), tensors.end(), [](const at::Tensor* x) {
        return kernels::aligned_16(x->data_ptr(), {x->stride(0), x->stride(1)}, dtype_of(x->scalar_type()));
    });
}

/// The form by the lengths alone: what forward and backward of the same segments agree on without a word, and
/// so lse's order.
CudaForm form_of(const AttentionShape& shape, const Segments& s, at::ScalarType dtype, at::Device device) {
    const bool planned = same_lengths(s) || planned_sizes(kind_of(shape, dtype, device)).keys > 0;
    if (!planned || !cudnn_serves(shape, dtype, device)) return CudaForm::portable;
    // Other lengths would need a plan each; and cuDNN's backward on sm_90 is known to let the zero keys
    // behind a length of 64 modulo 128 into rows of strongly negative scores when no padding mask stands
    // before them.
    const bool dense = s.uniform && s.max_q % dense_step == 0;
    if (dense) return CudaForm::dense;
    // The frontend calls packed backwards of other head_dims a known functional issue.
    if (shape.head_dim % 16 == 0) return CudaForm::packed;
    static std::once_flag said;
    std::call_once(said, [&] {
        const PortableKernels portable = portable_kernels(shape.head_dim);
        log::warning("attention over rows of unequal length (or no multiple of ", dense_step, ") with head_dim ",
                     shape.head_dim, ": ", portable.name, " serve it, cuDNN's want a head_dim that is a multiple of 16",
                     portable.cost);
    });
    return CudaForm::portable;
}

/// Whether the card's table gives a pass that cuDNN serves to our own kernels; they take the statistics of either.
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

/// Whether the planned scratch holds the case beside so many bytes; a plan that cuDNN does not have holds nowhere.
bool fits(const Context& ctx, const CudnnCase& c, int64_t beside) {
    std::optional<int64_t> bytes = CudnnAttention::of(ctx.device().index()).workspace(c);
    if (bytes) *bytes += beside;
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
    return !c.backward || within_reach(c.batch * c.length * c.heads * c.head_dim);
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

/// Whether cuDNN takes the call within the planned scratch: by one kv head after the other it lies dense.
bool takes(const Context& ctx, const AttentionShape& shape, const Segments& segments, CudnnCase c, CudaForm form,
           Reach reach) {
    if (reach == Reach::nothing) return warn_out_of_reach(c, segments);
    const bool by_heads = reach == Reach::by_heads;
    const AttentionShape asked = by_heads ? one_kv_head(shape) : shape;
    const int64_t beside =
        by_heads ? kv_head_bytes(shape, segments.q_offsets.back(), segments.k_offsets.back(), c.backward) : 0;
    c.heads = asked.heads;
    c.kv_heads = asked.kv_heads;
    if (by_heads) set_dense_strides(c);
    const Kind kind = kind_of(asked, c.half ? at::kHalf : at::kBFloat16, ctx.device());
    const std::vector<CudnnCall> calls = calls_of(c, asked, segments, form, kind);
    return std::all_of(calls.begin(), calls.end(), [&](const CudnnCall& call) {
        return (reaches(call.plan) || warn_out_of_reach(call.plan, segments)) && fits(ctx, call.plan, beside);
    });
}

bool warn_unaligned() {
    static std::once_flag said;
    std::call_once(said, [] {
        log::warning("attention's tensors are not 16-byte aligned: the slower portable kernels serve them",
                     without_tensor_cores);
    });
    return false;
}

void warn_repeatable_is_slow(int64_t head_dim) {
    const PortableKernels portable = portable_kernels(head_dim);
    static std::array<std::once_flag, 2> said;
    std::call_once(said[portable.fast ? 1 : 0], [&] {
        log::warning("training.deterministic: ", portable.name, " serve the backward pass of attention; ",
                     "cuDNN's is repeatable for rows of one length (a multiple of ", dense_step,
                     ", no packing) of at most ", deterministic_workspace >> 30, " GiB of scratch", portable.cost);
    });
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
    const bool repeatable = !ctx.deterministic || (form == CudaForm::dense &&
                                                   cudnn_may_repeat(shape, segments.q_offsets.back(), segments.max_q));
    if (!repeatable && !measured) warn_repeatable_is_slow(shape.head_dim);
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

void run_cudnn(const Context& ctx, const std::vector<CudnnCall>& calls, const Segments& segments,
               kernels::CudnnPointers& p) {
    const auto stream = static_cast<cudaStream_t>(ctx.stream());
    CudnnAttention& cudnn = CudnnAttention::of(ctx.device().index());
    for (const CudnnCall& call : calls) {
        p.offsets = segments.q_offsets_device.data_ptr<int32_t>() + call.segments.first;
        p.key_offsets = segments.k_offsets_device.data_ptr<int32_t>() + call.segments.first;
        p.sequences = call.segments.count;
        cudnn.run(call.plan, p, ctx.workspace.data_ptr(), stream);
    }
    const CudnnCase& c = calls.front().plan;
    if (c.packed && c.backward)
        cudnn.unpack_gradients(c, p, segments.q_offsets.back(), segments.k_offsets.back(), ctx.workspace.data_ptr(),
                               stream);
}

}  // namespace

void attention_cuda_forward(Context& ctx, const AttentionShape& shape, const Segments& segments,
                            const AttentionForward& args, CudaChoice choice) {
    if (choice.kernels == CudaForm::portable) {
        const auto a =
            portable_arguments(shape, segments, args.q, args.k, args.v, args.out, args.lse, choice.lse_order);
        return kernels::attention_portable_forward(a, static_cast<cudaStream_t>(ctx.stream()));
    }
    if (choice.by_heads) return attention_forward_by_heads(ctx, shape, segments, args, choice.kernels);
    const Kind kind = kind_of(shape, args.q.scalar_type(), ctx.device());
    const auto calls = calls_of(forward_case(shape, args), shape, segments, choice.kernels, kind);
    kernels::CudnnPointers p;
    p.q = args.q.data_ptr(), p.k = args.k.data_ptr(), p.v = args.v.data_ptr(), p.out = args.out.data_ptr();
    p.statistics = args.lse.defined() ? args.lse.data_ptr<float>() : nullptr;
    run_cudnn(ctx, calls, segments, p);
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
    const Kind kind = kind_of(shape, args.q.scalar_type(), ctx.device());
    const auto calls =
        calls_of(backward_case(shape, args, choice.kernels, ctx.deterministic), shape, segments, choice.kernels, kind);
    kernels::CudnnPointers p;
    p.q = args.q.data_ptr(), p.k = args.k.data_ptr(), p.v = args.v.data_ptr(), p.out = args.out.data_ptr();
    p.statistics = args.lse.data_ptr<float>();
    p.dout = args.dout.data_ptr();
    p.dq = rows_of(args.dq), p.dk = rows_of(args.dk), p.dv = rows_of(args.dv);
    run_cudnn(ctx, calls, segments, p);
}

// ----------------------------------------------------------------------------------------------------------------
// planning

namespace {

std::optional<int64_t> ask(at::Device device, CudnnCase c, bool backward, bool deterministic = false) {
    c.backward = backward;
    c.deterministic = deterministic;
    set_dense_strides(c);
    return CudnnAttention::of(device.index()).workspace(c);
}

/// The planned tokens in segments of the planned length.
CudnnCase largest_dense(const AttentionShape& shape, at::ScalarType dtype, const PackedLimits& sizes) {
    CudnnCase c = base_case(shape, dtype);
    const int64_t length = kernels::round_up(sizes.longest, dense_step);
    set_length(c, shape, kernels::ceil_div(sizes.tokens, length), length);
    return c;
}

}  // namespace

bool cudnn_serves(const AttentionShape& shape, at::ScalarType dtype, at::Device device) {
    if (!cudnn_may_serve(shape, dtype)) return false;
    const Kind kind = kind_of(shape, dtype, device);
    Registry& r = registry();
    {
        const std::lock_guard lock(r.mutex);
        const auto found = r.served.find(kind);
        if (found != r.served.end()) return found->second;
    }
    const PackedLimits planned = planned_sizes(kind);
    const CudnnCase c =
        planned.tokens > 0 ? largest_dense(shape, dtype, planned) : largest_dense(shape, dtype, {256, 1, 256});
    const bool served = ask(device, c, /*backward=*/false) && ask(device, c, /*backward=*/true);
    const std::string what = cat("attention with head_dim ", shape.head_dim, " in ",
                                 dtype_of(dtype) == spec::DType::bf16 ? "bfloat16" : "float16");
    if (served)
        log::info(what, ": cuDNN");
    else
        log::warning(what, ": cuDNN does not serve it on this card, ", portable_kernels(shape.head_dim).name, " do",
                     portable_kernels(shape.head_dim).cost);
    const std::lock_guard lock(r.mutex);
    return r.served.emplace(kind, served).first->second;
}

std::optional<int64_t> attention_cudnn_workspace(const AttentionShape& shape, at::ScalarType dtype, at::Device device,
                                                 bool deterministic, const PackedLimits& sizes, bool backward) {
    const Kind kind = kind_of(shape, dtype, device);
    {
        Registry& r = registry();
        const std::lock_guard lock(r.mutex);
        r.sizes[kind] = sizes;
    }
    if (!cudnn_serves(shape, dtype, device)) return {};
    int64_t most = 0;
    const auto consider = [&](const CudnnCase& c, bool back, bool repeatable) {
        if (const std::optional<int64_t> bytes = ask(device, c, back, repeatable)) most = std::max(most, *bytes);
    };
    const CudnnCase dense = largest_dense(shape, dtype, sizes);
    consider(dense, false, false);
    if (backward) consider(dense, true, deterministic);
    if (shape.head_dim % 16 == 0) {
        const auto consider_packed = [&](const PackedLimits& limits, bool bottom_right) {
            CudnnCase packed = base_case(shape, dtype);
            packed.bottom_right = bottom_right;
            set_packed(packed, shape, packed_bucket(limits, limits.segments, limits.longest, least_forward_batch), 0);
            consider(packed, false, false);
            if (!backward || deterministic) return;
            for (const PackedBucket& bucket : largest_packed_buckets(limits)) {
                set_packed(packed, shape, bucket, packed_tokens(limits, limits.tokens));
                consider(packed, true, false);
            }
        };
        consider_packed(sizes, false);
        if (sizes.keys > 0) consider_packed(sizes.of_keys(), true);
        // Plans of more but shorter sequences have longer ragged offsets (8 arrays of int64) and lengths
        // (int32).
        most += kernels::round_up((8 * 8 + 2 * 4) * (std::max(sizes.segments, least_forward_batch) + 1), alignment);
    }
    return most;
}

}  // namespace unsloth::ops
#endif
