#include "unsloth/ops/vision.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "ops/checks.h"
#include "ops/cpu_rows.h"
#include "ops/glu_cpu.h"
#include "unsloth/ops/profiler.h"
#ifdef UNSLOTH_CUDA
#include "kernels/vision.h"
#endif

namespace unsloth::ops {

namespace {

void patch_values_cpu(const at::Tensor& bytes_PK, const at::Tensor& value_CB, int64_t frames,
                      const at::Tensor& out_PK) {
    const int64_t channels = value_CB.size(0), columns = bytes_PK.size(1), area = columns / channels;
    const cpu::Rows out(out_PK);
    const uint8_t* const bytes = bytes_PK.const_data_ptr<uint8_t>();
    const float* const values = value_CB.const_data_ptr<float>();
    at::parallel_for(0, bytes_PK.size(0), cpu::grain_size(frames * columns), [&](int64_t begin, int64_t end) {
        std::vector<float> row(static_cast<size_t>(frames * columns));
        for (int64_t patch = begin; patch < end; ++patch) {
            for (int64_t i = 0; i < frames * columns; ++i) {
                const int64_t channel = i / (frames * area);
                const uint8_t byte = bytes[patch * columns + channel * area + i % area];
                row[static_cast<size_t>(i)] = values[channel * 256 + byte];
            }
            out.write(patch, row.data());
        }
    });
}

void add_interpolated_cpu(const at::Tensor& table_NC, const at::Tensor& index_P4, const at::Tensor& share_P4,
                          const at::Tensor& x_PC) {
    const cpu::Rows table(table_NC), x(x_PC);
    const int32_t* const index = index_P4.const_data_ptr<int32_t>();
    const float* const share = share_P4.const_data_ptr<float>();
    const int64_t columns = x.columns();
    at::parallel_for(0, x.rows(), cpu::grain_size(8 * columns), [&](int64_t begin, int64_t end) {
        std::vector<float> scratch(static_cast<size_t>(columns)), sum(static_cast<size_t>(columns));
        for (int64_t patch = begin; patch < end; ++patch) {
            std::fill(sum.begin(), sum.end(), 0.0F);
            for (int64_t j = 4 * patch; j < 4 * patch + 4; ++j) {
                const float* const row = table.read(index[j], scratch.data());
                for (int64_t c = 0; c < columns; ++c) sum[static_cast<size_t>(c)] += share[j] * row[c];
            }
            const float* const own = x.read(patch, scratch.data());
            for (int64_t c = 0; c < columns; ++c) sum[static_cast<size_t>(c)] += own[c];
            x.write(patch, sum.data());
        }
    });
}

void layer_norm_cpu(const at::Tensor& x_PC, const at::Tensor& weight_C, const at::Tensor& bias_C, float eps,
                    const at::Tensor& y_PC) {
    const cpu::Rows x(x_PC), y(y_PC);
    const int64_t columns = x.columns();
    const float* const weight = weight_C.const_data_ptr<float>();
    const float* const bias = bias_C.const_data_ptr<float>();
    at::parallel_for(0, x.rows(), cpu::grain_size(4 * columns), [&](int64_t begin, int64_t end) {
        std::vector<float> scratch(static_cast<size_t>(columns)), out(static_cast<size_t>(columns));
        for (int64_t row = begin; row < end; ++row) {
            const float* const in = x.read(row, scratch.data());
            const float count = static_cast<float>(columns);
            const float mean = cpu::lane_sum(columns, [&](int64_t c) { return in[c]; }) / count;
            const float variance =
                cpu::lane_sum(columns, [&](int64_t c) { return (in[c] - mean) * (in[c] - mean); }) / count;
            const float rstd = 1.0F / std::sqrt(variance + eps);
            for (int64_t c = 0; c < columns; ++c)
                out[static_cast<size_t>(c)] = (in[c] - mean) * rstd * weight[c] + bias[c];
            y.write(row, out.data());
        }
    });
}

void layer_norm_backward_cpu(const at::Tensor& dy_PC, const at::Tensor& x_PC, const at::Tensor& weight_C, float eps,
                             const at::Tensor& dx_PC) {
    const cpu::Rows dy(dy_PC), x(x_PC), dx(dx_PC);
    const int64_t columns = x.columns();
    const float* const weight = weight_C.const_data_ptr<float>();
    at::parallel_for(0, x.rows(), cpu::grain_size(8 * columns), [&](int64_t begin, int64_t end) {
        std::vector<float> of_x(static_cast<size_t>(columns)), of_dy(of_x.size()), out(of_x.size());
        const float count = static_cast<float>(columns);
        for (int64_t row = begin; row < end; ++row) {
            const float* const in = x.read(row, of_x.data());
            const float* const gradient = dy.read(row, of_dy.data());
            const auto mean_of = [&](const auto& term) { return cpu::lane_sum(columns, term) / count; };
            const float mean = mean_of([&](int64_t c) { return in[c]; });
            const float variance = mean_of([&](int64_t c) { return (in[c] - mean) * (in[c] - mean); });
            const float rstd = 1.0F / std::sqrt(variance + eps);
            const float slope = mean_of([&](int64_t c) { return gradient[c] * weight[c]; });
            const float along =
                mean_of([&](int64_t c) { return gradient[c] * weight[c] * (in[c] - mean); }) * rstd * rstd;
            dx.read_into(row, 0, columns, out.data());
            for (int64_t c = 0; c < columns; ++c)
                out[static_cast<size_t>(c)] += rstd * (gradient[c] * weight[c] - slope - (in[c] - mean) * along);
            dx.write(row, out.data());
        }
    });
}

constexpr auto root_half = static_cast<float>(1.0 / std::numbers::sqrt2);

float gelu_of(float v, Gelu form) {
    const float inner = form == Gelu::tanh ? cpu::GeluTanhGlu::inner(v) : std::erf(v * root_half);
    return 0.5F * v * (1.0F + inner);
}

float gelu_slope(float v, Gelu form) {
    if (form == Gelu::tanh) return cpu::GeluTanhGlu::gradients(1.0F, v, 1.0F).gate;
    constexpr auto density = static_cast<float>(std::numbers::inv_sqrtpi) * root_half;
    return 0.5F * (1.0F + std::erf(v * root_half)) + v * density * std::exp(-0.5F * v * v);
}

void gelu_backward_cpu(const at::Tensor& x_PF, Gelu form, const at::Tensor& dy_PF) {
    const cpu::Rows x(x_PF), dy(dy_PF);
    const int64_t columns = x.columns();
    at::parallel_for(0, x.rows(), cpu::grain_size(8 * columns), [&](int64_t begin, int64_t end) {
        std::vector<float> scratch(static_cast<size_t>(columns)), out(scratch.size());
        for (int64_t row = begin; row < end; ++row) {
            const float* const in = x.read(row, scratch.data());
            dy.read_into(row, 0, columns, out.data());
            for (int64_t c = 0; c < columns; ++c) out[static_cast<size_t>(c)] *= gelu_slope(in[c], form);
            dy.write(row, out.data());
        }
    });
}

void gelu_cpu(const at::Tensor& x_PF, Gelu form) {
    const cpu::Rows rows(x_PF);
    const int64_t columns = rows.columns();
    at::parallel_for(0, rows.rows(), cpu::grain_size(8 * columns), [&](int64_t begin, int64_t end) {
        std::vector<float> scratch(static_cast<size_t>(columns)), out(static_cast<size_t>(columns));
        for (int64_t row = begin; row < end; ++row) {
            const float* const in = rows.read(row, scratch.data());
            for (int64_t c = 0; c < columns; ++c) out[static_cast<size_t>(c)] = gelu_of(in[c], form);
            rows.write(row, out.data());
        }
    });
}

void check_rows(const Context& ctx, const char* name, const at::Tensor& x_PC) {
    UNSLOTH_CHECK(x_PC.dim() == 2, name, " has ", x_PC.dim(), " dimensions, expected 2");
    check_compute_tensor(ctx, name, x_PC, x_PC.sizes());
}

}  // namespace

void patch_values(Context& ctx, const at::Tensor& bytes_PK, const at::Tensor& value_CB, int64_t frames,
                  const at::Tensor& out_PK) {
    const Region region(ctx, "patch_values");
    const int64_t patches = bytes_PK.size(0), channels = value_CB.size(0), columns = bytes_PK.size(1);
    UNSLOTH_CHECK(columns % channels == 0, columns, " bytes of ", channels, " channels");
    check_contiguous(ctx, "bytes", bytes_PK, {patches, columns}, at::kByte);
    check_contiguous(ctx, "values", value_CB, {channels, 256}, at::kFloat);
    check_contiguous(ctx, "out", out_PK, {patches, frames * columns}, out_PK.scalar_type());
    check_rows(ctx, "out", out_PK);
    if (!ctx.is_cuda()) return patch_values_cpu(bytes_PK, value_CB, frames, out_PK);
#ifdef UNSLOTH_CUDA
    kernels::patch_values(
        {patches, channels, frames, columns / channels, dtype_of(out_PK), bytes_PK.const_data_ptr<uint8_t>(),
         value_CB.const_data_ptr<float>(), out_PK.mutable_data_ptr()},
        static_cast<cudaStream_t>(ctx.stream()));
#endif
}

void add_interpolated(Context& ctx, const at::Tensor& table_NC, const at::Tensor& index_P4, const at::Tensor& share_P4,
                      const at::Tensor& x_PC) {
    const Region region(ctx, "positions");
    check_rows(ctx, "x", x_PC);
    const int64_t patches = x_PC.size(0), columns = x_PC.size(1);
    check_contiguous(ctx, "table", table_NC, {table_NC.size(0), columns}, x_PC.scalar_type());
    check_contiguous(ctx, "index", index_P4, {patches, 4}, at::kInt);
    check_contiguous(ctx, "share", share_P4, {patches, 4}, at::kFloat);
    if (!ctx.is_cuda()) return add_interpolated_cpu(table_NC, index_P4, share_P4, x_PC);
#ifdef UNSLOTH_CUDA
    kernels::add_interpolated({patches,
                               columns,
                               dtype_of(x_PC),
                               table_NC.const_data_ptr(),
                               index_P4.const_data_ptr<int32_t>(),
                               share_P4.const_data_ptr<float>(),
                               {x_PC.mutable_data_ptr(), x_PC.stride(0)}},
                              static_cast<cudaStream_t>(ctx.stream()));
#endif
}

void layer_norm_forward(Context& ctx, const at::Tensor& x_PC, const at::Tensor& weight_C, const at::Tensor& bias_C,
                        double eps, const at::Tensor& y_PC) {
    const Region region(ctx, "layer_norm");
    check_rows(ctx, "x", x_PC);
    check_tensor(ctx, "y", y_PC, x_PC.sizes(), x_PC.scalar_type());
    check_contiguous(ctx, "weight", weight_C, {x_PC.size(1)}, at::kFloat);
    check_contiguous(ctx, "bias", bias_C, {x_PC.size(1)}, at::kFloat);
    if (!ctx.is_cuda()) return layer_norm_cpu(x_PC, weight_C, bias_C, static_cast<float>(eps), y_PC);
#ifdef UNSLOTH_CUDA
    kernels::layer_norm_forward({x_PC.size(0),
                                 x_PC.size(1),
                                 dtype_of(x_PC),
                                 {x_PC.const_data_ptr(), x_PC.stride(0)},
                                 weight_C.const_data_ptr<float>(),
                                 bias_C.const_data_ptr<float>(),
                                 static_cast<float>(eps),
                                 {y_PC.mutable_data_ptr(), y_PC.stride(0)}},
                                static_cast<cudaStream_t>(ctx.stream()));
#endif
}

void layer_norm_backward(Context& ctx, const at::Tensor& dy_PC, const at::Tensor& x_PC, const at::Tensor& weight_C,
                         double eps, const at::Tensor& dx_PC) {
    const Region region(ctx, "layer_norm backward");
    check_rows(ctx, "x", x_PC);
    check_tensor(ctx, "dy", dy_PC, x_PC.sizes(), x_PC.scalar_type());
    check_tensor(ctx, "dx", dx_PC, x_PC.sizes(), x_PC.scalar_type());
    check_contiguous(ctx, "weight", weight_C, {x_PC.size(1)}, at::kFloat);
    if (!ctx.is_cuda()) return layer_norm_backward_cpu(dy_PC, x_PC, weight_C, static_cast<float>(eps), dx_PC);
#ifdef UNSLOTH_CUDA
    kernels::layer_norm_backward({x_PC.size(0),
                                  x_PC.size(1),
                                  dtype_of(x_PC),
                                  {dy_PC.const_data_ptr(), dy_PC.stride(0)},
                                  {x_PC.const_data_ptr(), x_PC.stride(0)},
                                  weight_C.const_data_ptr<float>(),
                                  static_cast<float>(eps),
                                  {dx_PC.mutable_data_ptr(), dx_PC.stride(0)}},
                                 static_cast<cudaStream_t>(ctx.stream()));
#endif
}

void gelu_backward(Context& ctx, const at::Tensor& x_PF, Gelu form, const at::Tensor& dy_PF) {
    const Region region(ctx, "gelu backward");
    check_rows(ctx, "x", x_PF);
    check_tensor(ctx, "dy", dy_PF, x_PF.sizes(), x_PF.scalar_type());
    if (!ctx.is_cuda()) return gelu_backward_cpu(x_PF, form, dy_PF);
#ifdef UNSLOTH_CUDA
    kernels::gelu_backward({x_PF.size(0),
                            x_PF.size(1),
                            dtype_of(x_PF),
                            {x_PF.const_data_ptr(), x_PF.stride(0)},
                            {dy_PF.mutable_data_ptr(), dy_PF.stride(0)},
                            form == Gelu::tanh},
                           static_cast<cudaStream_t>(ctx.stream()));
#endif
}

void gelu(Context& ctx, const at::Tensor& x_PF, Gelu form) {
    const Region region(ctx, "gelu");
    check_rows(ctx, "x", x_PF);
    if (!ctx.is_cuda()) return gelu_cpu(x_PF, form);
#ifdef UNSLOTH_CUDA
    kernels::gelu(
        {x_PF.size(0), x_PF.size(1), dtype_of(x_PF), {x_PF.mutable_data_ptr(), x_PF.stride(0)}, form == Gelu::tanh},
        static_cast<cudaStream_t>(ctx.stream()));
#endif
}

}  // namespace unsloth::ops
