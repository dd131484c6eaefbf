// One token of a whole gated delta net for each of many sequences: convolution, delta rule and gated norm, rounded
// where the separate kernels round. A block has a sequence's key head and the value heads that it serves, so that it
// alone reads and writes what is kept of their channels. The first state is fetched before the kernel ahead has ended.
// Ceiling: memory, 128 KiB a sequence and value head.
#include "kernels/common/launch.h"
#include "kernels/common/ptx.cuh"
#include "kernels/delta_gates.cuh"
#include "kernels/gated_delta.h"

namespace unsloth::kernels {
namespace delta {
namespace {

constexpr int step_dim = 128, step_threads = 256, step_warps = step_threads / 32;
constexpr int step_rows = step_dim / step_warps;  ///< of a warp; a lane has four columns

struct StepShared {
    float query[step_dim], key[step_dim];
    float values[most_step_served * step_dim];
    float squares[step_warps];
    float4 sums[2][2][step_warps][32];  ///< by turns of value heads
};

__device__ __forceinline__ void step_add(float4& to, float factor, const float4& x) {
    to.x += factor * x.x;
    to.y += factor * x.y;
    to.z += factor * x.z;
    to.w += factor * x.w;
}

/// A channel's convolution, and its last inputs moved on. `place`: of these; negative: zeros, and nothing is kept.
template <class T>
__device__ __forceinline__ float step_convolve(const DeltaStep& p, int token, int64_t channel, int place) {
    const float4 taps = reinterpret_cast<const float4*>(p.taps)[channel];
    const T now = static_cast<const T*>(p.in.mixed.data)[token * p.in.mixed.stride + channel];
    float sum = 0.0f;
    if (place >= 0) {
        T* const last = static_cast<T*>(p.inputs.data) + int64_t{place} * 3 * p.channels + channel;
        const T second = last[p.channels], third = last[2 * p.channels];
        sum = taps.x * to_float(last[0]) + taps.y * to_float(second) + taps.z * to_float(third);
        last[0] = second;
        last[p.channels] = third;
        last[2 * p.channels] = now;
    }
    sum += taps.w * to_float(now);
    return to_float(from_float<T>(sum * sigmoid(sum)));
}

/// y of a head from o, of which a lane has four columns.
template <class T>
__device__ __forceinline__ void step_norm(const DeltaStep& p, int token, int head, const float4& o) {
    const int column = threadIdx.x % 32 * 4;
    float values[4] = {o.x, o.y, o.z, o.w}, squares = 0.0f;
#pragma unroll
    for (float& value : values) {
        value = to_float(from_float<T>(value));
        squares += value * value;
    }
    const float rstd = 1.0f / sqrtf(group_sum(squares) / static_cast<float>(step_dim) + p.eps);
    const Pack<T, 4> gate =
        load_pack<4>(static_cast<const T*>(p.z.data) + token * p.z.token_stride + head * p.z.head_stride + column);
    Pack<T, 4> out;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        const float g = to_float(gate.v[k]);
        out.v[k] = from_float<T>(values[k] * rstd * p.norm[column + k] * g * sigmoid(g));
    }
    store_pack(static_cast<T*>(p.y.data) + token * p.y.token_stride + head * p.y.head_stride + column, out);
}

/// Query, key and values of this block's heads, and the product of query and key.
template <class T>
__device__ __forceinline__ float step_read(const DeltaStep& p, int token, int key_head, int place, StepShared& s) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, column = threadIdx.x % step_dim;
    const bool is_key = threadIdx.x >= step_dim;
    const int first = is_key ? p.shape.keys() : 0;
    const float own = step_convolve<T>(p, token, first + key_head * step_dim + column, place);
    const float squares = group_sum(own * own);
    if (lane == 0) s.squares[warp] = squares;
    const int served = p.shape.served();
    for (int c = threadIdx.x; c < served * step_dim; c += step_threads)
        s.values[c] = step_convolve<T>(p, token, p.shape.value_column(key_head * served) + c, place);
    __syncthreads();
    float length = length_eps;
#pragma unroll
    for (int w = 0; w < step_warps / 2; ++w) length += s.squares[(is_key ? step_warps / 2 : 0) + w];
    const float scale = is_key ? 1.0f : rsqrtf(static_cast<float>(step_dim));
    (is_key ? s.key : s.query)[column] = own * (scale / sqrtf(length));
    __syncthreads();
    float both = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) both += s.query[lane + 32 * i] * s.key[lane + 32 * i];
    return group_sum(both);
}

