#include "unsloth/ops/coded_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/checks.h"
#include "ops/code_scale.h"
#include "ops/cpu_rows.h"
#include "ops/int8_codes.h"
#include "unsloth/ops/device.h"
#include "unsloth/ops/norm.h"
#include "unsloth/ops/profiler.h"
#include "unsloth/ops/rope.h"
#include "unsloth/ops/swiglu.h"
#ifdef UNSLOTH_CUDA
#include <cuda_runtime_api.h>

#include "kernels/fp8_rows.h"
#include "kernels/int8_rows.h"
#include "ops/kernel_arguments.h"
#endif

namespace unsloth::ops {
namespace {

constexpr int64_t scale_step = 4;  // rows' scales of a block begin at multiples of 16 bytes

int64_t scale_stride(int64_t rows) {
    return (rows + scale_step - 1) / scale_step * scale_step;
}

void quantize_rows_cpu(const at::Tensor& x_TC, const CodedMatrix& out) {
    if (is_int8(out)) return quantize_int8_cpu(x_TC, out);
    const cpu::Rows x(x_TC);
    const int64_t columns = x.columns();
    auto* const codes = static_cast<uint8_t*>(out.codes.mutable_data_ptr());
    float* const scales = out.scales.mutable_data_ptr<float>();
    at::parallel_for(0, x.rows(), cpu::grain_size(columns), [&](int64_t begin, int64_t end) {
        std::vector<float> scratch(static_cast<std::size_t>(columns));
        for (int64_t row = begin; row < end; ++row) {
            const float* const values = x.read(row, scratch.data());
            const float scale = code_scale(largest_magnitude(values, columns), 448.0F), inverse = 1.0F / scale;
            scales[row] = scale;
            for (int64_t c = 0; c < columns; ++c) codes[row * columns + c] = c10::Float8_e4m3fn(values[c] * inverse).x;
        }
    });
}

void quantize_weight(const at::Tensor& w_NK, const CodedMatrix& out) {
    UNSLOTH_CHECK(out.factors.defined(), "int8 codes of a weight come with factors");
    quantize_int8_weight(w_NK, out);
}

void dequantize_rows_cpu(const CodedMatrix& x, const at::Tensor& out_TC) {
    const cpu::Rows out(out_TC);
    const int64_t columns = out.columns();
    const auto* const codes = static_cast<const uint8_t*>(x.codes.const_data_ptr());
    const float* const scales = x.scales.const_data_ptr<float>();
    at::parallel_for(0, out.rows(), cpu::grain_size(columns), [&](int64_t begin, int64_t end) {
        std::vector<float> values(static_cast<std::size_t>(columns));
        for (int64_t row = begin; row < end; ++row) {
            for (int64_t c = 0; c < columns; ++c)
                values[static_cast<std::size_t>(c)] =
                    scales[row] *
                    static_cast<float>(c10::Float8_e4m3fn(codes[row * columns + c], c10::Float8_e4m3fn::from_bits()));
            out.write(row, values.data());
        }
    });
}

#ifdef UNSLOTH_CUDA

static_assert(kernels::int8_block == int8_block);

/// Where the kernels write, of the one kind or the other.
template <class OfFp8, class OfInt8>
void with_rows(const CodedMatrix& out, const OfFp8& of_fp8, const OfInt8& of_int8) {
    const auto aligned = [](const at::Tensor& t) {
        return !t.defined() || reinterpret_cast<std::uintptr_t>(t.const_data_ptr()) % 16 == 0;
    };
    UNSLOTH_CHECK(aligned(out.codes) && aligned(out.factors), "codes and factors must be aligned to 16 bytes");
    auto* const codes = out.codes.mutable_data_ptr();
    float* const scales = out.scales.mutable_data_ptr<float>();
    UNSLOTH_CHECK(!is_int8(out) || out.scales.dim() == 2, "int8 codes of rows have scales for blocks");
    if (is_int8(out))
        of_int8(kernels::Int8Rows{static_cast<int8_t*>(codes), scales, out.scales.stride(0),
                                  out.factors.defined() ? out.factors.const_data_ptr() : nullptr});
    else
        of_fp8(kernels::Fp8Rows{static_cast<uint8_t*>(codes), scales});
}

/// Rows that the kernels can take, `columns` of which make a row of codes.
void check_rows(const char* name, const at::Tensor& x, int64_t columns, int64_t longest = kernels::fp8_longest_row) {
    UNSLOTH_CHECK(x.scalar_type() == at::kBFloat16 && kernels::fp8_rows_supported(source_of(x), columns, longest), name,
                  ": codes are made of bf16, of a multiple of 8 columns up to ", longest,
                  ", with 16-byte aligned starts: found ", c10::toString(x.scalar_type()), ", ", columns,
                  " columns, row stride ", x.stride(0));
}

#endif

}  // namespace

bool coded_available(at::Device device, spec::Codes codes) {
    if (device.is_cpu() || is_absent(device)) return true;  // a caller that plans for an absent GPU knows the card
#ifdef UNSLOTH_CUDA
    int major = 0, minor = 0;
    return cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device.index()) == cudaSuccess &&
           cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device.index()) == cudaSuccess &&
           coded_serves(codes, major, minor);
