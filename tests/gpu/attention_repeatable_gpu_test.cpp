// Attention's backward pass on CUDA with `deterministic`: the same bits, by which kernels, and what is said of slow
// ones.
#include "gpu/attention_gpu_testing.h"

namespace unsloth::ops::attention_testing {
namespace {

TEST_F(AttentionGpu, DeterministicRepeatsBitForBit) {
    ctx->deterministic = true;
    for (const std::vector<int32_t>& lengths : {std::vector<int32_t>(4, 512), std::vector<int32_t>{700, 3, 129}}) {
        Problem p(shape_of(8, 2, 128), lengths, at::kBFloat16);
        plan(p);
        const CudaChoice forward = choose_forward(*ctx, p.shape, p.segments, p.forward());
        ::testing::internal::CaptureStderr();
        const CudaChoice backward = choose_backward(*ctx, p.shape, p.segments, p.backward());
        EXPECT_EQ(::testing::internal::GetCapturedStderr().find("slower"), std::string::npos);
        EXPECT_EQ(forward.lse_order, backward.lse_order);
        EXPECT_EQ(name_of_form(backward.kernels), std::string(p.segments.uniform ? "dense" : "portable"));
        Result first;
        for (int i = 0; i < 4; ++i) {
            p.clear();
            attention_cuda_forward(*ctx, p.shape, p.segments, p.forward(), forward);
            attention_cuda_backward(*ctx, p.shape, p.segments, p.backward(), backward);
            const Result r = keep(p);
            if (i == 0) {
                first = r;
                expect_close(p, r, reference(p), tolerance(at::kBFloat16, CudaForm::dense));
            }
            EXPECT_TRUE(equal(r, first));
        }
    }
}

TEST_F(AttentionGpu, DeterministicHasTheSameBitsInPieces) {
    ctx->deterministic = true;
    const AttentionShape shape = shape_of(8, 2, 128), one_kv_head = shape_of(4, 1, 128);
    Problem p(shape, std::vector<int32_t>(5, 512), at::kBFloat16);
    const auto scratch = [&](const AttentionShape& of, int64_t rows) {
        return attention_workspace(of, at::kBFloat16, ctx->device(), true, rows * 512, rows, 512);
    };
    Result whole;
    for (const int64_t bytes : {scratch(shape, 5), scratch(shape, 3), scratch(shape, 1), scratch(one_kv_head, 1)}) {
        SCOPED_TRACE(bytes);
        plan(p);
        ctx->workspace = ctx->workspace.narrow(0, 0, bytes);
        ASSERT_EQ(name_of_form(choose_backward(*ctx, p.shape, p.segments, p.backward()).kernels), std::string("dense"));
        const Result r = run(p, {CudaForm::dense, CudaForm::dense});
        if (!whole.out.defined()) {
            whole = r;
            expect_close(p, r, reference(p), tolerance(at::kBFloat16, CudaForm::dense));
        }
        EXPECT_TRUE(equal(r, whole));
    }
    ctx->workspace = ctx->workspace.narrow(0, 0, scratch(one_kv_head, 1) / 2);
    EXPECT_EQ(name_of_form(choose_backward(*ctx, p.shape, p.segments, p.backward()).kernels), std::string("portable"));
}

TEST_F(AttentionGpu, DeterministicSaysWhereItIsSlow) {
    ctx->deterministic = true;
    Problem p(shape_of(2, 1, 256), {300, 3, 129}, at::kBFloat16);
    plan(p);
    EXPECT_EQ(choose_backward(*ctx, p.shape, p.segments, p.backward()).kernels, CudaForm::portable);
    GTEST_FLAG_SET(death_test_style, "threadsafe");  // told once a process: asked in one of its own
    EXPECT_EXIT(
        {
            choose_backward(*ctx, p.shape, p.segments, p.backward());
            std::_Exit(0);
        },
        ::testing::ExitedWithCode(0), "own kernels on tensor cores serve the backward pass of attention");
}

}  // namespace
}  // namespace unsloth::ops::attention_testing
