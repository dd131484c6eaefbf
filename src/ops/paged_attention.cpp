#include "unsloth/ops/paged_attention.h"

#include <algorithm>
#include <array>
#include <bit>

#include "ops/attention_impl.h"
#include "unsloth/core/error.h"
#include "unsloth/ops/dtype.h"
#include "unsloth/ops/profiler.h"
#ifdef UNSLOTH_CUDA
#include "kernels/paged_attention.h"
#endif

namespace unsloth::ops {
namespace {

/// Few lengths to plan for: blocks without keys of short rows cost little, and longer rows have no more blocks.
constexpr int64_t shortest = 1024, longest = 8192;
int64_t rounded(int64_t length) {
    return std::clamp(static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(length))), shortest, longest);
}

#ifdef UNSLOTH_CUDA
static_assert(kernels::page_tokens == page_tokens);
static_assert(kernels::split_keys * kernels::most_splits == longest);

/// The rows of one query, whose lengths and pages are on the device.
void attend_decoding(Context& ctx, const AttentionShape& shape, const PagedRows& rows, const at::Tensor& q_THd,
                     const KvCache& cache, const at::Tensor& out_THd, const at::Tensor& sinks_H) {
    const at::Tensor k_CN = cache.kv_C2N.narrow(1, 0, cache.kv_C2N.size(1) / 2),
                     v_CN = cache.kv_C2N.narrow(1, k_CN.size(1), k_CN.size(1));
    kernels::PagedAttention args;
    args.dtype = dtype_of(q_THd);
    args.rows = static_cast<int>(rows.decoding);
    args.heads = static_cast<int>(shape.heads);
    args.kv_heads = static_cast<int>(shape.kv_heads);
    args.head_dim = static_cast<int>(shape.head_dim);
    args.window = static_cast<int>(shape.window);
    args.scale = static_cast<float>(shape.scale);
    args.q = {q_THd.const_data_ptr(), q_THd.stride(0), q_THd.stride(1)};
    args.k = {k_CN.const_data_ptr(), k_CN.stride(0)};
    args.v = {v_CN.const_data_ptr(), v_CN.stride(0)};
    args.out = {out_THd.mutable_data_ptr(), out_THd.stride(0), out_THd.stride(1)};
    args.lengths = rows.lengths_S.const_data_ptr<int32_t>();
    args.pages = rows.pages_SM.const_data_ptr<int32_t>();
    args.most_pages = static_cast<int>(rows.most_pages);
    args.splits = kernels::most_splits_of(static_cast<int>(planned_length(rows)));
    const int64_t bytes = 4 * kernels::paged_attention_parts(args.rows, args.heads, args.head_dim, args.splits);
    UNSLOTH_CHECK(ctx.workspace.defined() && ctx.workspace.numel() >= bytes, "paged attention: the workspace has not ",
                  bytes, " bytes");
    if (cache.coded()) args.exponents = cache.exponents_PHS.const_data_ptr<uint8_t>();
    if (sinks_H.defined()) args.sinks = sinks_H.const_data_ptr<float>();
    args.parts = static_cast<float*>(ctx.workspace.mutable_data_ptr());
    kernels::paged_attention(args, static_cast<cudaStream_t>(ctx.stream()));
}
#endif

}  // namespace

int64_t planned_length(const PagedRows& rows) {
    const auto decoding = rows.lengths.begin() + static_cast<std::ptrdiff_t>(rows.decoding);
    return rounded(*std::max_element(rows.lengths.begin(), decoding));
}

int64_t paged_attention_workspace(const AttentionShape& shape, at::Device device, int64_t rows, int64_t context) {
#ifdef UNSLOTH_CUDA
    if (device.is_cuda())
        return 4 * kernels::paged_attention_parts(rows, shape.heads, shape.head_dim,
                                                  kernels::most_splits_of(static_cast<int>(rounded(context))));
#endif
    (void)shape, (void)device, (void)rows, (void)context;
    return 0;
}

