#include "ops/attention_chunks.h"

#if UNSLOTH_CUDA
#include <algorithm>

#include "kernels/common/launch.h"
#include "ops/workspace_front.h"

namespace unsloth::ops {
namespace {

using kernels::CudnnCase;

/// Queries from which on a call for a chunk alone is taken.
constexpr int32_t worth_a_call = 1024;

int64_t keys_of(const CudnnCase& c) {
    return c.keys > 0 ? c.keys : c.length;
}

/// [H, S] of the chunk.
at::Tensor lse_of(const at::Tensor& lse, const ChunkCall& call) {
    return lse.defined() ? lse.view(-1).narrow(0, call.query * call.plan.heads, call.plan.length * call.plan.heads)
                         : lse;
}

}  // namespace

bool equal_chunks(const Segments& segments) {
    const int32_t queries = segments.max_q;
    if (queries < worth_a_call || queries % dense_step != 0) return false;
    for (std::size_t i = 1; i < segments.q_offsets.size(); ++i) {
        const int32_t keys = segments.k_offsets[i] - segments.k_offsets[i - 1];
        if (segments.q_offsets[i] - segments.q_offsets[i - 1] != queries || keys % dense_step != 0) return false;
    }
    return true;
}

bool cudnn_serves_chunks(const AttentionShape& shape, at::ScalarType dtype, at::Device device) {
    return remembered(Answer::chunks, kind_of(shape, dtype, device), [&] {
        for (const bool backward : {false, true})
            for (const ChunkCall& call :
                 calls_of_chunk(asked_case(shape, dtype, backward), shape, worth_a_call, 2 * worth_a_call))
                if (!cudnn_workspace_of(device, call.plan)) return false;
        return true;
    });
}

int64_t ChunkCall::bytes() const {
    return adds ? piece_bytes(2 * plan.length * plan.heads * plan.head_dim) : 0;
}

std::vector<ChunkCall> calls_of_chunk(CudnnCase c, const AttentionShape& shape, int64_t queries, int64_t keys) {
    c.batch = 1;
    c.length = queries;
    c.window = shape.window < keys ? shape.window : 0;
    if (keys == queries) return {{c}};
    c.keys = keys;
    if (!c.backward || c.window > 0) {
        c.bottom_right = 1;
        return {{c}};
    }
    CudnnCase before = c, own = c;
    before.unmasked = 1;
    before.keys = keys - queries;
    own.keys = 0;
    own.dq = {c.heads * c.head_dim, c.head_dim};
    return {{before}, {.plan = own, .key = keys - queries, .adds = true}};
}

std::vector<ChunkCall> chunk_calls(const CudnnCase& c, const AttentionShape& shape, const Segments& segments) {
    std::vector<ChunkCall> calls;
    for (std::size_t i = 1; i < segments.q_offsets.size(); ++i) {
        const int64_t query = segments.q_offsets[i - 1], key = segments.k_offsets[i - 1];
        for (ChunkCall call : calls_of_chunk(c, shape, segments.max_q, segments.k_offsets[i] - key)) {
            call.query += query;
            call.key += key;
            calls.push_back(call);
        }
    }
    return calls;
}

int64_t chunks_workspace(const AttentionShape& shape, at::ScalarType dtype, at::Device device,
                         const PackedLimits& sizes, bool backward) {
    if (!cudnn_serves_chunks(shape, dtype, device)) return 0;
    const int64_t keys = kernels::round_up(sizes.longest, dense_step),
                  queries = std::min(keys, kernels::round_up(sizes.tokens, dense_step));
    int64_t most = 0;
    for (int back = 0; back <= (backward ? 1 : 0); ++back)
        for (const ChunkCall& call :
             calls_of_chunk(asked_case(shape, dtype, back != 0), shape, queries, keys + queries))
            most = std::max(most, call.bytes() + cudnn_workspace_of(device, call.plan).value_or(0));
    return most;
}

void attention_forward_by_chunks(const Context& ctx, const std::vector<ChunkCall>& calls,
                                 const AttentionForward& args) {
    for (const ChunkCall& call : calls) {
        const auto queries = [&](const at::Tensor& x) { return x.narrow(0, call.query, call.plan.length); };
        const auto keys = [&](const at::Tensor& x) { return x.narrow(0, call.key, keys_of(call.plan)); };
        run_dense(ctx, call.plan,
                  AttentionForward{.q = queries(args.q),
                                   .k = keys(args.k),
                                   .v = keys(args.v),
                                   .out = queries(args.out),
                                   .lse = lse_of(args.lse, call)});
    }
}

void attention_backward_by_chunks(Context& ctx, const std::vector<ChunkCall>& calls, const AttentionBackward& args) {
    for (const ChunkCall& call : calls) {
        const auto queries = [&](const at::Tensor& x) { return x.narrow(0, call.query, call.plan.length); };
        const auto keys = [&](const at::Tensor& x) { return x.narrow(0, call.key, keys_of(call.plan)); };
        WorkspaceFront front(ctx);
        const at::Tensor dq = queries(args.dq), made = call.adds ? front.take(dq.sizes(), dq.scalar_type()) : dq;
        run_dense(ctx, call.plan,
                  AttentionBackward{.dout = queries(args.dout),
                                    .q = queries(args.q),
                                    .k = keys(args.k),
                                    .v = keys(args.v),
                                    .out = queries(args.out),
                                    .lse = lse_of(args.lse, call),
                                    .dq = made,
                                    .dk = keys(args.dk),
                                    .dv = keys(args.dv)});
        if (call.adds) dq.add_(made);
    }
}

}  // namespace unsloth::ops
#endif