#else
    return false;
#endif
}

int64_t coded_longest_row(at::Device device) {
#ifdef UNSLOTH_CUDA
    if (device.is_cuda()) return kernels::fp8_longest_row;
#endif
    UNSLOTH_CHECK(device.is_cpu() || is_absent(device), "no kernels for ", device.str());
    return std::numeric_limits<int64_t>::max();
}

at::ScalarType type_of(spec::Codes codes) {
    return codes == spec::Codes::int8 ? at::kChar : at::kFloat8_e4m3fn;
}

int64_t scales_of(spec::Codes codes, int64_t rows, int64_t columns) {
    return codes == spec::Codes::int8 ? int8_blocks(columns) * scale_stride(rows) : rows;
}

CodedMatrix coded_view(const CodedMatrix& scratch, int64_t rows, int64_t columns, at::ScalarType type) {
    const at::Tensor codes = scratch.codes.view({-1}).narrow(0, 0, rows * columns).view({rows, columns}).view(type);
    if (type != at::kChar) return {codes, scratch.scales.narrow(0, 0, rows)};
    const int64_t blocks = int8_blocks(columns), stride = scale_stride(rows);
    return {codes, scratch.scales.narrow(0, 0, blocks * stride).view({blocks, stride}).narrow(1, 0, rows)};
}

CodedMatrix codes_for(const CodedMatrix& w, const CodedMatrix& scratch, int64_t rows, int64_t columns) {
    CodedMatrix x = coded_view(scratch, rows, columns, w.codes.scalar_type());
    x.factors = w.factors;
    return x;
}

void quantize_rows(Context& ctx, const at::Tensor& x_TC, const CodedMatrix& out_TC) {
    if (!out_TC.codes.defined()) return;
    const Region region(ctx, is_int8(out_TC) ? "quantize int8" : "quantize fp8");
    check_matrix(ctx, "x", x_TC);
    check_coded(ctx, "codes", out_TC, x_TC.size(0), x_TC.size(1));
    if (is_int8(out_TC) && out_TC.scales.dim() == 1) return quantize_weight(x_TC, out_TC);
    if (!ctx.is_cuda()) return quantize_rows_cpu(x_TC, out_TC);
#ifdef UNSLOTH_CUDA
    const int64_t rows = x_TC.size(0), columns = x_TC.size(1);
    check_rows("x", x_TC, columns, is_int8(out_TC) ? kernels::fp8_longest_row : kernels::fp8_longest_read_row);
    with_rows(
        out_TC,
        [&](const auto& out) { kernels::quantize_rows_fp8(source_of(x_TC), rows, columns, out, stream_of(ctx)); },
        [&](const auto& out) { kernels::quantize_rows_int8(source_of(x_TC), rows, columns, out, stream_of(ctx)); });
#endif
}

