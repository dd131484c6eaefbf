// act = silu(gate) * up and its gradient, in one pass over the fused [gate | up] buffer.
#include "kernels/map_rows.cuh"
#include "kernels/swiglu.h"

namespace unsloth::kernels {

namespace {

__device__ __forceinline__ float sigmoid(float v) {
    return __fdividef(1.f, 1.f + __expf(-v));
}

template <class T, int N>
struct ForwardOperation {
    const T* gate_up;
    int64_t gate_up_stride, columns;
    T* act;
    int64_t act_stride;

    struct State {
        Pack<T, N> gate, up;
    };
    __device__ State load(uint32_t row, int64_t column) const {
        const T* gate = gate_up + row * gate_up_stride + column;
        return {load_pack<N>(gate), load_pack<N>(gate + columns)};
    }
    __device__ void store(uint32_t row, int64_t column, const State& in) const {
        Pack<T, N> out;
#pragma unroll
        for (int k = 0; k < N; ++k) {
            const float gate = to_float(in.gate.v[k]);
            out.v[k] = from_float<T>(gate * sigmoid(gate) * to_float(in.up.v[k]));
        }
        store_pack(act + row * act_stride + column, out);
    }
};

template <class T, int N>
struct BackwardOperation {
    const T* dact;
    int64_t dact_stride;
    T* gate_up;
    int64_t gate_up_stride, columns;

    struct State {
        Pack<T, N> dact, gate, up;
    };
    __device__ State load(uint32_t row, int64_t column) const {
        const T* gate = gate_up + row * gate_up_stride + column;
        return {load_pack<N>(dact + row * dact_stride + column), load_pack<N>(gate), load_pack<N>(gate + columns)};
    }
    __device__ void store(uint32_t row, int64_t column, const State& in) const {
        Pack<T, N> dgate, dup;
#pragma unroll
        for (int k = 0; k < N; ++k) {
            const float d = to_float(in.dact.v[k]);
            const float gate = to_float(in.gate.v[k]);
            const float s = sigmoid(gate);
            dup.v[k] = from_float<T>(d * (gate * s));
            dgate.v[k] = from_float<T>(d * to_float(in.up.v[k]) * s * (1.f + gate * (1.f - s)));
        }
        T* gate = gate_up + row * gate_up_stride + column;
        store_pack(gate, dgate);
        store_pack(gate + columns, dup);
    }
};

/// Whether gate, up and the activation's rows all allow 16-byte accesses.
bool is_vectorizable(const ConstMatrix& gate_up, const ConstMatrix& act, int64_t columns, DType type, int width) {
    return columns % width == 0 && aligned_16(gate_up.data, {gate_up.stride}, type) &&
           aligned_16(act.data, {act.stride}, type);
}

template <class T, int N>
void run_forward(const SwigluForward& p, cudaStream_t stream) {
    const ForwardOperation<T, N> operation{static_cast<const T*>(p.gate_up.data), p.gate_up.stride, p.columns,
                                           static_cast<T*>(p.act.data), p.act.stride};
    map_rows<N>(operation, p.tokens, p.columns, stream);
}

template <class T, int N>
void run_backward(const SwigluBackward& p, cudaStream_t stream) {
    const BackwardOperation<T, N> operation{static_cast<const T*>(p.dact.data), p.dact.stride,
                                            static_cast<T*>(p.gate_up.data), p.gate_up.stride, p.columns};
    map_rows<N>(operation, p.tokens, p.columns, stream);
}

}  // namespace

void swiglu_forward(const SwigluForward& p, cudaStream_t stream) {
    dispatch_floating(p.type, [&](auto tag) {
        using T = typename decltype(tag)::type;
        constexpr int width = vector_width<T>;
        const bool vector = is_vectorizable(p.gate_up, {p.act.data, p.act.stride}, p.columns, p.type, width);
        vector ? run_forward<T, width>(p, stream) : run_forward<T, 1>(p, stream);
    });
}

void swiglu_backward(const SwigluBackward& p, cudaStream_t stream) {
    dispatch_floating(p.type, [&](auto tag) {
        using T = typename decltype(tag)::type;
        constexpr int width = vector_width<T>;
        const bool vector = is_vectorizable({p.gate_up.data, p.gate_up.stride}, p.dact, p.columns, p.type, width);
        vector ? run_backward<T, width>(p, stream) : run_backward<T, 1>(p, stream);
    });
}

}  // namespace unsloth::kernels
