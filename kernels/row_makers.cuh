// What makes rows that are quantised at once (fp8_rows.cu, int8_rows.cu): the norm, SwiGLU and its gradient, RoPE, or
// nothing.
//
// A row consists of units; a thread makes `segments` packs of 8 values from the `inputs` 16-byte packs of a unit, and
// stores their bf16 form itself.
#pragma once

#include <type_traits>

#include "kernels/common/device.cuh"
#include "kernels/norm_rows.cuh"
#include "kernels/rope.h"
#include "kernels/rows_view.h"
#include "kernels/swiglu.h"
#include "kernels/swiglu_math.cuh"

namespace unsloth::kernels {

inline constexpr int pack_width = 8;  ///< bf16 in 16 bytes; their codes take 8
using Bf16 = __nv_bfloat16;
using Bf16x8 = Pack<Bf16, pack_width>;

/// Magnitudes of bf16 compare as their bits do, infinity and not-a-number above the others: `amax` (two of 16 bits)
/// with those of `values`.
__device__ __forceinline__ uint32_t pack_amax(uint32_t amax, const Bf16x8& values) {
    const auto* pairs = reinterpret_cast<const uint32_t*>(values.v);
#pragma unroll
    for (int i = 0; i < pack_width / 2; ++i) amax = __vmaxu2(amax, pairs[i] & 0x7FFF7FFFu);
    return amax;
}

/// The least scale, whose inverse is finite (include/unsloth/ops/coded_rows.h).
inline constexpr float least_scale = 1.17549435e-38f;

struct CopiedRows {
    static constexpr int inputs = 1, segments = 1;
    ConstMatrix x;

    __device__ const Bf16* input(uint32_t row, int unit, int) const {
        return static_cast<const Bf16*>(x.data) + row * x.stride + unit * pack_width;
    }
    __device__ int column(int unit, int) const { return unit * pack_width; }
    __device__ void make(uint32_t, int, const Bf16x8 (&in)[1], Bf16x8 (&made)[1]) const { made[0] = in[0]; }
};

struct NormalisedRows {
    static constexpr int inputs = 1, segments = 1;
    NormForward p;

    __device__ const Bf16* input(uint32_t row, int unit, int) const {
        return static_cast<const Bf16*>(p.x.data) + row * p.x.token_stride + unit * pack_width;
    }
    __device__ int column(int unit, int) const { return unit * pack_width; }
    /// 1 / root mean square.
    __device__ float factor(uint32_t row, float squares) const {
        const float inv_columns = 1.f / static_cast<float>(p.shape.columns);
        const float rstd = rsqrtf(squares * inv_columns + p.eps);
        if (threadIdx.x == 0) {
            p.rstd[row] = rstd;
            if (!isfinite(squares)) report(p.site);
        }
        return rstd;
    }
    __device__ void make(uint32_t row, int unit, const Bf16x8& x, float rstd, Bf16x8 (&made)[1]) const {
        float weight[pack_width];
        load_weight<Bf16>(p.weight, p.shape.weight_type, unit * pack_width, weight);
#pragma unroll
        for (int k = 0; k < pack_width; ++k) made[0].v[k] = from_float<Bf16>(to_float(x.v[k]) * rstd * weight[k]);
        if (p.y.data != nullptr)
            store_pack(static_cast<Bf16*>(p.y.data) + row * p.y.token_stride + unit * pack_width, made[0]);
    }
};

template <spec::GateActivation kGate>
struct SwigluRows {
    static constexpr int inputs = 2, segments = 1;
    SwigluForward p;

    __device__ const Bf16* input(uint32_t row, int unit, int i) const {
        return static_cast<const Bf16*>(p.gate_up.data) + row * p.gate_up.stride + i * p.columns + unit * pack_width;
    }
    __device__ int column(int unit, int) const { return unit * pack_width; }
    __device__ void make(uint32_t row, int unit, const Bf16x8 (&in)[2], Bf16x8 (&made)[1]) const {
#pragma unroll
        for (int k = 0; k < pack_width; ++k)
            made[0].v[k] = from_float<Bf16>(Glu<kGate>::of(to_float(in[0].v[k]), to_float(in[1].v[k])));
        if (p.act.data != nullptr)
            store_pack(static_cast<Bf16*>(p.act.data) + row * p.act.stride + unit * pack_width, made[0]);
    }
};

template <spec::GateActivation kGate>
struct SwigluGradientRows {
    static constexpr int inputs = 3, segments = 2;
    SwigluBackward p;
    bool codes_alone = false;  ///< gate and up stay as they are

    __device__ const Bf16* input(uint32_t row, int unit, int i) const {
        if (i == 2) return static_cast<const Bf16*>(p.dact.data) + row * p.dact.stride + unit * pack_width;
        return gate_up(row, unit) + i * p.columns;
    }
    __device__ Bf16* gate_up(uint32_t row, int unit) const {
        return static_cast<Bf16*>(p.gate_up.data) + row * p.gate_up.stride + unit * pack_width;
    }
    __device__ int column(int unit, int s) const { return s * static_cast<int>(p.columns) + unit * pack_width; }
    __device__ void make(uint32_t row, int unit, const Bf16x8 (&in)[3], Bf16x8 (&made)[2]) const {
        Bf16x8 act;
#pragma unroll
        for (int k = 0; k < pack_width; ++k) {
            const SwigluGradients g =
                Glu<kGate>::gradients(to_float(in[2].v[k]), to_float(in[0].v[k]), to_float(in[1].v[k]));
            made[0].v[k] = from_float<Bf16>(g.gate);
            made[1].v[k] = from_float<Bf16>(g.up);
            act.v[k] = from_float<Bf16>(g.act);
        }
        if (!codes_alone) {
            store_pack(gate_up(row, unit), made[0]);
            store_pack(gate_up(row, unit) + p.columns, made[1]);
        }
        if (p.act.data != nullptr)
            store_pack(static_cast<Bf16*>(p.act.data) + row * p.act.stride + unit * pack_width, act);
    }
};

/// A unit is a pack of pairs of one head: 8 values of its first half, and those of the second that turn with
/// them.
struct RotatedRows {
    static constexpr int inputs = 2, segments = 2;
    RopeApply p;
    int packs_of_half = 0;     ///< pairs / 8
    bool codes_alone = false;  ///< x stays as it is