void place_rows(Context& ctx, PagedRows& rows) {
    const auto count = static_cast<std::size_t>(rows.count());
    UNSLOTH_CHECK(
        rows.q_offsets.size() == count + 1 && rows.pages.size() == count * static_cast<std::size_t>(rows.most_pages),
        "paged attention: ", rows.q_offsets.size(), " offsets and ", rows.pages.size(), " pages of ", count, " rows");
    rows.segments.assign(count, {});
    rows.keys.assign(count, {});
    const auto here = at::TensorOptions(at::kInt).pinned_memory(ctx.is_cuda());  // the host waits for no pass
    for (std::size_t row = ctx.is_cuda() ? static_cast<std::size_t>(rows.decoding) : 0; row < count; ++row) {
        const int32_t queries = rows.q_offsets[row + 1] - rows.q_offsets[row], length = rows.lengths[row];
        const auto pages = rows.pages.begin() + static_cast<std::ptrdiff_t>(row) * rows.most_pages;
        const int64_t used = pages_of(length);
        UNSLOTH_CHECK(used <= rows.most_pages, "paged attention: row ", row, " has ", length, " keys in ",
                      rows.most_pages, " pages");
        Segments& s = rows.segments[row];
        s.q_offsets = {0, queries};
        s.k_offsets = {0, length};
        s.max_q = queries;
        s.max_k = length;
        s.uniform = queries == length;
        if (ctx.is_cuda()) {
            const at::Tensor values = at::empty({4}, here);
            const std::array<int32_t, 4> both = {0, queries, 0, length};
            std::copy(both.begin(), both.end(), values.mutable_data_ptr<int32_t>());
            const at::Tensor offsets = values.to(ctx.device(), /*non_blocking=*/true);
            s.q_offsets_device = offsets.narrow(0, 0, 2);
            s.k_offsets_device = offsets.narrow(0, 2, 2);
        }
        const bool in_turn =
            std::adjacent_find(pages, pages + used, [](int32_t a, int32_t b) { return b != a + 1; }) == pages + used;
        if (in_turn) continue;
        at::Tensor keys = at::empty({length}, here);
        for (int32_t k = 0; k < length; ++k)
            keys.mutable_data_ptr<int32_t>()[k] =
                static_cast<int32_t>(pages[k / page_tokens] * page_tokens + k % page_tokens);
        rows.keys[row] = keys.to(ctx.device(), /*non_blocking=*/true);
    }
}

void paged_attention(Context& ctx, const AttentionShape& shape, const PagedRows& rows, const at::Tensor& q_THd,
                     const KvCache& cache, const at::Tensor& out_THd, const at::Tensor& sinks_H) {
    const Region region(ctx, "paged_attention");
    check_sinks(shape, q_THd, sinks_H);
    UNSLOTH_CHECK(q_THd.size(0) == rows.tokens() && rows.segments.size() == rows.lengths.size(),
                  "paged attention: ", q_THd.size(0), " queries, rows of ", rows.tokens(), ", ", rows.segments.size(),
                  " of them placed");
    std::size_t row = 0;
#ifdef UNSLOTH_CUDA
    if (ctx.is_cuda() && rows.decoding > 0) {
        attend_decoding(ctx, shape, rows, q_THd, cache, out_THd, sinks_H);
        row = static_cast<std::size_t>(rows.decoding);
    }
#endif
    for (; row < rows.segments.size(); ++row) {
        const int64_t first = rows.q_offsets[row], queries = rows.segments[row].max_q;
        const auto read = [&](KeyPart part) {
            const int64_t begin = rows.pages[row * static_cast<std::size_t>(rows.most_pages)] * page_tokens;
            return read_keys(ctx, cache, part, rows.keys[row], begin, rows.lengths[row], shape.head_dim,
                             q_THd.scalar_type());
        };
        attention_forward(ctx, shape, rows.segments[row], q_THd.narrow(0, first, queries), read(KeyPart::keys),
                          read(KeyPart::values), out_THd.narrow(0, first, queries), {}, sinks_H);
    }
}

}  // namespace unsloth::ops
