#include "ops/attention_cases.h"

#if UNSLOTH_CUDA
#include <algorithm>
#include <limits>
#include <map>
#include <mutex>

#include "kernels/attention_mma.h"
#include "kernels/common/launch.h"
#include "ops/attention_chunks.h"
#include "unsloth/core/error.h"
#include "unsloth/core/log.h"
#include "unsloth/ops/dtype.h"

namespace unsloth::ops {
namespace {

using kernels::CudnnAttention;
using kernels::CudnnCase;
using kernels::HeadStrides;

constexpr int64_t alignment = 256;
/// The packed forward takes a batch in one call, of at least this many sequences, so that few plans serve it.
constexpr int64_t least_forward_batch = 8;

constexpr const char* on_tensor_cores =
    "; they take twice as long as cuDNN's, which is 3 to 6 % of a step of an 8B model with rows of 2048 tokens and "
    "35 % with rows of 16384 (H200)";
constexpr const char* on_tensor_cores_wide =
    "; by their count of products and of bytes from shared memory they take one and a half times (sm_80 to sm_89) to "
    "three times (sm_90) as long as cuDNN's would";

/// Process-wide, as the plans are.
struct Registry {
    std::mutex mutex;
    std::map<Kind, PackedLimits> sizes;  ///< the last sizes given to attention_workspace
    std::map<std::pair<Answer, Kind>, bool> answers;
};
Registry& registry() {
    static Registry instance;
    return instance;
}

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

std::optional<int64_t> ask(at::Device device, CudnnCase c, bool backward) {
    c.backward = backward;
    set_dense_strides(c);
    return cudnn_workspace_of(device, c);
}

/// The planned tokens in segments of the planned length.
CudnnCase largest_dense(const AttentionShape& shape, at::ScalarType dtype, const PackedLimits& sizes) {
    CudnnCase c = base_case(shape, dtype);
    const int64_t length = kernels::round_up(sizes.longest, dense_step);
    set_length(c, shape, kernels::ceil_div(sizes.tokens, length), length);
    return c;
}

/// A deterministic backward of the case within so much scratch: parts of its rows, as equal as can be, else kv heads of
/// each row. Every head of a row is summed in an order of its own, so that no bit depends on the parts.
std::vector<CudnnCall> repeatable_calls(at::Device device, const CudnnCase& all, int64_t scratch) {
    const auto fits = [&](const CudnnCase& part) {
        const AttentionShape shape{.heads = part.heads, .kv_heads = part.kv_heads, .head_dim = part.head_dim};
        if (repeatable_bytes(shape, part.batch, part.length) > std::min(repeatable_scores, scratch)) return false;
        const std::optional<int64_t> bytes = cudnn_workspace_of(device, part);
        return bytes && *bytes <= scratch;
    };
    CudnnCase part = all;
    for (int64_t parts = 2; part.batch > 1 && !fits(part); ++parts) part.batch = kernels::ceil_div(all.batch, parts);
    if (part.batch == 1)
        while (part.kv_heads > 1 && !fits(part)) {
            do --part.kv_heads;
            while (all.kv_heads % part.kv_heads != 0);
            part.heads = all.heads / all.kv_heads * part.kv_heads;
        }
    if (!fits(part)) return {};
    std::vector<CudnnCall> calls;
    for (int64_t row = 0; row < all.batch; row += part.batch) {
        CudnnCase plan = part;
        plan.batch = std::min(part.batch, all.batch - row);
        for (int64_t kv_head = 0; kv_head < all.kv_heads; kv_head += part.kv_heads)
            calls.push_back({plan, {row, plan.batch, plan.length}, kv_head});
    }
    return calls;
}

}  // namespace

PortableKernels portable_kernels(int64_t head_dim) {
    if (kernels::attention_mma_serves(spec::DType::bf16, static_cast<int>(head_dim)))
        return {true, "own kernels on tensor cores", head_dim <= 128 ? on_tensor_cores : on_tensor_cores_wide};
    return {false, "the slower portable kernels", without_tensor_cores};
}

Kind kind_of(const AttentionShape& shape, at::ScalarType dtype, at::Device device) {
    return {device.index(), shape.heads, shape.kv_heads, shape.head_dim, static_cast<int64_t>(dtype)};
}

PackedLimits planned_sizes(const Kind& kind) {
    Registry& r = registry();
    const std::lock_guard lock(r.mutex);
    const auto found = r.sizes.find(kind);
    return found == r.sizes.end() ? PackedLimits{} : found->second;
}

void set_dense_strides(CudnnCase& c) {
    c.q = c.out = dense_strides(c.heads, c.head_dim);
    c.k = c.v = dense_strides(c.kv_heads, c.head_dim);
    if (!c.backward) return;
    c.dout = c.dq = c.q;
    c.dk = c.dv = c.k;
}

CudnnCase asked_case(const AttentionShape& shape, at::ScalarType dtype, bool backward) {
    CudnnCase c = base_case(shape, dtype);
    c.backward = backward;
    set_dense_strides(c);
    return c;
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

bool aligned(std::initializer_list<const at::Tensor*> tensors) {
    return std::ranges::all_of(tensors, [](const at::Tensor* x) {
        return kernels::aligned_16(x->data_ptr(), {x->stride(0), x->stride(1)}, dtype_of(x->scalar_type()));
    });
}

bool same_lengths(const Segments& s) {
    return s.uniform || s.q_offsets == s.k_offsets;
}

std::vector<CudnnCall> calls_of(CudnnCase c, const AttentionShape& shape, const Segments& segments, CudaForm form,
                                at::Device device, int64_t scratch) {
    const PackedGroup all{0, segments.count(), segments.max_k};
    if (form == CudaForm::dense) {
        set_length(c, shape, all.count, all.longest);
        if (c.deterministic) return repeatable_calls(device, c, scratch);
        return {{c, all}};
    }
    PackedLimits limits = planned_sizes(kind_of(shape, c.half ? at::kHalf : at::kBFloat16, device));
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

std::optional<int64_t> cudnn_workspace_of(at::Device device, const CudnnCase& c) {
    return CudnnAttention::of(device.index()).workspace(c);
}

bool remembered(Answer answer, const Kind& kind, const std::function<bool()>& ask) {
    Registry& r = registry();
    {
        const std::lock_guard lock(r.mutex);
        const auto found = r.answers.find({answer, kind});
        if (found != r.answers.end()) return found->second;
    }
    const bool served = ask();
    const std::lock_guard lock(r.mutex);
    return r.answers.emplace(std::pair(answer, kind), served).first->second;
}

bool cudnn_serves(const AttentionShape& shape, at::ScalarType dtype, at::Device device) {
    if (!cudnn_may_serve(shape, dtype)) return false;
    const Kind kind = kind_of(shape, dtype, device);
    return remembered(Answer::rows, kind, [&] {
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
        return served;
    });
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
    const auto consider = [&](const CudnnCase& c, bool back) {
        most = std::max(most, ask(device, c, back).value_or(0));
    };
    CudnnCase dense = largest_dense(shape, dtype, sizes);
    consider(dense, false);
    if (backward && deterministic) {
        dense.backward = dense.deterministic = 1;
        set_dense_strides(dense);
        for (const CudnnCall& call : repeatable_calls(device, dense, std::numeric_limits<int64_t>::max()))
            most = std::max(most, cudnn_workspace_of(device, call.plan).value_or(0));
    } else if (backward) {
        consider(dense, true);
    }
    if (sizes.keys > 0)
        most = std::max(most, chunks_workspace(shape, dtype, device, sizes, backward && !deterministic));
    if (packed_backward_serves(shape)) {
        const auto consider_packed = [&](const PackedLimits& limits, bool bottom_right) {
            CudnnCase packed = base_case(shape, dtype);
            packed.bottom_right = bottom_right;
            set_packed(packed, shape, packed_bucket(limits, limits.segments, limits.longest, least_forward_batch), 0);
            consider(packed, false);
            if (!backward || deterministic) return;
            for (const PackedBucket& bucket : largest_packed_buckets(limits)) {
                set_packed(packed, shape, bucket, packed_tokens(limits, limits.tokens));
                consider(packed, true);
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