    __device__ int column(int unit, int s) const {
        const int head = unit / packs_of_half, pack = unit - head * packs_of_half;
        return (2 * head + s) * static_cast<int>(p.pairs) + pack * pack_width;
    }
    __device__ const Bf16* input(uint32_t row, int unit, int i) const {
        return static_cast<const Bf16*>(p.x.data) + row * p.x.token_stride + column(unit, i);
    }
    __device__ void make(uint32_t row, int unit, const Bf16x8 (&in)[2], Bf16x8 (&made)[2]) const {
        if (unit >= p.heads * packs_of_half) {  // a head that is not turned
            made[0] = in[0];
            made[1] = in[1];
            return;
        }
        const int64_t pair = row * p.pairs + unit % packs_of_half * pack_width;
        const Pack<float, pack_width> cos = load_pack<pack_width>(p.cos + pair);
        Pack<float, pack_width> sin = load_pack<pack_width>(p.sin + pair);
#pragma unroll
        for (int k = 0; k < pack_width; ++k) {
            if (p.backward) sin.v[k] = -sin.v[k];
            const float x1 = to_float(in[0].v[k]), x2 = to_float(in[1].v[k]);
            made[0].v[k] = from_float<Bf16>(x1 * cos.v[k] - x2 * sin.v[k]);
            made[1].v[k] = from_float<Bf16>(x2 * cos.v[k] + x1 * sin.v[k]);
        }
        if (codes_alone) return;
        Bf16* x = static_cast<Bf16*>(p.x.data) + row * p.x.token_stride;
        store_pack(x + column(unit, 0), made[0]);
        store_pack(x + column(unit, 1), made[1]);
    }
};

template <class Maker>
__device__ __forceinline__ void load_unit(const Maker& maker, uint32_t row, int unit, Bf16x8 (&in)[Maker::inputs]) {
#pragma unroll
    for (int i = 0; i < Maker::inputs; ++i) in[i] = load_pack<pack_width>(maker.input(row, unit, i));
}

/// What a thread makes its kUnits units of a row from.
template <class Maker, int kUnits>
struct RowInputs {
    __device__ __forceinline__ RowInputs(const Maker&, uint32_t, int) {}
    __device__ __forceinline__ void make(const Maker& maker, uint32_t row, int unit, int,
                                         Bf16x8 (&made)[Maker::segments]) const {
        Bf16x8 in[Maker::inputs];
        load_unit(maker, row, unit, in);
        maker.make(row, unit, in, made);
    }
};

/// A norm knows its factor when all of a row has been seen: x is there by then, but for the longest rows, which are
/// read again.
template <int kUnits>
struct RowInputs<NormalisedRows, kUnits> {
    static constexpr bool kept = kUnits <= 4;
    Bf16x8 x[kept ? kUnits : 1];
    float factor;

    __device__ __forceinline__ RowInputs(const NormalisedRows& maker, uint32_t row, int units) {
        __shared__ float sums[32];
        Bf16x8 in[kUnits][1];
#pragma unroll
        for (int i = 0; i < kUnits; ++i) {
            const int unit = i * blockDim.x + threadIdx.x;
            in[i][0] = {};
            if (unit < units) load_unit(maker, row, unit, in[i]);
        }
        float squares = 0.f;
#pragma unroll
        for (int i = 0; i < kUnits; ++i) {
#pragma unroll
            for (int k = 0; k < pack_width; ++k) squares += to_float(in[i][0].v[k]) * to_float(in[i][0].v[k]);
            if constexpr (kept) x[i] = in[i][0];
        }
        factor = maker.factor(row, block_sum(squares, sums));
    }
    __device__ __forceinline__ void make(const NormalisedRows& maker, uint32_t row, int unit, int i,
                                         Bf16x8 (&made)[1]) {
        if constexpr (!kept) x[0] = load_pack<pack_width>(maker.input(row, unit, 0));
        maker.make(row, unit, x[kept ? i : 0], factor, made);
    }
};

/// The longest row that is made together with its codes.
inline constexpr int64_t longest_made_row = 65536;

template <class Maker, int kUnits>
inline constexpr int most_threads =
    kUnits <= 2 ? 512 : static_cast<int>(longest_made_row) / (pack_width * 8 * Maker::segments);

/// launch(units a thread, units of a row, threads), as norm_forward's packs are spread over threads, so that sums of
/// squares have the same bits.
template <class Maker, class Launch>
void by_units(int64_t rows, int64_t columns, const Launch& launch) {
    if (rows == 0) return;
    const int units = static_cast<int>(columns / (pack_width * Maker::segments));
    const auto call = [&](auto of_a_thread) {
        launch(of_a_thread, units, static_cast<int>(round_up(ceil_div(units, decltype(of_a_thread)::value), 32)));
    };
    if (units <= 256) {
        call(std::integral_constant<int, 1>());
    } else if (units <= 1024) {
        call(std::integral_constant<int, 2>());
    } else if (columns <= longest_made_row / 2) {
        call(std::integral_constant<int, 4>());
    } else {
        call(std::integral_constant<int, 8>());
    }
}

}  // namespace unsloth::kernels
