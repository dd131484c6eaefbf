// Achieved memory rates of the element-wise operators, as shares of a device copy measured in the same run. Printed for
// the reader; the assertion's bound is far below what is expected, so that a busy machine does not fail it but a kernel
// that lost its vector path does.
#include <cstdio>

#include "gpu/gpu_testing.h"
#include "unsloth/ops/cross_entropy.h"
#include "unsloth/ops/dora.h"
#include "unsloth/ops/norm.h"
#include "unsloth/ops/rope.h"
#include "unsloth/ops/rows.h"
#include "unsloth/ops/swiglu.h"

namespace unsloth {
namespace {

class ElementwiseSpeedGpu : public testing::GpuTest {
  protected:
    static constexpr double least_share = 0.4;
    static constexpr int64_t tokens = 16384, hidden = 4096, intermediate = 14336, heads = 40, head_dim = 128;

    static at::Tensor bf16(at::IntArrayRef shape) {
        return at::randn(shape, at::TensorOptions(at::kBFloat16).device(at::kCUDA));
    }
    static at::Tensor fp32(at::IntArrayRef shape) {
        return at::zeros(shape, at::TensorOptions(at::kFloat).device(at::kCUDA));
    }
    static at::Tensor int32(at::IntArrayRef shape) {
        return at::zeros(shape, at::TensorOptions(at::kInt).device(at::kCUDA));
    }

    /// Bytes per millisecond of a copy of a GiB.
    static double copy_rate() {
        static const double rate = [] {
            const at::Tensor from = bf16({int64_t{1} << 29}), to = at::empty_like(from);
            return 2.0 * static_cast<double>(from.nbytes()) / testing::milliseconds_of([&] { to.copy_(from); });
        }();
        return rate;
    }