void dequantize_rows(Context& ctx, const CodedMatrix& x_TC, const at::Tensor& out_TC) {
    const Region region(ctx, "dequantize fp8");
    check_matrix(ctx, "out", out_TC);
    check_coded(ctx, "codes", x_TC, out_TC.size(0), out_TC.size(1));
    UNSLOTH_CHECK(!is_int8(x_TC), "rows of int8 codes are not dequantized");
    if (!ctx.is_cuda()) return dequantize_rows_cpu(x_TC, out_TC);
#ifdef UNSLOTH_CUDA
    check_rows("out", out_TC, out_TC.size(1), kernels::fp8_longest_read_row);
    kernels::dequantize_rows_fp8(
        {static_cast<uint8_t*>(x_TC.codes.mutable_data_ptr()), x_TC.scales.mutable_data_ptr<float>()}, out_TC.size(0),
        out_TC.size(1), target_of(out_TC), stream_of(ctx));
#endif
}

void quantize_columns(Context& ctx, const at::Tensor& w_NK, const CodedMatrix& out_KN) {
    check_matrix(ctx, "w", w_NK);
    check_coded(ctx, "codes", out_KN, w_NK.size(1), w_NK.size(0));
    if (is_int8(out_KN)) return quantize_weight(w_NK.t(), out_KN);
    if (!ctx.is_cuda()) return quantize_rows_cpu(w_NK.t().contiguous(), out_KN);
#ifdef UNSLOTH_CUDA
    UNSLOTH_CHECK(w_NK.scalar_type() == at::kBFloat16 &&
                      kernels::fp8_columns_supported(source_of(w_NK), w_NK.size(0), w_NK.size(1)),
                  "fp8 weights are made of bf16, N a multiple of 4 and K of 8, with 16-byte aligned rows: found ",
                  c10::toString(w_NK.scalar_type()), " ", w_NK.sizes(), ", row stride ", w_NK.stride(0));
    kernels::quantize_columns_fp8(
        source_of(w_NK), w_NK.size(0), w_NK.size(1),
        {static_cast<uint8_t*>(out_KN.codes.mutable_data_ptr()), out_KN.scales.mutable_data_ptr<float>()},
        stream_of(ctx));
#endif
}

void rms_norm_forward_coded(Context& ctx, const at::Tensor& x_TD, const at::Tensor& weight_D, double eps,
                            const at::Tensor& y_TD, const at::Tensor& rstd_T, const CodedMatrix& out_TD, Site site) {
    const Region region(ctx, is_int8(out_TD) ? "rms_norm int8" : "rms_norm fp8");
    check_matrix(ctx, "x", x_TD);
    check_coded(ctx, "codes", out_TD, x_TD.size(0), x_TD.size(1));
    if (!ctx.is_cuda()) {
        const at::Tensor y = y_TD.defined() ? y_TD : at::empty(x_TD.sizes(), x_TD.options());
        rms_norm_forward(ctx, x_TD, weight_D, eps, y, rstd_T, site);
        return quantize_rows_cpu(y, out_TD);
    }
#ifdef UNSLOTH_CUDA
    check_rows("x", x_TD, x_TD.size(1));
    if (y_TD.defined()) {
        check_tensor(ctx, "y", y_TD, x_TD.sizes(), x_TD.scalar_type());
        check_rows("y", y_TD, x_TD.size(1));
    }
    const bool fp32_weight = weight_D.scalar_type() == at::kFloat;
    check_contiguous(ctx, "weight", weight_D, {x_TD.size(1)}, fp32_weight ? at::kFloat : x_TD.scalar_type());
    UNSLOTH_CHECK(reinterpret_cast<std::uintptr_t>(weight_D.const_data_ptr()) % 16 == 0,
                  "weight must be aligned to 16 bytes");
    check_contiguous(ctx, "rstd", rstd_T, {x_TD.size(0)}, at::kFloat);
    kernels::NormForward params;
    params.shape = {x_TD.size(0), 1, x_TD.size(1), spec::DType::bf16, dtype_of(weight_D)};
    params.x = {x_TD.const_data_ptr(), x_TD.stride(0), 0};
    params.weight = weight_D.const_data_ptr();
    params.eps = static_cast<float>(eps);
    if (y_TD.defined()) params.y = {y_TD.mutable_data_ptr(), y_TD.stride(0), 0};
    params.rstd = rstd_T.mutable_data_ptr<float>();
    if (site.code != spec::all_finite && ctx.outcome != nullptr)
        params.site = {&ctx.outcome->first_bad_site, site.code};
    with_rows(
        out_TD, [&](const auto& out) { kernels::norm_forward_fp8(params, out, stream_of(ctx)); },
        [&](const auto& out) { kernels::norm_forward_int8(params, out, stream_of(ctx)); });
#endif
}

