// The delta rule, a token after the other in fp32: any heads, any alignment, fp32 among the types. What the kernels by
// chunks (delta_scan.cu) do not take, and the reference that they are compared with. Latency decides: some
// microseconds a token. A block's state [k, v] is in shared memory; forward a block is a segment's value head, backward
// a segment's key head, as the gradients of queries and keys are sums over the value heads that it serves.
//
// Decoding has its own kernel: states are read and written once, which is its ceiling.
#include "kernels/common/launch.h"
#include "kernels/common/ptx.cuh"
#include "kernels/delta_gates.cuh"

namespace unsloth::kernels {
namespace delta {
namespace {

constexpr int recurrent_threads = 256;
constexpr int recurrent_warps = recurrent_threads / 32;
constexpr int recurrent_chunk = 64;
constexpr int most_pairs = 128;  ///< blocks of a backward pass: each has scratch for a chunk's states

/// The vectors of a token, in shared memory.
struct Token {
    float *query, *key, *value;  ///< queries and keys as directions
    float *error, *delta;        ///< [v]
    float* of_warps;             ///< [warps, v]
    float* reduce;               ///< [32]
    float query_inverse, key_inverse;
    Gates gates;
};
constexpr int token_floats(int k, int v) {
    return 2 * k + 3 * v + recurrent_warps * v + 32;
}
__device__ __forceinline__ Token token_in(float* shared, int k, int v) {
    Token t;
    t.query = shared;
    t.key = t.query + k;
    t.value = t.key + k;
    t.error = t.value + v;
    t.delta = t.error + v;
    t.of_warps = t.delta + v;
    t.reduce = t.of_warps + recurrent_warps * v;
    return t;
}

template <class T>
__device__ __forceinline__ float element(const ConstMatrix& x, int64_t row, int64_t column) {
    return to_float(static_cast<const T*>(x.data)[row * x.stride + column]);
}

/// to = x / length, times scale; 1 / length.
template <class T>
__device__ float read_direction(const ConstMatrix& x, int64_t row, int64_t column, int size, float scale, float* to,
                                float* reduce) {
    float squares = 0.0f;
    for (int i = threadIdx.x; i < size; i += recurrent_threads) {
        to[i] = element<T>(x, row, column + i);
        squares += to[i] * to[i];
    }
    const float inverse = 1.0f / sqrtf(block_sum(squares, reduce) + length_eps);
    for (int i = threadIdx.x; i < size; i += recurrent_threads) to[i] *= inverse * scale;
    return inverse;
}
template <class T>
__device__ void read_token(Token& t, const DeltaHeads& shape, const DeltaRead& in, int64_t token, int head) {
    const int key_column = head / shape.served() * shape.key_dim;
    t.query_inverse = read_direction<T>(in.mixed, token, key_column, shape.key_dim,
                                        1.0f / sqrtf(static_cast<float>(shape.key_dim)), t.query, t.reduce);
    t.key_inverse = read_direction<T>(in.mixed, token, shape.keys() + key_column, shape.key_dim, 1.0f, t.key, t.reduce);
    for (int j = threadIdx.x; j < shape.value_dim; j += recurrent_threads)
        t.value[j] = element<T>(in.mixed, token, shape.value_column(head) + j);
    t.gates = gates_of<T>(in, token, head);
    __syncthreads();
}

/// to[j] = the sum over i of f(i, j), for each column j; a warp takes every eighth row.
template <class F>
__device__ __forceinline__ void sum_rows(const Token& t, int k, int v, float* to, F f) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int j = lane; j < v; j += 32) {
        float sum = 0.0f;
        for (int i = warp; i < k; i += recurrent_warps) sum += f(i, j);
        t.of_warps[warp * v + j] = sum;
    }
    __syncthreads();
    for (int j = threadIdx.x; j < v; j += recurrent_threads) {
        float sum = 0.0f;
        for (int w = 0; w < recurrent_warps; ++w) sum += t.of_warps[w * v + j];
        to[j] = sum;
    }
    __syncthreads();
}

/// S of the token before becomes this one's; a thread's elements are its own throughout.
__device__ void advance(Token& t, int k, int v, float* S) {
    const float decay = expf(t.gates.log_decay);
    sum_rows(t, k, v, t.error, [&](int i, int j) {
        float& state = S[i * v + j];
        state *= decay;
        return t.key[i] * state;
    });
    for (int j = threadIdx.x; j < v; j += recurrent_threads) {
        t.error[j] = t.value[j] - t.error[j];
        t.delta[j] = t.gates.beta * t.error[j];
    }
    __syncthreads();
    for (int i = threadIdx.x / 32; i < k; i += recurrent_warps)
        for (int j = threadIdx.x % 32; j < v; j += 32) S[i * v + j] += t.key[i] * t.delta[j];
}

/// The states of a segment's value heads from this one on, or their gradients; nullptr: of none.
__device__ __forceinline__ float* kept_state(const DeltaKept& kept, const DeltaHeads& shape, int segment, int head) {
    if (!kept.keeps(segment)) return nullptr;
    return kept.data + (int64_t{kept.rows[segment]} * shape.value_heads + head) * shape.key_dim * shape.value_dim;
}

template <class T>
__global__ void __launch_bounds__(recurrent_threads, 1) recurrent_forward_kernel(const DeltaRule p) {
    extern __shared__ __align__(16) float recurrent_shared[];
    begin_after_previous(static_cast<uint32_t>(p.segments.tokens));
    const int k = p.shape.key_dim, v = p.shape.value_dim, head = static_cast<int>(blockIdx.x) % p.shape.value_heads,
              segment = p.turn.segment(static_cast<int>(blockIdx.x) / p.shape.value_heads);
    float* const S = recurrent_shared;
    Token t = token_in(S + k * v, k, v);
    float* const kept = kept_state(p.kept, p.shape, segment, head);
    for (int i = threadIdx.x; i < k * v; i += recurrent_threads) S[i] = kept == nullptr ? 0.0f : kept[i];
    __syncthreads();
    for (int token = p.segments.offsets[segment]; token < p.segments.offsets[segment + 1]; ++token) {
        read_token<T>(t, p.shape, p.in, token, head);
        advance(t, k, v, S);
        sum_rows(t, k, v, t.error, [&](int i, int j) { return t.query[i] * S[i * v + j]; });
        T* const out = static_cast<T*>(p.o.data) + token * p.o.token_stride + head * p.o.head_stride;
        for (int j = threadIdx.x; j < v; j += recurrent_threads) out[j] = from_float<T>(t.error[j]);
        __syncthreads();
    }
    if (kept == nullptr || p.kept.read_only) return;
    for (int i = threadIdx.x; i < k * v; i += recurrent_threads) kept[i] = S[i];
}

/// Of a block of the backward pass, in global memory.
struct PairScratch {
    float *states, *dS, *dq, *dk;  ///< [65, k, v], [served, k, v], [64, k], [64, k]
    static __host__ __device__ int64_t floats(const DeltaHeads& shape) {
        const int64_t state = int64_t{shape.key_dim} * shape.value_dim;
        return (recurrent_chunk + 1 + shape.served()) * state + 2 * recurrent_chunk * shape.key_dim;
    }
    __device__ PairScratch(float* base, const DeltaHeads& shape) {
        const int64_t state = int64_t{shape.key_dim} * shape.value_dim;
        states = base;
        dS = states + (recurrent_chunk + 1) * state;
        dq = dS + shape.served() * state;
        dk = dq + recurrent_chunk * shape.key_dim;
    }
};

/// The states of a segment's value head where chunks begin. `first`: that of the segment; nullptr: zeros.
template <class T>
__device__ void write_borders(Token& t, const DeltaRule& p, int begin, int end, int head, const float* first, float* S,
                              float* borders, int64_t between) {
    const int k = p.shape.key_dim, v = p.shape.value_dim;
    for (int i = threadIdx.x; i < k * v; i += recurrent_threads) S[i] = first == nullptr ? 0.0f : first[i];
    __syncthreads();
    for (int token = begin; token < end; ++token) {
        if ((token - begin) % recurrent_chunk == 0) {
            float* const to = borders + (token - begin) / recurrent_chunk * between;
            for (int i = threadIdx.x; i < k * v; i += recurrent_threads) to[i] = S[i];
        }
        read_token<T>(t, p.shape, p.in, token, head);
        advance(t, k, v, S);
        __syncthreads();
    }
}

/// A token's gradients, given dS of its state, which becomes that of the one before. dq and dk (rows of the token) are
/// added to. `before` and `after`: its states.
template <class T>
__device__ void step_back(Token& t, const DeltaRule& p, int token, int head, const float* before, const float* after,
                          float* dS, float* dq, float* dk, float* dvalue) {
    const int k = p.shape.key_dim, v = p.shape.value_dim, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const T* const dout = static_cast<const T*>(p.dout.data) + token * p.dout.token_stride + head * p.dout.head_stride;
    for (int i = warp; i < k; i += recurrent_warps) {
        float along_out = 0.0f, along_delta = 0.0f;
        for (int j = lane; j < v; j += 32) {
            const float d = to_float(dout[j]);
            float& gradient = dS[i * v + j];
            along_out += after[i * v + j] * d;
            gradient += t.query[i] * d;
            along_delta += gradient * t.delta[j];
        }
        along_out = group_sum(along_out);
        along_delta = group_sum(along_delta);
        if (lane == 0) dq[i] += along_out, dk[i] += along_delta;
    }
    __syncthreads();
    sum_rows(t, k, v, dvalue, [&](int i, int j) { return dS[i * v + j] * t.key[i]; });
    float dbeta = 0.0f;
    for (int j = threadIdx.x; j < v; j += recurrent_threads) {
        dbeta += dvalue[j] * t.error[j];
        dvalue[j] *= t.gates.beta;
    }
    dbeta = block_sum(dbeta, t.reduce);
    const float decay = expf(t.gates.log_decay);
    float dlog_decay = 0.0f;
    for (int i = warp; i < k; i += recurrent_warps) {
        float along = 0.0f;
        for (int j = lane; j < v; j += 32) {
            const float state = before[i * v + j];
            along += state * dvalue[j];
            const float gradient = decay * (dS[i * v + j] - t.key[i] * dvalue[j]);
            dS[i * v + j] = gradient;
            dlog_decay += state * gradient;
        }
        along = group_sum(along);
        if (lane == 0) dk[i] -= decay * along;
    }
    dlog_decay = block_sum(dlog_decay, t.reduce);
    for (int j = threadIdx.x; j < v; j += recurrent_threads)
        static_cast<T*>(p.out.mixed.data)[token * p.out.mixed.stride + p.shape.value_column(head) + j] =
            from_float<T>(dvalue[j]);
    if (threadIdx.x != 0) return;
    const float da = dlog_decay * t.gates.slope;
    static_cast<T*>(p.out.b.data)[token * p.out.b.stride + head] =
        from_float<T>(dbeta * t.gates.beta * (1.0f - t.gates.beta));
    static_cast<T*>(p.out.a.data)[token * p.out.a.stride + head] = from_float<T>(da);
    const int64_t at = int64_t{token} * p.shape.value_heads + head;
    p.scratch.per_token[at] = da;
    p.scratch.per_token[p.segments.tokens * p.shape.value_heads + at] = dlog_decay * t.gates.log_decay;
}

/// Of a query or key as it was before it was divided by its length.
template <class T>
__device__ void write_direction(Token& t, const float* d, const float* direction, float inverse, float scale, int size,
                                T* to) {
    float along = 0.0f;
    for (int i = threadIdx.x; i < size; i += recurrent_threads) along += d[i] * direction[i];
    along = block_sum(along, t.reduce);
    for (int i = threadIdx.x; i < size; i += recurrent_threads)
        to[i] = from_float<T>(inverse * (scale * d[i] - along * direction[i] / scale));
}

/// A chunk of one value head, from its last token to its first.
template <class T>
__device__ void chunk_back(Token& t, const DeltaRule& p, int from, int to, int head, const float* border, float* S,
                           const PairScratch& own, float* dS, float* dvalue) {
    const int k = p.shape.key_dim, v = p.shape.value_dim, state = k * v;
    for (int i = threadIdx.x; i < state; i += recurrent_threads) S[i] = own.states[i] = border[i];
    __syncthreads();
    for (int token = from; token < to; ++token) {
        read_token<T>(t, p.shape, p.in, token, head);
        advance(t, k, v, S);
        __syncthreads();
        float* const after = own.states + int64_t{token - from + 1} * state;
        for (int i = threadIdx.x; i < state; i += recurrent_threads) after[i] = S[i];
        __syncthreads();
    }
    for (int token = to - 1; token >= from; --token) {
        const float* const before = own.states + int64_t{token - from} * state;
        for (int i = threadIdx.x; i < state; i += recurrent_threads) S[i] = before[i];
        read_token<T>(t, p.shape, p.in, token, head);
        advance(t, k, v, S);  // its error and delta once more
        __syncthreads();
        step_back<T>(t, p, token, head, before, before + state, dS, own.dq + (token - from) * k,
                     own.dk + (token - from) * k, dvalue);
        __syncthreads();
    }
}

template <class T>
__global__ void __launch_bounds__(recurrent_threads, 1) recurrent_backward_kernel(const DeltaRule p) {
    extern __shared__ __align__(16) float recurrent_shared[];
    const DeltaHeads& shape = p.shape;
    const int k = shape.key_dim, v = shape.value_dim, state = k * v;
    float *const S = recurrent_shared, *const dvalue = S + state;
    Token t = token_in(dvalue + v, k, v);
    const PairScratch own(p.scratch.of_blocks + blockIdx.x * PairScratch::floats(shape), shape);
    for (int pair = blockIdx.x; pair < p.turn.count(p.segments) * shape.key_heads; pair += gridDim.x) {
        const int segment = p.turn.segment(pair / shape.key_heads), head0 = pair % shape.key_heads * shape.served();
        const int begin = p.segments.offsets[segment], end = p.segments.offsets[segment + 1];
        const int64_t slot = begin / recurrent_chunk + segment, between = int64_t{shape.value_heads} * state;
        const auto borders_of = [&](int head) { return p.scratch.borders + slot * between + int64_t{head} * state; };
        for (int h = 0; h < shape.served(); ++h)
            write_borders<T>(t, p, begin, end, head0 + h, kept_state(p.kept, shape, segment, head0 + h), S,
                             borders_of(head0 + h), between);
        float* const dkept = kept_state(p.dkept, shape, segment, head0);
        for (int i = threadIdx.x; i < shape.served() * state; i += recurrent_threads)
            own.dS[i] = dkept == nullptr ? 0.0f : dkept[i];
        for (int n = (end - begin + recurrent_chunk - 1) / recurrent_chunk - 1; n >= 0; --n) {
            const int from = begin + n * recurrent_chunk, to = min(from + recurrent_chunk, end);
            __syncthreads();
            for (int i = threadIdx.x; i < recurrent_chunk * k; i += recurrent_threads) own.dq[i] = own.dk[i] = 0.0f;
            __syncthreads();
            for (int h = 0; h < shape.served(); ++h)
                chunk_back<T>(t, p, from, to, head0 + h, borders_of(head0 + h) + n * between, S, own,
                              own.dS + int64_t{h} * state, dvalue);
            for (int token = from; token < to; ++token) {
                read_token<T>(t, shape, p.in, token, head0);
                T* const out =
                    static_cast<T*>(p.out.mixed.data) + token * p.out.mixed.stride + head0 / shape.served() * k;
                write_direction(t, own.dq + (token - from) * k, t.query, t.query_inverse,
                                1.0f / sqrtf(static_cast<float>(k)), k, out);
                write_direction(t, own.dk + (token - from) * k, t.key, t.key_inverse, 1.0f, k, out + shape.keys());
                __syncthreads();
            }
        }
        __syncthreads();
        if (dkept == nullptr) continue;
        for (int i = threadIdx.x; i < shape.served() * state; i += recurrent_threads) dkept[i] = own.dS[i];
    }
}

std::size_t shared_bytes_of(const DeltaHeads& shape, int more) {
    const std::size_t floats = static_cast<std::size_t>(shape.key_dim) * static_cast<std::size_t>(shape.value_dim) +
                               static_cast<std::size_t>(token_floats(shape.key_dim, shape.value_dim) + more);
    return floats * sizeof(float);
}
unsigned pairs_at_once(const DeltaHeads& shape, int64_t segments) {
    return static_cast<unsigned>(std::min<int64_t>(segments * shape.key_heads, most_pairs));
}

}  // namespace
}  // namespace delta

