// One token of the delta rule for each of many sequences: a block a sequence and value head, whose state [128, 128] is
// read from memory once, kept in registers, and written back. Both sums over the state, k^T S and q^T S, are taken of
// the old one: o = decay q^T S + (q k) delta. Ceiling: memory, 128 KiB a sequence and value head.
#include "kernels/common/launch.h"
#include "kernels/common/ptx.cuh"
#include "kernels/delta_gates.cuh"

namespace unsloth::kernels {
namespace delta {
namespace {

constexpr int decode_dim = 128, decode_threads = 256, decode_warps = decode_threads / 32;
constexpr int decode_rows = decode_dim / decode_warps;  ///< of a warp; a lane has four columns

struct DecodeShared {
    float query[decode_dim], key[decode_dim];
    float4 sums[2][decode_warps][32];
};

/// x / length times scale, by one warp.
template <class T>
__device__ __forceinline__ void decode_direction(const ConstMatrix& x, int64_t row, int64_t column, float scale,
                                                 float* to) {
    const int lane = threadIdx.x % 32;
    const T* const from = static_cast<const T*>(x.data) + row * x.stride + column;
    float values[4], squares = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        values[i] = to_float(from[lane + 32 * i]);
        squares += values[i] * values[i];
    }
    const float factor = scale / sqrtf(group_sum(squares) + length_eps);
#pragma unroll
    for (int i = 0; i < 4; ++i) to[lane + 32 * i] = values[i] * factor;
}

__device__ __forceinline__ void add_scaled(float4& to, float factor, const float4& x) {
    to.x += factor * x.x;
    to.y += factor * x.y;
    to.z += factor * x.z;
    to.w += factor * x.w;
}

template <class T>
__global__ void __launch_bounds__(decode_threads) decode_kernel(const DeltaRule p) {
    __shared__ DecodeShared s;
    begin_after_previous(static_cast<uint32_t>(p.segments.tokens));
    const int token = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row0 = warp * decode_rows;
    float4* const state =
        reinterpret_cast<float4*>(p.kept.data + (int64_t{p.kept.rows[token]} * p.shape.value_heads + head) *
                                                    decode_dim * decode_dim) +
        lane;
    const bool keeps = p.kept.keeps(token);
    float4 S[decode_rows];
#pragma unroll
    for (int i = 0; i < decode_rows; ++i) S[i] = keeps ? state[(row0 + i) * 32] : float4{};
    const int key_column = head / p.shape.served() * decode_dim;
    if (warp == 0) decode_direction<T>(p.in.mixed, token, key_column, rsqrtf(static_cast<float>(decode_dim)), s.query);
    if (warp == 1) decode_direction<T>(p.in.mixed, token, p.shape.keys() + key_column, 1.0f, s.key);
    const Gates gates = gates_of<T>(p.in, token, head);
    __syncthreads();
    float4 by_key{}, by_query{};
#pragma unroll
    for (int i = 0; i < decode_rows; ++i) {
        add_scaled(by_key, s.key[row0 + i], S[i]);
        add_scaled(by_query, s.query[row0 + i], S[i]);
    }
    s.sums[0][warp][lane] = by_key;
    s.sums[1][warp][lane] = by_query;
    float both = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) both += s.query[lane + 32 * i] * s.key[lane + 32 * i];
    both = group_sum(both);
    __syncthreads();
    by_key = by_query = {};
#pragma unroll
    for (int w = 0; w < decode_warps; ++w) {
        add_scaled(by_key, 1.0f, s.sums[0][w][lane]);
        add_scaled(by_query, 1.0f, s.sums[1][w][lane]);
    }
    const float decay = expf(gates.log_decay);
    const T* const value =
        static_cast<const T*>(p.in.mixed.data) + token * p.in.mixed.stride + p.shape.value_column(head) + 4 * lane;
    const float4 delta = {
        gates.beta * (to_float(value[0]) - decay * by_key.x), gates.beta * (to_float(value[1]) - decay * by_key.y),
        gates.beta * (to_float(value[2]) - decay * by_key.z), gates.beta * (to_float(value[3]) - decay * by_key.w)};
#pragma unroll
    for (int i = 0; i < decode_rows; ++i) {
        float4 next{};
        add_scaled(next, decay, S[i]);
        add_scaled(next, s.key[row0 + i], delta);
        if (keeps) state[(row0 + i) * 32] = next;
    }
    if (warp != 0) return;
    T* const out = static_cast<T*>(p.o.data) + token * p.o.token_stride + head * p.o.head_stride + 4 * lane;
    out[0] = from_float<T>(decay * by_query.x + both * delta.x);
    out[1] = from_float<T>(decay * by_query.y + both * delta.y);
    out[2] = from_float<T>(decay * by_query.z + both * delta.z);
    out[3] = from_float<T>(decay * by_query.w + both * delta.w);
}

}  // namespace
}  // namespace delta

void delta_decode(const DeltaRule& p, cudaStream_t stream) {
    if (p.segments.tokens == 0) return;
    dispatch_floating(p.in.type, [&](auto tag) {
        using T = typename decltype(tag)::type;
        launch_kernel(
            delta::decode_kernel<T>,
            {.grid = dim3(static_cast<unsigned>(p.segments.tokens), static_cast<unsigned>(p.shape.value_heads)),
             .threads = dim3(delta::decode_threads),
             .stream = stream,
             .after_previous = uses_programmatic_launch(p.segments.tokens)},
            p);
    });
}

}  // namespace unsloth::kernels