void swiglu_forward_coded(Context& ctx, const at::Tensor& gu_T2F, const at::Tensor& act_TF, const CodedMatrix& out_TF,
                          spec::GateActivation activation) {
    const Region region(ctx, is_int8(out_TF) ? "swiglu int8" : "swiglu fp8");
    check_matrix(ctx, "gate_up", gu_T2F, -1, 2 * out_TF.codes.size(1));
    check_coded(ctx, "codes", out_TF, gu_T2F.size(0), gu_T2F.size(1) / 2);
    const int64_t tokens = gu_T2F.size(0), columns = gu_T2F.size(1) / 2;
    if (!ctx.is_cuda()) {
        const at::Tensor act = act_TF.defined() ? act_TF : at::empty({tokens, columns}, gu_T2F.options());
        swiglu_forward(ctx, gu_T2F, act, {}, activation);
        return quantize_rows_cpu(act, out_TF);
    }
#ifdef UNSLOTH_CUDA
    check_rows("gate_up", gu_T2F, columns);
    kernels::SwigluForward params;
    params.activation = activation;
    params.tokens = tokens;
    params.columns = columns;
    params.gate_up = source_of(gu_T2F);
    if (act_TF.defined()) {
        check_tensor(ctx, "act", act_TF, {tokens, columns}, gu_T2F.scalar_type());
        check_rows("act", act_TF, columns);
        params.act = target_of(act_TF);
    }
    with_rows(
        out_TF, [&](const auto& out) { kernels::swiglu_forward_fp8(params, out, stream_of(ctx)); },
        [&](const auto& out) { kernels::swiglu_forward_int8(params, out, stream_of(ctx)); });
#endif
}

void swiglu_backward_coded(Context& ctx, const at::Tensor& dact_TF, const at::Tensor& gu_T2F, const at::Tensor& act_TF,
                           const CodedMatrix& out_T2F, bool codes_alone, spec::GateActivation activation) {
    const Region region(ctx, is_int8(out_T2F) ? "swiglu_backward int8" : "swiglu_backward fp8");
    check_matrix(ctx, "dact", dact_TF);
    const int64_t tokens = dact_TF.size(0), columns = dact_TF.size(1);
    check_tensor(ctx, "gate_up", gu_T2F, {tokens, 2 * columns}, dact_TF.scalar_type());
    check_coded(ctx, "codes", out_T2F, tokens, 2 * columns);
    // A block of int8 codes would span gate and up.
    if (!ctx.is_cuda() || (is_int8(out_T2F) && columns % int8_block != 0)) {
        swiglu_backward(ctx, dact_TF, gu_T2F, act_TF, {}, false, activation);
        return quantize_rows(ctx, gu_T2F, out_T2F);
    }
#ifdef UNSLOTH_CUDA
    check_rows("dact", dact_TF, columns);
    check_rows("gate_up", gu_T2F, 2 * columns);
    kernels::SwigluBackward params;
    params.activation = activation;
    params.tokens = tokens;
    params.columns = columns;
    params.dact = source_of(dact_TF);
    params.gate_up = target_of(gu_T2F);
    if (act_TF.defined()) {
        check_tensor(ctx, "act", act_TF, {tokens, columns}, dact_TF.scalar_type());
        check_rows("act", act_TF, columns);
        params.act = target_of(act_TF);
    }
    with_rows(
        out_T2F, [&](const auto& out) { kernels::swiglu_backward_fp8(params, codes_alone, out, stream_of(ctx)); },
        [&](const auto& out) { kernels::swiglu_backward_int8(params, codes_alone, out, stream_of(ctx)); });
#endif
}