void delta_recurrent_forward(const DeltaRule& p, cudaStream_t stream) {
    dispatch_floating(p.in.type, [&](auto tag) {
        using T = typename decltype(tag)::type;
        launch_kernel(delta::recurrent_forward_kernel<T>,
                      {.grid = dim3(static_cast<unsigned>(p.turn.count(p.segments) * p.shape.value_heads)),
                       .threads = dim3(delta::recurrent_threads),
                       .shared_bytes = delta::shared_bytes_of(p.shape, 0),
                       .stream = stream,
                       .after_previous = uses_programmatic_launch(p.segments.tokens)},
                      p);
    });
}

int64_t delta_recurrent_scratch_bytes(const DeltaHeads& shape, int64_t tokens, int64_t segments) {
    const int64_t floats =
        delta::pairs_at_once(shape, segments) * delta::PairScratch::floats(shape) + 2 * tokens * shape.value_heads;
    return floats * static_cast<int64_t>(sizeof(float));
}

void delta_recurrent_place(DeltaRule& p, void* workspace, void* states) {
    p.scratch.borders = static_cast<float*>(states);
    p.scratch.per_token = static_cast<float*>(workspace);
    p.scratch.of_blocks = p.scratch.per_token + 2 * p.segments.tokens * p.shape.value_heads;
}

void delta_recurrent_backward(const DeltaRule& p, cudaStream_t stream) {
    dispatch_floating(p.in.type, [&](auto tag) {
        using T = typename decltype(tag)::type;
        launch_kernel(delta::recurrent_backward_kernel<T>,
                      {.grid = dim3(delta::pairs_at_once(p.shape, p.turn.count(p.segments))),
                       .threads = dim3(delta::recurrent_threads),
                       .shared_bytes = delta::shared_bytes_of(p.shape, p.shape.value_dim),
                       .stream = stream},
                      p);
    });
}

}  // namespace unsloth::kernels