template <class T>
__global__ void __launch_bounds__(step_threads, 2) step_kernel(const DeltaStep p) {
    __shared__ StepShared s;
    launch_dependents(static_cast<uint32_t>(p.segments.tokens));
    const int token = static_cast<int>(blockIdx.x), key_head = static_cast<int>(blockIdx.y);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row0 = warp * step_rows;
    const int served = p.shape.served(), place = p.states.keeps(token) ? p.states.rows[token] : -1;
    float4* state = reinterpret_cast<float4*>(p.states.data) +
                    (int64_t{max(place, 0)} * p.shape.value_heads + key_head * served) * (step_dim * step_dim / 4) +
                    row0 * 32 + lane;
    float4 S[step_rows];
#pragma unroll
    for (int i = 0; i < step_rows; ++i) S[i] = place >= 0 ? state[i * 32] : float4{};
    wait_for_prerequisites();
    const float both = step_read<T>(p, token, key_head, place, s);
    for (int turn = 0; turn < served; ++turn, state += step_dim * step_dim / 4) {
        const int head = key_head * served + turn;
        if (turn > 0) {
#pragma unroll
            for (int i = 0; i < step_rows; ++i) S[i] = place >= 0 ? state[i * 32] : float4{};
        }
        const Gates gates = gates_of<T>(p.in, token, head);
        float4 by_key{}, by_query{};
#pragma unroll
        for (int i = 0; i < step_rows; ++i) {
            step_add(by_key, s.key[row0 + i], S[i]);
            step_add(by_query, s.query[row0 + i], S[i]);
        }
        auto& sums = s.sums[turn % 2];
        sums[0][warp][lane] = by_key;
        sums[1][warp][lane] = by_query;
        __syncthreads();
        by_key = by_query = {};
#pragma unroll
        for (int w = 0; w < step_warps; ++w) {
            step_add(by_key, 1.0f, sums[0][w][lane]);
            step_add(by_query, 1.0f, sums[1][w][lane]);
        }
        const float decay = expf(gates.log_decay);
        const float* const value = s.values + turn * step_dim + 4 * lane;
        const float4 delta = {gates.beta * (value[0] - decay * by_key.x), gates.beta * (value[1] - decay * by_key.y),
                              gates.beta * (value[2] - decay * by_key.z), gates.beta * (value[3] - decay * by_key.w)};
#pragma unroll
        for (int i = 0; i < step_rows; ++i) {
            float4 next{};
            step_add(next, decay, S[i]);
            step_add(next, s.key[row0 + i], delta);
            if (place >= 0) state[i * 32] = next;
        }
        if (warp != 0) continue;
        step_norm<T>(p, token, head,
                     {decay * by_query.x + both * delta.x, decay * by_query.y + both * delta.y,
                      decay * by_query.z + both * delta.z, decay * by_query.w + both * delta.w});
    }
}

}  // namespace
}  // namespace delta

bool delta_step_serves(const DeltaStep& p) {
    const auto heads_aligned = [&](const void* data, int64_t token, int64_t head) {
        return aligned_16(data, {token, head}, p.in.type);
    };
    return p.shape.key_dim == delta::step_dim && p.shape.value_dim == delta::step_dim && p.width == 4 &&
           p.shape.served() <= most_step_served && reinterpret_cast<std::uintptr_t>(p.taps) % 16 == 0 &&
           heads_aligned(p.z.data, p.z.token_stride, p.z.head_stride) &&
           heads_aligned(p.y.data, p.y.token_stride, p.y.head_stride);
}

void delta_step(const DeltaStep& p, cudaStream_t stream) {
    if (p.segments.tokens == 0) return;
    dispatch_floating(p.in.type, [&](auto tag) {
        using T = typename decltype(tag)::type;
        launch_kernel(delta::step_kernel<T>,
                      {.grid = dim3(static_cast<unsigned>(p.segments.tokens), static_cast<unsigned>(p.shape.key_heads)),
                       .threads = dim3(delta::step_threads),
                       .stream = stream,
                       .after_previous = uses_programmatic_launch(p.segments.tokens)},
                      p);
    });
}

}  // namespace unsloth::kernels