void rope_apply_coded(Context& ctx, const at::Tensor& x_TC, int64_t heads, const at::Tensor& cos_Tp,
                      const at::Tensor& sin_Tp, bool backward, const CodedMatrix& out_TC, bool codes_alone) {
    const Region region(ctx, is_int8(out_TC) ? "rope int8" : "rope fp8");
    check_matrix(ctx, "x", x_TC);
    check_coded(ctx, "codes", out_TC, x_TC.size(0), x_TC.size(1));
    UNSLOTH_CHECK(cos_Tp.dim() == 2, "cos has ", cos_Tp.dim(), " dimensions, expected [T, d / 2]");
    const int64_t tokens = x_TC.size(0), pairs = cos_Tp.size(1), head_dim = 2 * pairs;
    UNSLOTH_CHECK(pairs > 0 && x_TC.size(1) % head_dim == 0 && heads >= 0 && heads * head_dim <= x_TC.size(1), "x has ",
                  x_TC.size(1), " columns, expected heads of ", head_dim, ", at least ", heads);
    // A block of int8 codes would end inside a head.
    if (!ctx.is_cuda() || (is_int8(out_TC) && int8_block % head_dim != 0)) {
        const at::Tensor turned = x_TC.as_strided({tokens, heads, head_dim}, {x_TC.stride(0), head_dim, 1});
        rope_apply(ctx, turned, cos_Tp, sin_Tp, backward);
        return quantize_rows(ctx, x_TC, out_TC);
    }
#ifdef UNSLOTH_CUDA
    check_contiguous(ctx, "cos", cos_Tp, {tokens, pairs}, at::kFloat);
    check_contiguous(ctx, "sin", sin_Tp, {tokens, pairs}, at::kFloat);
    check_rows("x", x_TC, x_TC.size(1));
    UNSLOTH_CHECK(pairs % 8 == 0 && reinterpret_cast<std::uintptr_t>(cos_Tp.const_data_ptr()) % 16 == 0 &&
                      reinterpret_cast<std::uintptr_t>(sin_Tp.const_data_ptr()) % 16 == 0,
                  "heads of ", head_dim, ": a multiple of 16 is wanted, and tables aligned to 16 bytes");
    kernels::RopeApply params;
    params.tokens = tokens;
    params.heads = heads;
    params.pairs = pairs;
    params.x = {x_TC.mutable_data_ptr(), x_TC.stride(0), head_dim};
    params.cos = cos_Tp.const_data_ptr<float>();
    params.sin = sin_Tp.const_data_ptr<float>();
    params.backward = backward;
    with_rows(
        out_TC,
        [&](const auto& out) { kernels::rope_apply_fp8(params, x_TC.size(1), codes_alone, out, stream_of(ctx)); },
        [&](const auto& out) { kernels::rope_apply_int8(params, x_TC.size(1), codes_alone, out, stream_of(ctx)); });
#endif
}

}  // namespace unsloth::ops
