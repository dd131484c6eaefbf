#include "unsloth/ops/rope.h"
#include "unsloth/ops/profiler.h"

#include <cmath>

#include "ops/checks.h"
#include "ops/cpu_rows.h"
#include "unsloth/ops/coded_rows.h"
#ifdef UNSLOTH_CUDA
#include "kernels/rope.h"
#endif

namespace unsloth::ops {

namespace {

void table_cpu(const at::Tensor& positions_T, const at::Tensor& inv_freq_p, float scaling, const at::Tensor& cos_Tp,
               const at::Tensor& sin_Tp, const at::Tensor& axis_p) {
    const int64_t pairs = inv_freq_p.size(0), axes = axis_p.defined() ? positions_T.size(1) : 1;
    const int32_t* const axis = axis_p.defined() ? axis_p.const_data_ptr<int32_t>() : nullptr;
    const int32_t* positions = positions_T.const_data_ptr<int32_t>();
    const float* inv_freq = inv_freq_p.const_data_ptr<float>();
    float* cos = cos_Tp.mutable_data_ptr<float>();
    float* sin = sin_Tp.mutable_data_ptr<float>();
    at::parallel_for(0, positions_T.size(0), cpu::grain_size(16 * pairs), [&](int64_t begin, int64_t end) {
        for (int64_t token = begin; token < end; ++token) {
            for (int64_t pair = 0; pair < pairs; ++pair) {
                const int32_t position = positions[token * axes + (axis != nullptr ? axis[pair] : 0)];
                const float angle = static_cast<float>(position) * inv_freq[pair];
                cos[token * pairs + pair] = std::cos(angle) * scaling;
                sin[token * pairs + pair] = std::sin(angle) * scaling;
            }
        }
    });
}

void apply_cpu(const at::Tensor& x_THd, const at::Tensor& cos_Tp, const at::Tensor& sin_Tp, bool backward) {
    const cpu::Rows rows(x_THd);
    const int64_t pairs = rows.columns() / 2;
    const float sign = backward ? -1.f : 1.f;
    at::parallel_for(0, rows.rows(), cpu::grain_size(rows.heads() * rows.columns()), [&](int64_t begin, int64_t end) {
        std::vector<float> scratch(static_cast<size_t>(2 * pairs)), rotated(static_cast<size_t>(2 * pairs));
        for (int64_t token = begin; token < end; ++token) {
            const float* cos = cos_Tp.const_data_ptr<float>() + token * pairs;
            const float* sin = sin_Tp.const_data_ptr<float>() + token * pairs;
            for (int64_t head = 0; head < rows.heads(); ++head) {
                const float* x = rows.read(token, head, scratch.data());
                for (int64_t pair = 0; pair < pairs; ++pair) {
                    rotated[pair] = x[pair] * cos[pair] - x[pairs + pair] * (sign * sin[pair]);
                    rotated[pairs + pair] = x[pairs + pair] * cos[pair] + x[pair] * (sign * sin[pair]);
                }
                rows.write(token, head, rotated.data());
            }
        }
    });
}

}  // namespace

void rope_table(Context& ctx, const at::Tensor& positions_T, const at::Tensor& inv_freq_p, double attention_scaling,
                const at::Tensor& cos_Tp, const at::Tensor& sin_Tp, const at::Tensor& axis_p) {
    const Region region(ctx, "rope_table");
    const int64_t tokens = positions_T.size(0);
    const int64_t pairs = inv_freq_p.numel();
    const int64_t axes = axis_p.defined() && positions_T.dim() == 2 ? positions_T.size(1) : 1;
    if (axis_p.defined()) {
        check_contiguous(ctx, "positions", positions_T, {tokens, axes}, at::kInt);
        check_contiguous(ctx, "axes", axis_p, {pairs}, at::kInt);
    } else {
        check_contiguous(ctx, "positions", positions_T, {tokens}, at::kInt);
    }
    check_contiguous(ctx, "inv_freq", inv_freq_p, {pairs}, at::kFloat);
    check_contiguous(ctx, "cos", cos_Tp, {tokens, pairs}, at::kFloat);
    check_contiguous(ctx, "sin", sin_Tp, {tokens, pairs}, at::kFloat);
    const auto scaling = static_cast<float>(attention_scaling);
    if (!ctx.is_cuda()) return table_cpu(positions_T, inv_freq_p, scaling, cos_Tp, sin_Tp, axis_p);
#ifdef UNSLOTH_CUDA
    kernels::RopeTable params;
    params.tokens = tokens;
    params.pairs = pairs;
    params.positions = positions_T.const_data_ptr<int32_t>();
    params.inv_freq = inv_freq_p.const_data_ptr<float>();
    params.scaling = scaling;
    params.axes = axes;
    if (axis_p.defined()) params.axis = axis_p.const_data_ptr<int32_t>();
    params.cos = cos_Tp.mutable_data_ptr<float>();
    params.sin = sin_Tp.mutable_data_ptr<float>();
    kernels::rope_table(params, static_cast<cudaStream_t>(ctx.stream()));
#endif
}

void rope_apply(Context& ctx, const at::Tensor& x_THd, const at::Tensor& cos_Tp, const at::Tensor& sin_Tp,
                bool backward) {
    const Region region(ctx, "rope");
    UNSLOTH_CHECK(x_THd.dim() == 3 && x_THd.size(2) % 2 == 0, "x must be [T, H, d] with an even d, found ",
                  x_THd.sizes());
    const int64_t pairs = x_THd.size(2) / 2;
    check_compute_tensor(ctx, "x", x_THd, x_THd.sizes());
    check_contiguous(ctx, "cos", cos_Tp, {x_THd.size(0), pairs}, at::kFloat);
    check_contiguous(ctx, "sin", sin_Tp, {x_THd.size(0), pairs}, at::kFloat);
    if (!ctx.is_cuda()) return apply_cpu(x_THd, cos_Tp, sin_Tp, backward);
#ifdef UNSLOTH_CUDA
    kernels::RopeApply params;
    params.tokens = x_THd.size(0);
    params.heads = x_THd.size(1);
    params.pairs = pairs;
    params.type = dtype_of(x_THd);
    params.x = {x_THd.mutable_data_ptr(), x_THd.stride(0), x_THd.stride(1)};
    params.cos = cos_Tp.const_data_ptr<float>();
    params.sin = sin_Tp.const_data_ptr<float>();
    params.backward = backward;
    kernels::rope_apply(params, static_cast<cudaStream_t>(ctx.stream()));
#endif
}

void rope_apply_rows(Context& ctx, const at::Tensor& x_TC, int64_t heads, const at::Tensor& cos_Tp,
                     const at::Tensor& sin_Tp, bool backward, const CodedMatrix& codes, bool codes_alone) {
    if (codes.codes.defined()) return rope_apply_coded(ctx, x_TC, heads, cos_Tp, sin_Tp, backward, codes, codes_alone);
    const int64_t head_dim = 2 * cos_Tp.size(1);
    const at::Tensor turned = x_TC.narrow(1, 0, heads * head_dim);
    rope_apply(ctx, turned.as_strided({turned.size(0), heads, head_dim}, {turned.stride(0), head_dim, 1}), cos_Tp,
               sin_Tp, backward);
}

}  // namespace unsloth::ops
