// act = f(gate) * up (Shazeer, "GLU Variants Improve Transformer", 2020) and its gradient, in one pass over the
// fused [gate | up] buffer. Ceiling: the bandwidth of memory, 6 bytes a bf16 element of act forward, 10 backward, 2
// more when the activation is rebuilt.
#include "kernels/map_rows.cuh"
#include "kernels/swiglu.h"
#include "kernels/swiglu_math.cuh"

namespace unsloth::kernels {

namespace {

template <class T, int N, spec::GateActivation kGate>
struct ForwardOperation {
    const T* gate_up;
    int64_t gate_up_stride, columns;
    T* act;
    int64_t act_stride;
    float limit;

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
            out.v[k] = from_float<T>(Glu<kGate>::of(to_float(in.gate.v[k]), to_float(in.up.v[k]), limit));
        }
        store_pack(act + row * act_stride + column, out);
    }
};

/// kRebuild: the activation is written too, as the forward has it; `act` may be `dact`.
template <class T, int N, bool kRebuild, spec::GateActivation kGate>
struct BackwardOperation {
    const T* dact;
    int64_t dact_stride;
    T* gate_up;
    int64_t gate_up_stride, columns;
    T* act;
    int64_t act_stride;
    float limit;

    struct State {
        Pack<T, N> dact, gate, up;
    };
    __device__ State load(uint32_t row, int64_t column) const {
        const T* gate = gate_up + row * gate_up_stride + column;
        return {load_pack<N>(dact + row * dact_stride + column), load_pack<N>(gate), load_pack<N>(gate + columns)};
    }
    __device__ void store(uint32_t row, int64_t column, const State& in) const {
        Pack<T, N> dgate, dup, rebuilt;
#pragma unroll
        for (int k = 0; k < N; ++k) {
            const SwigluGradients made =
                Glu<kGate>::gradients(to_float(in.dact.v[k]), to_float(in.gate.v[k]), to_float(in.up.v[k]), limit);
            dup.v[k] = from_float<T>(made.up);
            dgate.v[k] = from_float<T>(made.gate);
            if constexpr (kRebuild) rebuilt.v[k] = from_float<T>(made.act);
        }
        T* gate = gate_up + row * gate_up_stride + column;
        store_pack(gate, dgate);
        store_pack(gate + columns, dup);
        if constexpr (kRebuild) store_pack(act + row * act_stride + column, rebuilt);
    }
};

/// Whether gate, up and the activation's rows all allow 16-byte accesses.
bool is_vectorizable(const ConstMatrix& gate_up, const ConstMatrix& act, int64_t columns, spec::DType type, int width) {
    return columns % width == 0 && aligned_16(gate_up.data, {gate_up.stride}, type) &&
           aligned_16(act.data, {act.stride}, type);
}

template <class T, int N>
void run_forward(const SwigluForward& p, cudaStream_t stream) {
    with_gate(p.activation, [&](auto gate) {
        const ForwardOperation<T, N, gate()> operation{
            static_cast<const T*>(p.gate_up.data), p.gate_up.stride, p.columns,
            static_cast<T*>(p.act.data),           p.act.stride,     p.limit};
        map_rows<N>(operation, p.tokens, p.columns, stream);
    });
}

template <class T, int N, bool kRebuild>
void run_backward_as(const SwigluBackward& p, cudaStream_t stream) {
    with_gate(p.activation, [&](auto gate) {
        const BackwardOperation<T, N, kRebuild, gate()> operation{static_cast<const T*>(p.dact.data),
                                                                  p.dact.stride,
                                                                  static_cast<T*>(p.gate_up.data),
                                                                  p.gate_up.stride,
                                                                  p.columns,
                                                                  static_cast<T*>(p.act.data),
                                                                  p.act.stride,
                                                                  p.limit};
        map_rows<N>(operation, p.tokens, p.columns, stream);
    });
}

template <class T, int N>
void run_backward(const SwigluBackward& p, cudaStream_t stream) {
    p.act.data != nullptr ? run_backward_as<T, N, true>(p, stream) : run_backward_as<T, N, false>(p, stream);
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
        const bool vector = is_vectorizable({p.gate_up.data, p.gate_up.stride}, p.dact, p.columns, p.type, width) &&
                            aligned_16(p.act.data, {p.act.stride}, p.type);
        vector ? run_backward<T, width>(p, stream) : run_backward<T, 1>(p, stream);
    });
}

}  // namespace unsloth::kernels
