// Matrices of 8-bit codes for tests: random codes with scales, and what they stand for in fp64.
#pragma once

#include "kernels/coded_gemm.h"
#include "unsloth/ops/gemm_coded.h"

namespace unsloth::ops {

/// Codes of a normal sample whose largest value is near 448, and positive scales that differ from row to row.
/// Drawn on the CPU, so that a seed gives the same on every device.
inline CodedMatrix random_fp8(int64_t rows, int64_t cols, at::Device device, double scale) {
    const at::Tensor values = (at::randn({rows, cols}) * 100.0).clamp(-448.0, 448.0);
    const at::Tensor scales = (at::rand({rows}) + 0.5) * scale;
    return {values.to(at::kFloat8_e4m3fn).view(at::kByte).to(device), scales.to(device)};
}

/// The same of int8 codes; of a product's x with scales for blocks, among others that nobody may read.
inline CodedMatrix random_int8(int64_t rows, int64_t cols, at::Device device, double scale, bool of_x) {
    const at::Tensor codes = (at::randn({rows, cols}) * 45).round().clamp(-127, 127).to(at::kChar).to(device);
    if (!of_x) return {codes, ((at::rand({rows}) + 0.5) * scale).to(device)};
    const int64_t blocks = (cols + int8_block - 1) / int8_block, stride = (rows + 3) / 4 * 4 + 4;
    const at::Tensor scales = at::full({blocks, stride}, NAN);
    scales.narrow(1, 0, rows).copy_((at::rand({blocks, rows}) * 3).exp2() * scale);
    return {codes, scales.to(device).narrow(1, 0, rows)};
}

inline at::Tensor fp64_of(const CodedMatrix& matrix) {
    if (is_int8(matrix)) {
        const at::Tensor codes = matrix.codes.cpu().to(at::kDouble), scales = matrix.scales.cpu().to(at::kDouble);
        return codes * (scales.dim() == 1 ? scales.unsqueeze(1)
                                          : scales.t().repeat_interleave(int8_block, 1).narrow(1, 0, codes.size(1)));
    }
    const at::Tensor values = matrix.codes.cpu().view(at::kFloat8_e4m3fn).to(at::kFloat).to(at::kDouble);
    return values * matrix.scales.cpu().to(at::kDouble).unsqueeze(1);
}

inline at::Tensor fp64_of(const at::Tensor& x) {
    return x.cpu().to(at::kDouble);
}

/// gemm_coded without rounding.
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
inline kernels::CodedGemmCase plain(const GemmCoded& g) {
    kernels::CodedGemmCase p;
    p.m = g.out.size(0), p.n = g.out.size(1), p.k = g.x.codes.size(1);
    p.x = g.x.codes.data_ptr(), p.sx = g.x.scales.data_ptr<float>();
    if (is_int8(g.x)) p.format = kernels::CodeFormat::int8, p.sx_stride = g.x.scales.stride(0);
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