    /// `bytes`: what the operator must read and write at least.
    static void report(const char* name, double bytes, const std::function<void()>& call) {
        const double ms = testing::milliseconds_of(call);
        const double share = bytes / ms / copy_rate();
        std::printf("  %-34s %8.4f ms  %6.0f GB/s  %5.1f %% of a copy\n", name, ms, bytes / ms / 1e6, 100 * share);
        EXPECT_GT(share, least_share) << name;
    }
};

TEST_F(ElementwiseSpeedGpu, Norms) {
    ops::Context ctx(at::kCUDA);
    const at::Tensor x = bf16({tokens, hidden}), y = bf16({tokens, hidden}), dx = bf16({tokens, hidden});
    const at::Tensor weight = bf16({hidden}), rstd = fp32({tokens}), dweight = fp32({hidden});
    const double bytes = static_cast<double>(x.nbytes());
    report("rms_norm_forward", 2 * bytes, [&] { ops::rms_norm_forward(ctx, x, weight, 1e-5, y, rstd); });
    const at::Tensor wide = bf16({tokens, hidden + 48}).narrow(1, 0, hidden);
    report("rms_norm_forward into K + R", 2 * bytes, [&] { ops::rms_norm_forward(ctx, x, weight, 1e-5, wide, rstd); });
    dx.zero_();
    report("rms_norm_backward", 4 * bytes, [&] { ops::rms_norm_backward(ctx, y, x, weight, rstd, dx, {}); });
    ctx.workspace = at::empty({ops::norm_backward_workspace(ctx.device(), tokens, hidden)},
                              at::TensorOptions(at::kByte).device(at::kCUDA));
    report("rms_norm_backward, dweight", 4 * bytes,
           [&] { ops::rms_norm_backward(ctx, y, x, weight, rstd, dx, dweight); });
    const at::Tensor q = bf16({tokens, heads, head_dim}), weight_d = bf16({head_dim}), rstd_TH = fp32({tokens, heads});
    const double q_bytes = static_cast<double>(q.nbytes());
    report("head_norm_forward in place", 2 * q_bytes,
           [&] { ops::head_norm_forward(ctx, q, weight_d, 1e-5, q, rstd_TH); });
    const at::Tensor dq = bf16({tokens, heads, head_dim});
    report("head_norm_backward in place", 3 * q_bytes,
           [&] { ops::head_norm_backward(ctx, dq, q, weight_d, rstd_TH, dq, {}); });
}

TEST_F(ElementwiseSpeedGpu, RopeAndSwiglu) {
    ops::Context ctx(at::kCUDA);
    const at::Tensor qkv = bf16({tokens, heads + 8, head_dim}), qk = qkv.narrow(1, 0, heads);
    const at::Tensor cos = fp32({tokens, head_dim / 2}).fill_(1), sin = fp32({tokens, head_dim / 2});
    report("rope_apply on q and k of qkv", 2 * static_cast<double>(qk.numel()) * 2,
           [&] { ops::rope_apply(ctx, qk, cos, sin, false); });
    const at::Tensor gu = bf16({tokens, 2 * intermediate}), act = bf16({tokens, intermediate});
    const double bytes = static_cast<double>(act.nbytes());
    report("swiglu_forward", 3 * bytes, [&] { ops::swiglu_forward(ctx, gu, act); });
    report("swiglu_backward", 5 * bytes, [&] { ops::swiglu_backward(ctx, act, gu); });
}

TEST_F(ElementwiseSpeedGpu, Dora) {
    ops::Context ctx(at::kCUDA);
    ctx.workspace = at::empty({ops::dora_backward_workspace(ctx.device(), tokens, 2 * intermediate)},
                              at::TensorOptions(at::kByte).device(at::kCUDA));
    const auto scale_of = [](int64_t columns) {
        return ops::OutputScale{fp32({columns}).fill_(1), fp32({columns}).fill_(1), {}};
    };
    const at::Tensor x = bf16({tokens, hidden}), y = bf16({tokens, hidden}), dm = fp32({hidden});
    const double bytes = static_cast<double>(x.nbytes());
    const ops::OutputScale narrow = scale_of(hidden);
    report("dora_forward onto the residual", 3 * bytes, [&] { ops::dora_forward(ctx, x, narrow, y, y); });
    report("dora_backward", 3 * bytes, [&] { ops::dora_backward(ctx, x, y, narrow, x, {{0, dm}}); });
    const at::Tensor z = bf16({tokens, 2 * intermediate}), act = bf16({tokens, intermediate}),
                     dm_f = fp32({intermediate});
    const double wide = static_cast<double>(act.nbytes());
    const ops::OutputScale scale = scale_of(2 * intermediate);
    report("dora_swiglu_forward", 3 * wide, [&] { ops::dora_swiglu_forward(ctx, z, scale, act); });
    report("dora_swiglu_backward", 6 * wide,
           [&] { ops::dora_swiglu_backward(ctx, act, z, scale, act, {{0, dm_f}, {intermediate, dm_f}}); });
}

TEST_F(ElementwiseSpeedGpu, Rows) {
    ops::Context ctx(at::kCUDA);
    const at::Tensor scalars = testing::bytes_on(testing::test_scalars(), ctx.device());
    ctx.scalars = static_cast<const spec::StepScalars*>(scalars.const_data_ptr());
    const at::Tensor x = bf16({tokens, hidden}), y = bf16({tokens, hidden}), f = fp32({tokens, hidden});
    const double bytes = static_cast<double>(x.nbytes());
    report("copy_2d bf16", 2 * bytes, [&] { ops::copy_2d(ctx, x, y, 0.5); });
    report("copy_2d fp32 to bf16", 3 * bytes, [&] { ops::copy_2d(ctx, f, y); });
    const at::Tensor index = at::randperm(tokens, at::TensorOptions(at::kInt).device(at::kCUDA));
    report("gather_rows", 2 * bytes, [&] { ops::gather_rows(ctx, x, index, y); });
    const at::Tensor row = int32({tokens}), offset = at::arange(tokens, row.options());
    report("dropout", 2 * bytes, [&] { ops::dropout(ctx, x, row, offset, 0.1, {3, 2}, y); });
}

TEST_F(ElementwiseSpeedGpu, CrossEntropy) {
    ops::Context ctx(at::kCUDA);
    spec::StepScalars small_steps = testing::test_scalars();
    small_steps.loss_scale = 1;
    const at::Tensor scalars = testing::bytes_on(small_steps, ctx.device());
    ctx.scalars = static_cast<const spec::StepScalars*>(scalars.const_data_ptr());
    const at::Tensor logits = bf16({4096, 128256}), losses = fp32({4096}), targets = int32({4096});
    const double bytes = static_cast<double>(logits.nbytes());
    report("cross_entropy, loss alone", bytes, [&] { ops::cross_entropy(ctx, logits, targets, losses, false); });
    report("cross_entropy with gradient", 2 * bytes, [&] { ops::cross_entropy(ctx, logits, targets, losses, true); });
    report("argmax_rows", bytes, [&] { ops::argmax_rows(ctx, logits, targets); });
}

}  // namespace
}  // namespace unsloth
