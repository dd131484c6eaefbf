#include "unsloth/ops/norm.h"
#include "unsloth/ops/device.h"
#include "unsloth/ops/profiler.h"

#include <cmath>
#include <limits>

#include "ops/checks.h"
#include "ops/cpu_rows.h"
#include "unsloth/ops/coded_rows.h"
#ifdef UNSLOTH_CUDA
#include "kernels/norm.h"
#endif

namespace unsloth::ops {

namespace {

/// The arguments of both norms in one form: [T, D] rows are [T, H, d] rows with one head.
struct Forward {
    at::Tensor x, weight, y, rstd;
    double eps;
    Site site;
};

struct Backward {
    at::Tensor dy, x, weight, rstd, dx, dweight;
    bool accumulate;
    Site site;
    at::Tensor y;  ///< the forward's output, rebuilt: may be undefined, or dy
};

void check_common(const Context& ctx, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& rstd,
                  const Site& site) {
    check_compute_tensor(ctx, "x", x, x.sizes());
    UNSLOTH_CHECK(weight.defined() && (weight.scalar_type() == at::kFloat || weight.scalar_type() == x.scalar_type()),
                  "weight must be fp32 or of x's dtype");
    check_contiguous(ctx, "weight", weight, {x.size(-1)}, weight.scalar_type());
    check_contiguous(ctx, "rstd", rstd, x.sizes().slice(0, x.dim() - 1), at::kFloat);
    UNSLOTH_CHECK(x.numel() / std::max<int64_t>(x.size(-1), 1) <= std::numeric_limits<int32_t>::max(), "too many rows");
    UNSLOTH_CHECK(site.code == spec::all_finite || ctx.outcome != nullptr,
                  "a site is to be reported, but ctx.outcome is not set");
}

void check(const Context& ctx, const Forward& args) {
    check_common(ctx, args.x, args.weight, args.rstd, args.site);
    check_tensor(ctx, "y", args.y, args.x.sizes(), args.x.scalar_type());
}

void check(const Context& ctx, const Backward& args) {
    check_common(ctx, args.x, args.weight, args.rstd, args.site);
    check_tensor(ctx, "dy", args.dy, args.x.sizes(), args.x.scalar_type());
    check_tensor(ctx, "dx", args.dx, args.x.sizes(), args.x.scalar_type());
    if (args.y.defined()) check_tensor(ctx, "y", args.y, args.x.sizes(), args.x.scalar_type());
    if (args.dweight.defined()) check_contiguous(ctx, "dweight", args.dweight, {args.x.size(-1)}, at::kFloat);
}

std::vector<float> floats_of(const at::Tensor& vector) {
    std::vector<float> values(static_cast<size_t>(vector.numel()));
    cpu::load_floats(vector.const_data_ptr(), vector.scalar_type(), vector.numel(), values.data());
    return values;
}

void forward_cpu(const Context& ctx, const Forward& args) {
    const cpu::Rows x_rows(args.x), y_rows(args.y);
    const int64_t heads = x_rows.heads();
    const int64_t columns = x_rows.columns();
    const std::vector<float> weight = floats_of(args.weight);
    float* rstd_out = args.rstd.mutable_data_ptr<float>();
    at::parallel_for(0, x_rows.rows() * heads, cpu::grain_size(columns), [&](int64_t begin, int64_t end) {
        std::vector<float> scratch(static_cast<size_t>(columns)), y(static_cast<size_t>(columns));
        for (int64_t row = begin; row < end; ++row) {
            const float* x = x_rows.read(row / heads, row % heads, scratch.data());
            const float squares = cpu::lane_sum(columns, [&](int64_t c) { return x[c] * x[c]; });
            const float rstd = 1.f / std::sqrt(squares / static_cast<float>(columns) + static_cast<float>(args.eps));
            for (int64_t c = 0; c < columns; ++c) y[c] = x[c] * rstd * weight[c];
            y_rows.write(row / heads, row % heads, y.data());
            rstd_out[row] = rstd;
            if (args.site.code != spec::all_finite && !std::isfinite(squares)) {
                cpu::report_site(&ctx.outcome->first_bad_site, args.site.code);
            }
        }
    });
}

/// dweight[c] += sum over rows, in order of rows, on one thread.
void weight_gradient_cpu(const Backward& args) {
    const cpu::Rows dy_rows(args.dy), x_rows(args.x);
    const int64_t heads = x_rows.heads();
    const int64_t columns = x_rows.columns();
    const float* rstd = args.rstd.const_data_ptr<float>();
    std::vector<float> sums(static_cast<size_t>(columns), 0.f), dy_scratch(sums.size()), x_scratch(sums.size());
    for (int64_t row = 0; row < x_rows.rows() * heads; ++row) {
        const float* dy = dy_rows.read(row / heads, row % heads, dy_scratch.data());
        const float* x = x_rows.read(row / heads, row % heads, x_scratch.data());
        for (int64_t c = 0; c < columns; ++c) sums[c] += dy[c] * (x[c] * rstd[row]);
    }
    float* dweight = args.dweight.mutable_data_ptr<float>();
    for (int64_t c = 0; c < columns; ++c) dweight[c] += sums[c];
}

void backward_cpu(const Context& ctx, const Backward& args) {
    if (args.dweight.defined()) weight_gradient_cpu(args);  // first: dx may be dy
    const cpu::Rows dy_rows(args.dy), x_rows(args.x), dx_rows(args.dx), y_rows(args.y.defined() ? args.y : args.dy);
    const int64_t heads = x_rows.heads();
    const int64_t columns = x_rows.columns();
    const std::vector<float> weight = floats_of(args.weight);
    const float* rstd_in = args.rstd.const_data_ptr<float>();
    at::parallel_for(0, x_rows.rows() * heads, cpu::grain_size(columns), [&](int64_t begin, int64_t end) {
        const auto size = static_cast<size_t>(columns);
        std::vector<float> dy_scratch(size), x_scratch(size), dx_scratch(size), dx(size), y(size), rounded(size);
        for (int64_t row = begin; row < end; ++row) {
            const float* dy = dy_rows.read(row / heads, row % heads, dy_scratch.data());
            const float* x = x_rows.read(row / heads, row % heads, x_scratch.data());
            const float rstd = rstd_in[row];
            const float dot = cpu::lane_sum(columns, [&](int64_t c) { return dy[c] * weight[c] * x[c]; });
            const float projection = rstd * rstd * dot / static_cast<float>(columns);
            for (int64_t c = 0; c < columns; ++c) dx[c] = rstd * (dy[c] * weight[c] - x[c] * projection);
            if (args.accumulate) {
                const float* before = dx_rows.read(row / heads, row % heads, dx_scratch.data());
                for (int64_t c = 0; c < columns; ++c) dx[c] = before[c] + dx[c];
            }
            dx_rows.write(row / heads, row % heads, dx.data());
            if (args.y.defined()) {
                for (int64_t c = 0; c < columns; ++c) y[c] = x[c] * rstd * weight[c];
                y_rows.write(row / heads, row % heads, y.data());
            }
            if (args.site.code != spec::all_finite) {
                const float* written = dx_rows.read(row / heads, row % heads, rounded.data());
                if (!cpu::all_finite_values(written, columns)) {
                    cpu::report_site(&ctx.outcome->first_bad_site, args.site.code);
                }
            }
        }
    });
}

#ifdef UNSLOTH_CUDA

int64_t head_count(const at::Tensor& tensor) {
    return tensor.dim() == 3 ? tensor.size(1) : 1;
}
int64_t head_stride(const at::Tensor& tensor) {
    return tensor.dim() == 3 ? tensor.stride(1) : 0;
}

kernels::ConstHeads source_heads(const at::Tensor& tensor) {
    return {tensor.const_data_ptr(), tensor.stride(0), head_stride(tensor)};
}
kernels::Heads target_heads(const at::Tensor& tensor) {
    return {tensor.mutable_data_ptr(), tensor.stride(0), head_stride(tensor)};
}
kernels::NormShape shape_of(const at::Tensor& x, const at::Tensor& weight) {
    return {x.size(0), head_count(x), x.size(-1), dtype_of(x), dtype_of(weight)};
}
kernels::BadSite bad_site(const Context& ctx, Site site) {
    if (site.code == spec::all_finite) return {};
    return {&ctx.outcome->first_bad_site, site.code};
}

void forward_cuda(const Context& ctx, const Forward& args) {
    kernels::NormForward params;
    params.shape = shape_of(args.x, args.weight);
    params.x = source_heads(args.x);
    params.weight = args.weight.const_data_ptr();
    params.eps = static_cast<float>(args.eps);
    params.y = target_heads(args.y);
    params.rstd = args.rstd.mutable_data_ptr<float>();
    params.site = bad_site(ctx, args.site);
    kernels::norm_forward(params, static_cast<cudaStream_t>(ctx.stream()));
}

void backward_cuda(const Context& ctx, const Backward& args) {
    kernels::NormBackward params;
    params.shape = shape_of(args.x, args.weight);
    params.dy = source_heads(args.dy);
    params.x = source_heads(args.x);
    params.weight = args.weight.const_data_ptr();
    params.rstd = args.rstd.const_data_ptr<float>();
    params.dx = target_heads(args.dx);
    params.accumulate = args.accumulate;
    if (args.y.defined()) params.y = target_heads(args.y);
    params.site = bad_site(ctx, args.site);
    if (args.dweight.defined()) {
        const int64_t needed = kernels::norm_scratch_bytes(args.rstd.numel(), args.x.size(-1));
        UNSLOTH_CHECK(
            needed == 0 || (ctx.workspace.defined() && static_cast<int64_t>(ctx.workspace.nbytes()) >= needed),
            "ctx.workspace must hold ", needed, " bytes for the weight's gradient");
        params.dweight = args.dweight.mutable_data_ptr<float>();
        if (needed > 0) params.partials = static_cast<float*>(ctx.workspace.mutable_data_ptr());
    }
    kernels::norm_backward(params, static_cast<cudaStream_t>(ctx.stream()));
}

#else

void forward_cuda(const Context&, const Forward&) {
    UNSLOTH_CHECK(false, "built without CUDA");
}
void backward_cuda(const Context&, const Backward&) {
    UNSLOTH_CHECK(false, "built without CUDA");
}

#endif

void run(const Context& ctx, const Forward& args) {
    check(ctx, args);
    ctx.is_cuda() ? forward_cuda(ctx, args) : forward_cpu(ctx, args);
}

void run(const Context& ctx, const Backward& args) {
    check(ctx, args);
    ctx.is_cuda() ? backward_cuda(ctx, args) : backward_cpu(ctx, args);
}

}  // namespace

void rms_norm_forward(Context& ctx, const at::Tensor& x_TD, const at::Tensor& weight_D, double eps,
                      const at::Tensor& y_TD, const at::Tensor& rstd_T, Site site, const CodedMatrix& codes) {
    if (codes.codes.defined()) return rms_norm_forward_coded(ctx, x_TD, weight_D, eps, y_TD, rstd_T, codes, site);
    const Region region(ctx, "rms_norm");
    UNSLOTH_CHECK(x_TD.dim() == 2, "x has ", x_TD.dim(), " dimensions, expected [T, D]");
    run(ctx, Forward{x_TD, weight_D, y_TD, rstd_T, eps, site});
}

void rms_norm_backward(Context& ctx, const at::Tensor& dy_TD, const at::Tensor& x_TD, const at::Tensor& weight_D,
                       const at::Tensor& rstd_T, const at::Tensor& dx_TD, const at::Tensor& dweight_D, Site site,
                       const at::Tensor& y_TD) {
    const Region region(ctx, "rms_norm_backward");
    UNSLOTH_CHECK(x_TD.dim() == 2, "x has ", x_TD.dim(), " dimensions, expected [T, D]");
    run(ctx, Backward{dy_TD, x_TD, weight_D, rstd_T, dx_TD, dweight_D, true, site, y_TD});
}

void head_norm_forward(Context& ctx, const at::Tensor& x_THd, const at::Tensor& weight_d, double eps,
                       const at::Tensor& y_THd, const at::Tensor& rstd_TH) {
    const Region region(ctx, "head_norm");
    UNSLOTH_CHECK(x_THd.dim() == 3, "x has ", x_THd.dim(), " dimensions, expected [T, H, d]");
    run(ctx, Forward{x_THd, weight_d, y_THd, rstd_TH, eps, {}});
}

void head_norm_backward(Context& ctx, const at::Tensor& dy_THd, const at::Tensor& x_THd, const at::Tensor& weight_d,
                        const at::Tensor& rstd_TH, const at::Tensor& dx_THd, const at::Tensor& dweight_d) {
    const Region region(ctx, "head_norm_backward");
    UNSLOTH_CHECK(x_THd.dim() == 3, "x has ", x_THd.dim(), " dimensions, expected [T, H, d]");
    run(ctx, Backward{dy_THd, x_THd, weight_d, rstd_TH, dx_THd, dweight_d, false, {}, {}});
}

int64_t norm_backward_workspace(at::Device device, int64_t rows, int64_t columns) {
    if (is_absent(device)) return 0;  // of a GPU that is not there: less than its products' workspace
#ifdef UNSLOTH_CUDA
    if (device.is_cuda()) return kernels::norm_scratch_bytes(rows, columns);
#endif
    static_cast<void>(device), static_cast<void>(rows), static_cast<void>(columns);
    return 0;
}

}  // namespace unsloth::ops
