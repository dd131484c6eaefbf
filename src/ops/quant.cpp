#include "unsloth/ops/quant.h"

#include <ATen/Parallel.h>

#include <cmath>
#include <vector>

#ifdef UNSLOTH_CUDA
#include <c10/cuda/CUDAGuard.h>

#include "kernels/nf4.h"
#include "kernels/quantised_rows.h"
#endif

#include "ops/checks.h"
#include "ops/cpu_rows.h"
#include "unsloth/core/error.h"
#include "unsloth/ops/dtype.h"
#include "unsloth/ops/profiler.h"
#include "unsloth/ops/upload.h"
#include "unsloth/spec/dynamic_map.h"
#include "unsloth/spec/int8.h"
#include "unsloth/spec/quant4_host.h"

namespace unsloth::ops {
namespace {

/// Or more. Tasks are of whole blocks, of an even number of elements: they share no byte of codes.
constexpr int64_t elements_per_task = 1 << 16;

void check_floating(const at::Tensor& tensor, const char* name) {
    const at::ScalarType type = tensor.scalar_type();
    UNSLOTH_CHECK(type == at::kFloat || type == at::kBFloat16 || type == at::kHalf, name, " is ", c10::toString(type),
                  ", expected float32, bfloat16 or float16");
}

void check_view(const spec::Quant4View& weight) {
    UNSLOTH_CHECK(weight.rows >= 0 && weight.cols >= 0, "a 4-bit weight of shape [", weight.rows, ", ", weight.cols,
                  "]");
    if (weight.elements() == 0) return;
    UNSLOTH_CHECK(weight.packed != nullptr && weight.code != nullptr, "a 4-bit weight without codes");
    UNSLOTH_CHECK(weight.nested() ? weight.nested_map != nullptr && weight.nested_absmax != nullptr
                                  : weight.absmax_f32 != nullptr || weight.exponents != nullptr,
                  "a 4-bit weight without block maxima");
    UNSLOTH_CHECK(weight.exponents == nullptr || weight.cols % spec::mxfp4_block == 0, "an MXFP4 weight of ",
                  weight.cols, " columns");
}

void check_dequantize(const Context& ctx, const spec::Quant4View& weight, const at::Tensor& out_NK) {
    check_view(weight);
    check_floating(out_NK, "out_NK");
    UNSLOTH_CHECK(out_NK.device() == ctx.device(), "out_NK is on ", out_NK.device(), ", the context on ", ctx.device());
    UNSLOTH_CHECK(out_NK.dim() == 2 && out_NK.size(0) == weight.rows && out_NK.size(1) == weight.cols, "out_NK is ",
                  out_NK.sizes(), ", the weight [", weight.rows, ", ", weight.cols, "]");
    if (weight.elements() == 0) return;
    UNSLOTH_CHECK(weight.cols == 1 || out_NK.stride(1) == 1, "out_NK's last dimension must be contiguous");
    UNSLOTH_CHECK(weight.rows == 1 || out_NK.stride(0) >= weight.cols, "rows of out_NK overlap: stride ",
                  out_NK.stride(0));
}

template <class T, class Convert>
void dequantize_on_cpu(const spec::Quant4View& weight, const at::Tensor& out_NK, Convert convert) {
    T* out = out_NK.data_ptr<T>();
    const int64_t cols = weight.cols, row_stride = out_NK.stride(0);
    const int64_t rows_per_task = std::max<int64_t>(1, elements_per_task / cols);
    at::parallel_for(0, weight.rows, rows_per_task, [&](int64_t begin, int64_t end) {
        if (row_stride == cols)
            return spec::dequantize_4bit_range(weight, begin * cols, end * cols, out + begin * cols, convert);
        for (int64_t row = begin; row < end; ++row)
            spec::dequantize_4bit_range(weight, row * cols, (row + 1) * cols, out + row * row_stride, convert);
    });
}

void dequantize_on_cpu(const spec::Quant4View& weight, const at::Tensor& out_NK) {
    switch (out_NK.scalar_type()) {
        case at::kFloat:
            return dequantize_on_cpu<float>(weight, out_NK, [](float x) { return x; });
        case at::kBFloat16:
            return dequantize_on_cpu<at::BFloat16>(weight, out_NK, [](float x) { return at::BFloat16(x); });
        default:
            return dequantize_on_cpu<at::Half>(weight, out_NK, [](float x) { return at::Half(x); });
    }
}

/// An empty result for a nested NF4 weight of w's shape, its tables filled.
Quant4Tensor make_nf4_like(const at::Tensor& w_NK) {
    const auto bytes = w_NK.options().dtype(at::kByte);
    const auto floats = w_NK.options().dtype(at::kFloat);
    const int64_t elements = w_NK.numel();
    const int64_t blocks = (elements + spec::quant4_block - 1) / spec::quant4_block;
    Quant4Tensor result;
    result.rows = w_NK.size(0);
    result.cols = w_NK.size(1);
    result.packed = at::empty({(elements + 1) / 2}, bytes);
    result.absmax = at::empty({blocks}, bytes);
    result.nested_absmax = at::empty({(blocks + spec::quant4_nested_block - 1) / spec::quant4_nested_block}, floats);
    at::Tensor tables = at::empty({16 + 256}, at::kFloat);
    const std::array<float, 256>& map = spec::dynamic_map_256(true);
    std::copy(std::begin(spec::nf4_code), std::end(spec::nf4_code), tables.data_ptr<float>());
    std::copy(map.begin(), map.end(), tables.data_ptr<float>() + 16);
    result.tables = tables.to(w_NK.device());
    return result;
}

void quantize_on_cpu(const at::Tensor& w_NK, Quant4Tensor& result) {
    const int64_t elements = w_NK.numel(), blocks = result.absmax.numel();
    at::Tensor absmax = at::empty({blocks}, at::kFloat);
    const at::Tensor flat = w_NK.view({-1});
    const int64_t blocks_per_task = elements_per_task / spec::quant4_block;
    at::parallel_for(0, blocks, blocks_per_task, [&](int64_t begin, int64_t end) {
        const int64_t first = begin * spec::quant4_block, last = std::min(elements, end * spec::quant4_block);
        const at::Tensor values = flat.slice(0, first, last).to(at::kFloat);
        spec::quantize_4bit_blocks(spec::Quant4Type::nf4, values.data_ptr<float>(), elements, begin, end,
                                   result.packed.data_ptr<uint8_t>(), absmax.data_ptr<float>());
    });
    result.nested_offset = spec::quantize_absmax(absmax.data_ptr<float>(), blocks, result.absmax.data_ptr<uint8_t>(),
                                                 result.nested_absmax.data_ptr<float>());
}

#ifdef UNSLOTH_CUDA
void quantize_on_cuda(Context& ctx, const at::Tensor& w_NK, Quant4Tensor& result) {
    const c10::cuda::CUDAGuard guard(ctx.device());
    const auto floats = w_NK.options().dtype(at::kFloat);
    const at::Tensor absmax = at::empty({result.absmax.numel()}, floats), offset = at::empty({1}, floats),
                     sums = at::empty({result.nested_absmax.numel()}, floats.dtype(at::kDouble));
    kernels::quantize_nf4({.w = w_NK.const_data_ptr(),
                           .type = dtype_of(w_NK),
                           .elements = w_NK.numel(),
                           .packed = result.packed.data_ptr<uint8_t>(),
                           .maxima = {.map = result.tables.data_ptr<float>() + 16,
                                      .absmax = absmax.data_ptr<float>(),
                                      .sums = sums.data_ptr<double>(),
                                      .codes = result.absmax.data_ptr<uint8_t>(),
                                      .nested_absmax = result.nested_absmax.data_ptr<float>(),
                                      .offset = offset.data_ptr<float>()}},
                          static_cast<cudaStream_t>(ctx.stream()));
    result.nested_offset = offset.item<float>();
}
#endif

/// The host's array as a tensor on `device`; on the CPU without a copy.
template <class T>
at::Tensor array_on(const T* data, int64_t count, at::ScalarType type, at::Device device) {
    // from_blob takes no const pointer; nothing writes through a weight's view
    return to_device(at::from_blob(const_cast<T*>(data), {count}, at::TensorOptions().dtype(type)), device);
}

/// out[i] = row index[i] (or i) of a table, on the CPU; read(row, values) makes a row in fp32.
template <class Read>
void rows_on_cpu(int64_t table_rows, const int32_t* index, const at::Tensor& out_nD, const Read& read) {
    const cpu::Rows to(out_nD);
    at::parallel_for(0, to.rows(), cpu::grain_size(to.columns()), [&](int64_t begin, int64_t end) {
        std::vector<float> values(static_cast<std::size_t>(to.columns()));
        for (int64_t i = begin; i < end; ++i) {
            const int64_t row = index == nullptr ? i : index[i];
            UNSLOTH_CHECK(row >= 0 && row < table_rows, "index ", row, " at place ", i, " is outside 0 .. ",
                          table_rows - 1);
            read(row, values.data());
            to.write(i, values.data());
        }
    });
}

void check_int8(const Context& ctx, const Int8Tensor& weight) {
    const bool on_host = ctx.is_cuda() && weight.codes.is_cpu();
    UNSLOTH_CHECK(weight.codes.dim() == 2 && weight.codes.scalar_type() == at::kChar && weight.codes.is_contiguous() &&
                      weight.maxima.scalar_type() == at::kFloat && weight.maxima.is_contiguous() &&
                      weight.maxima.numel() == weight.codes.size(0) && weight.maxima.device() == weight.codes.device(),
                  "an 8-bit weight of codes ", weight.codes.sizes(), " and maxima ", weight.maxima.sizes());
    UNSLOTH_CHECK(on_host ? weight.codes.is_pinned() : weight.codes.device() == ctx.device(),
                  "an 8-bit weight in memory that ", ctx.device(), " does not read");
}

void int8_rows(Context& ctx, const Int8Tensor& weight, const at::Tensor& index_n, const at::Tensor& out_nD) {
    check_int8(ctx, weight);
    const int64_t rows = index_n.defined() ? index_n.numel() : weight.codes.size(0), columns = weight.codes.size(1);
    check_compute_tensor(ctx, "out", out_nD, {rows, columns});
    if (index_n.defined()) check_contiguous(ctx, "index", index_n, {rows}, at::kInt);
    const int32_t* const index = index_n.defined() ? index_n.const_data_ptr<int32_t>() : nullptr;
    const int8_t* const codes = weight.codes.const_data_ptr<int8_t>();
    const float* const maxima = weight.maxima.const_data_ptr<float>();
    if (!ctx.is_cuda())
        return rows_on_cpu(weight.codes.size(0), index, out_nD, [&](int64_t row, float* values) {
            for (int64_t i = 0; i < columns; ++i)
                values[i] = static_cast<float>(codes[row * columns + i]) * maxima[row] * spec::int8_inverse_127;
        });
#ifdef UNSLOTH_CUDA
    kernels::expand_rows_int8({rows, columns, index, {out_nD.mutable_data_ptr(), out_nD.stride(0)}, dtype_of(out_nD)},
                              codes, maxima, static_cast<cudaStream_t>(ctx.stream()));
#endif
}

}  // namespace

void dequantize_int8(Context& ctx, const Int8Tensor& weight, const at::Tensor& out_NK) {
    const Region region(ctx, "dequantize");
    int8_rows(ctx, weight, {}, out_NK);
}

void round_mantissa(const at::Tensor& x_NK, int64_t bits) {
    constexpr int64_t stored = 7;
    UNSLOTH_CHECK(
        x_NK.dim() == 2 && x_NK.scalar_type() == at::kBFloat16 && x_NK.stride(1) == 1 && bits >= 1 && bits <= stored,
        "round_mantissa: ", bits, " bits of ", x_NK.scalar_type(), " ", x_NK.sizes());
    const int64_t dropped = stored - bits;
    if (dropped == 0) return;
    constexpr int64_t elements_at_a_time = 1 << 24;
    const int64_t step = std::max<int64_t>(1, elements_at_a_time / std::max<int64_t>(1, x_NK.size(1)));
    for (int64_t first = 0; first < x_NK.size(0); first += step) {
        // Sign, exponent and mantissa as one number: what is carried out of the mantissa belongs to the exponent.
        const at::Tensor x = x_NK.narrow(0, first, std::min(step, x_NK.size(0) - first)), n = x.view(at::kShort);
        const at::Tensor odd = n.__rshift__(dropped).bitwise_and_(1), finite = x.isfinite();
        const at::Tensor rounded =
            odd.add_(n).add_((int64_t{1} << (dropped - 1)) - 1).bitwise_and_(-(int64_t{1} << dropped));
        n.copy_(at::where(finite, rounded, n));
    }
}

void gather_rows(Context& ctx, const Int8Tensor& table_VD, const at::Tensor& index_n, const at::Tensor& out_nD) {
    const Region region(ctx, "gather_rows");
    int8_rows(ctx, table_VD, index_n, out_nD);
}

void gather_rows(Context& ctx, const spec::Quant4View& table_VD, const at::Tensor& index_n, const at::Tensor& out_nD) {
    const Region region(ctx, "gather_rows");
    check_view(table_VD);
    const int64_t rows = index_n.numel(), columns = table_VD.cols;
    check_contiguous(ctx, "index", index_n, {rows}, at::kInt);
    check_compute_tensor(ctx, "out", out_nD, {rows, columns});
    const int32_t* const index = index_n.const_data_ptr<int32_t>();
    if (!ctx.is_cuda())
        return rows_on_cpu(table_VD.rows, index, out_nD, [&](int64_t row, float* values) {
            spec::dequantize_4bit_range(table_VD, row * columns, (row + 1) * columns, values,
                                        [](float value) { return value; });
        });
#ifdef UNSLOTH_CUDA
    kernels::expand_rows_4bit({rows, columns, index, {out_nD.mutable_data_ptr(), out_nD.stride(0)}, dtype_of(out_nD)},
                              table_VD, static_cast<cudaStream_t>(ctx.stream()));
#endif
}

spec::Quant4View Quant4Tensor::view() const {
    spec::Quant4View weight;
    weight.rows = rows;
    weight.cols = cols;
    weight.packed = packed.data_ptr<uint8_t>();
    weight.code = tables.data_ptr<float>();
    if (absmax.scalar_type() == at::kFloat) {
        weight.absmax_f32 = absmax.data_ptr<float>();
        return weight;
    }
    if (is_mxfp4()) {
        weight.exponents = absmax.data_ptr<uint8_t>();
        return weight;
    }
    weight.absmax_u8 = absmax.data_ptr<uint8_t>();
    weight.nested_map = tables.data_ptr<float>() + 16;
    weight.nested_absmax = nested_absmax.data_ptr<float>();
    weight.nested_offset = nested_offset;
    return weight;
}

void dequantize_4bit(Context& ctx, const spec::Quant4View& weight, const at::Tensor& out_NK) {
    dequantize_4bit(ctx, std::span(&weight, 1), std::span(&out_NK, 1));
}

void dequantize_4bit(Context& ctx, std::span<const spec::Quant4View> weights, std::span<const at::Tensor> outs) {
    const Region region(ctx, "dequantize");
    UNSLOTH_CHECK(weights.size() == outs.size(), weights.size(), " weights, ", outs.size(), " outputs");
    for (std::size_t i = 0; i < weights.size(); ++i) {
        check_dequantize(ctx, weights[i], outs[i]);
        UNSLOTH_CHECK(outs[i].scalar_type() == outs[0].scalar_type(), "outputs of several dtypes");
    }
    if (!ctx.is_cuda()) {
        for (std::size_t i = 0; i < weights.size(); ++i)
            if (weights[i].elements() > 0) dequantize_on_cpu(weights[i], outs[i]);
        return;
    }
#ifdef UNSLOTH_CUDA
    std::vector<kernels::DequantizeArgs> args;
    args.reserve(weights.size());
    for (std::size_t i = 0; i < weights.size(); ++i) {
        const int64_t row_stride = weights[i].rows == 1 ? weights[i].cols : outs[i].stride(0);
        args.push_back(
            {.weight = weights[i], .out = outs[i].data_ptr(), .row_stride = row_stride, .out_type = dtype_of(outs[i])});
    }
    kernels::dequantize_4bit(args.data(), static_cast<int64_t>(args.size()), static_cast<cudaStream_t>(ctx.stream()));
#endif
}

Quant4Tensor upload(Context& ctx, const spec::Quant4View& host) {
    check_view(host);
    const int64_t blocks = host.blocks();
    Quant4Tensor result;
    result.rows = host.rows;
    result.cols = host.cols;
    result.packed = array_on(host.packed, (host.elements() + 1) / 2, at::kByte, ctx.device());
    at::Tensor tables = at::zeros({16 + 256}, at::kFloat);
    if (host.code != nullptr) std::copy(host.code, host.code + 16, tables.data_ptr<float>());
    if (host.nested()) {
        std::copy(host.nested_map, host.nested_map + 256, tables.data_ptr<float>() + 16);
        result.absmax = array_on(host.absmax_u8, blocks, at::kByte, ctx.device());
        const int64_t nested_blocks = (blocks + spec::quant4_nested_block - 1) / spec::quant4_nested_block;
        result.nested_absmax = array_on(host.nested_absmax, nested_blocks, at::kFloat, ctx.device());
        result.nested_offset = host.nested_offset;
    } else if (host.exponents != nullptr) {
        result.absmax = array_on(host.exponents, blocks, at::kByte, ctx.device());
    } else {
        result.absmax = array_on(host.absmax_f32, blocks, at::kFloat, ctx.device());
    }
    result.tables = tables.to(ctx.device());
    return result;
}

Quant4Tensor quantize_nf4(Context& ctx, const at::Tensor& w_NK) {
    check_floating(w_NK, "w_NK");
    UNSLOTH_CHECK(w_NK.device() == ctx.device(), "w_NK is on ", w_NK.device(), ", the context on ", ctx.device());
    UNSLOTH_CHECK(w_NK.dim() == 2 && w_NK.is_contiguous(), "w_NK must be a contiguous matrix, is ", w_NK.sizes());
    Quant4Tensor result = make_nf4_like(w_NK);
    if (ctx.is_cuda()) {
#ifdef UNSLOTH_CUDA
        quantize_on_cuda(ctx, w_NK, result);
#endif
    } else {
        quantize_on_cpu(w_NK, result);
    }
    if (!std::isfinite(result.nested_offset))
        throw Error("checkpoint.not-finite",
                    cat("a weight of shape [", result.rows, ", ", result.cols, "] holds a value that is not finite"),
                    "Check the base model's files.");
    return result;
}

}  // namespace unsloth::ops
