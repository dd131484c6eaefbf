// Attention's backward pass on CUDA with `deterministic`: the same bits, by which kernels, and what is said of slow
// ones.
#include "gpu/attention_gpu_testing.h"
#include "src/ops/attention_tiles.h"

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

// Of rows that end within a tile, at its end, and before the first one's, and of chunks that begin within one.
TEST_F(AttentionGpu, TilesMatchFp64) {
    plans_keys = true;
    ctx->deterministic = true;
    struct Rows {
        std::vector<int32_t> queries, keys;
    };
    for (const at::ScalarType type : {at::kBFloat16, at::kHalf})
        for (const AttentionShape& shape : {shape_of(8, 2, 128), shape_of(4, 4, 64), shape_of(3, 1, 96)})
            for (const Rows& rows :
                 {Rows{{700, 3, 1300}, {700, 3, 1300}}, Rows{{1536}, {1536}}, Rows{{513, 255}, {513, 255}},
                  Rows{{1024, 1024}, {1024, 3072}}, Rows{{1152, 1152}, {2304, 3456}}}) {
                SCOPED_TRACE(cat(c10::toString(type), " H ", shape.heads, " K ", shape.kv_heads, " d ", shape.head_dim,
                                 ", ", rows.queries[0], " of ", rows.keys[0]));
                Problem p(shape, rows.queries, type, rows.keys);
                plan(p);
                const CudaForm order = choose_forward(*ctx, p.shape, p.segments, p.forward()).lse_order;
                ASSERT_NE(order, CudaForm::portable);
                const Result expected = reference(p);
                constexpr int64_t longest = 512;
                const int64_t scratch = tiles_bytes(shape, longest, p.segments.max_k) +
                                        tile_workspace(shape, type, ctx->device(), longest, longest).value();
                Result first;
                for (int i = 0; i < 2; ++i) {
                    p.clear();
                    attention_cuda_forward(*ctx, p.shape, p.segments, p.forward(), {order, order});
                    const at::Tensor whole = ctx->workspace;
                    ctx->workspace = at::full({scratch}, 0xFF, whole.options());
                    attention_backward_by_tiles(*ctx, p.shape, p.segments, p.backward(), order, longest);
                    ctx->workspace = whole;
                    EXPECT_TRUE(p.grads.rest_holds(sentinel)) << "gradients were written beyond their rows and columns";
                    const Result r = keep(p);
                    if (i == 0) {
                        first = r;
                        expect_close(p, r, expected, tolerance(type, CudaForm::tiles));
                    }
                    EXPECT_TRUE(equal(r, first));
                }
            }
}

TEST_F(AttentionGpu, DeterministicTakesLongRowsInTiles) {
    plans_keys = true;
    ctx->deterministic = true;
    for (const auto& [queries, keys] : {std::pair<std::vector<int32_t>, std::vector<int32_t>>{{20480}, {20480}},
                                        {{20480, 20480}, {20480, 20480}},
                                        {{20001}, {20001}},
                                        {{9000, 7700}, {9000, 7700}},
                                        {{8192, 8192}, {8192, 24576}}}) {
        SCOPED_TRACE(cat(queries[0], " of ", keys[0]));
        Problem p(shape_of(8, 2, 128), queries, at::kBFloat16, keys);
        plan(p);
        const CudaChoice choice = choose_backward(*ctx, p.shape, p.segments, p.backward());
        EXPECT_EQ(name_of_form(choice.kernels), std::string("tiles"));
        attention_cuda_forward(*ctx, p.shape, p.segments, p.forward(), {choice.lse_order, choice.lse_order});
        const auto backward = [&](CudaChoice by) {
            p.grads.view.fill_(sentinel);
            const int64_t before = allocations();
            attention_cuda_backward(*ctx, p.shape, p.segments, p.backward(), by);
            EXPECT_EQ(allocations(), before);
            return keep(p);
        };
        const Result own = backward({CudaForm::portable, choice.lse_order}), tiles = backward(choice);
        expect_close(p, tiles, own, tolerance(at::kBFloat16, CudaForm::tiles));
        EXPECT_TRUE(equal(backward(choice), tiles));
        ctx->workspace = ctx->workspace.narrow(0, 0, p.shape.heads * p.t * 4);
        EXPECT_EQ(name_of_form(choose_backward(*ctx, p.shape, p.segments, p.backward()).kernels),
                  std::string("portable"));
    }
    Problem window(shape_of(8, 2, 128, 4096), {20480}, at::kBFloat16),
        short_rows(shape_of(8, 2, 128), {9000, 700}, at::kBFloat16);
    for (Problem* p : {&window, &short_rows}) {
        plan(*p);
        EXPECT_EQ(name_of_form(choose_backward(*ctx, p->shape, p->segments, p->backward()).kernels),
                  std::string("portable"));
    }
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
