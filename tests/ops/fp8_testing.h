// e4m3 matrices for tests: random codes with scales by row, and what they stand for in fp64.
#pragma once

#include "kernels/fp8_gemm.h"
#include "unsloth/ops/gemm_coded.h"

namespace unsloth::ops {

/// Codes of a normal sample whose largest value is near 448, and positive scales that differ from row to row.
/// Drawn on the CPU, so that a seed gives the same on every device.
inline CodedMatrix random_fp8(int64_t rows, int64_t cols, at::Device device, double scale) {
    const at::Tensor values = (at::randn({rows, cols}) * 100.0).clamp(-448.0, 448.0);
    const at::Tensor scales = (at::rand({rows}) + 0.5) * scale;
    return {values.to(at::kFloat8_e4m3fn).view(at::kByte).to(device), scales.to(device)};
}

inline at::Tensor fp64_of(const CodedMatrix& matrix) {
    const at::Tensor values = matrix.codes.cpu().view(at::kFloat8_e4m3fn).to(at::kFloat).to(at::kDouble);
    return values * matrix.scales.cpu().to(at::kDouble).unsqueeze(1);
}

inline at::Tensor fp64_of(const at::Tensor& x) {
    return x.cpu().to(at::kDouble);
}

/// gemm_fp8 without rounding.
inline at::Tensor exact(const GemmCoded& g) {
    at::Tensor y = at::mm(fp64_of(g.x), fp64_of(g.w).t());
    if (g.u) y = y + at::mm(fp64_of(*g.u), fp64_of(*g.b).t());
    if (g.residual) y = y + fp64_of(*g.residual);
    if (g.bias) y = y + fp64_of(*g.bias);
    return y;
}

/// ||actual - expected|| / ||expected||; NaN when a value is not finite.
inline double relative_error(const at::Tensor& actual, const at::Tensor& expected) {
    return ((fp64_of(actual) - expected).norm() / expected.norm()).item<double>();
}

/// What the kernels take of it.
inline kernels::Fp8GemmCase plain(const GemmCoded& g) {
    kernels::Fp8GemmCase p;
    p.m = g.out.size(0), p.n = g.out.size(1), p.k = g.x.codes.size(1);
    p.x = g.x.codes.data_ptr(), p.sx = g.x.scales.data_ptr<float>();
    p.w = g.w.codes.data_ptr(), p.sw = g.w.scales.data_ptr<float>();
    p.y = g.out.data_ptr(), p.y_stride = g.out.stride(0);
    if (g.u) {
        p.rank = g.u->size(1);
        p.u = g.u->data_ptr(), p.u_stride = g.u->stride(0);
        p.b = g.b->data_ptr(), p.b_stride = g.b->stride(0);
    }
    if (g.residual) p.residual = g.residual->data_ptr(), p.residual_stride = g.residual->stride(0);
    if (g.bias) p.bias = g.bias->data_ptr();
    return p;
}

}  // namespace unsloth::ops
