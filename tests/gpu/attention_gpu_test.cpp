// Attention on CUDA: cuDNN's dense and packed forms and the portable kernels, each against the CPU operator
// in fp64; and the promises around them (untouched neighbours, no allocation, capture in a CUDA graph).
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include "gpu/attention_gpu_testing.h"
#include "unsloth/spec/kernel_table.h"

namespace unsloth::ops::attention_testing {
namespace {

std::vector<int32_t> tiny_segments() {
    std::vector<int32_t> lengths;
    for (int i = 0; i < 40; ++i) lengths.push_back(1 + i % 3);
    return lengths;
}

TEST_F(AttentionGpu, DenseForm) {
    for (const at::ScalarType type : {at::kBFloat16, at::kHalf})
        for (const AttentionShape& shape :
             {shape_of(32, 8, 128), shape_of(4, 2, 64), shape_of(4, 2, 128), shape_of(4, 4, 32), shape_of(4, 1, 96),
              shape_of(4, 2, 256), shape_of(4, 2, 128, 100), shape_of(4, 2, 64, 1), shape_of(4, 2, 64, 256)}) {
            SCOPED_TRACE(cat(c10::toString(type), " H ", shape.heads, " K ", shape.kv_heads, " d ", shape.head_dim,
                             " window ", shape.window));
            Problem p(shape, {256, 256, 256}, type);
            check(p, CudaForm::dense);
        }
    Problem one(shape_of(8, 2, 128), {1024}, at::kBFloat16);
    check(one, CudaForm::dense);
}

TEST_F(AttentionGpu, PackedForm) {
    for (const at::ScalarType type : {at::kBFloat16, at::kHalf})
        for (const AttentionShape& shape :
             {shape_of(32, 8, 128), shape_of(4, 2, 64), shape_of(4, 4, 32), shape_of(4, 1, 96), shape_of(4, 2, 256),
              shape_of(4, 2, 128, 100), shape_of(4, 2, 64, 1)})
            for (const std::vector<int32_t>& lengths :
                 {std::vector<int32_t>{700, 3, 129, 1, 40}, tiny_segments(), std::vector<int32_t>{5, 900}}) {
                SCOPED_TRACE(cat(c10::toString(type), " H ", shape.heads, " K ", shape.kv_heads, " d ", shape.head_dim,
                                 " window ", shape.window, ", ", lengths.size(), " segments"));
                Problem p(shape, lengths, type);
                check(p, CudaForm::packed);
            }
    Problem one(shape_of(8, 2, 128), {1001},
                at::kBFloat16);  // a single segment that no dense plan is made for
    check(one, CudaForm::packed);
}

// What the pairs of preferences take whose prompts are shared.
TEST_F(AttentionGpu, PackedFormWithMoreKeysThanQueries) {
    plans_keys = true;
    for (const at::ScalarType type : {at::kBFloat16, at::kHalf})
        for (const AttentionShape& shape : {shape_of(32, 8, 128), shape_of(4, 2, 64), shape_of(4, 1, 96),
                                            shape_of(4, 2, 128, 100), shape_of(4, 2, 64, 1)})
            for (const auto& [queries, keys] : {std::pair<std::vector<int32_t>, std::vector<int32_t>>{
                                                    {700, 300, 3, 1, 129, 40}, {700, 600, 3, 2, 129, 900}},
                                                {{256, 128}, {256, 256}},
                                                {{5, 1}, {5, 5}}}) {
                SCOPED_TRACE(cat(c10::toString(type), " H ", shape.heads, " K ", shape.kv_heads, " d ", shape.head_dim,
                                 " window ", shape.window, ", ", queries.size(), " segments"));
                Problem p(shape, queries, type, keys);
                check(p, CudaForm::packed);
            }
}

// What a context-parallel rank takes: of each sequence its chunks r and 2 ranks - 1 - r, over all before them. A plan
// for the largest serves the others.
TEST_F(AttentionGpu, PackedFormOfChunksOfSequences) {
    plans_keys = true;
    for (const AttentionShape& shape : {shape_of(32, 8, 128), shape_of(4, 2, 64), shape_of(4, 2, 128, 700)})
        for (const auto& [queries, keys] : {std::pair<std::vector<int32_t>, std::vector<int32_t>>{
                                                {512, 512}, {512, 2048}},  // 2048 on two ranks: the first's,
                                            {{512, 512}, {1024, 1536}},    // and the second's
                                            {{251, 250, 3, 2}, {251, 1001, 3, 9}},
                                            {{1, 125, 126, 1}, {1, 375, 501, 2}}}) {
            SCOPED_TRACE(cat("H ", shape.heads, " d ", shape.head_dim, " window ", shape.window, ", ", queries[0],
                             " of ", keys[0]));
            Problem p(shape, queries, at::kBFloat16, keys);
            check(p, CudaForm::packed);
        }
}

// The same of long sequences that are cut evenly: each chunk is calls of the dense form.
TEST_F(AttentionGpu, ChunksOfLongSequences) {
    plans_keys = true;
    const auto chunks = [&](const AttentionShape& shape, const std::vector<int32_t>& queries,
                            const std::vector<int32_t>& keys, at::ScalarType type = at::kBFloat16) {
        SCOPED_TRACE(cat(c10::toString(type), " H ", shape.heads, " K ", shape.kv_heads, " d ", shape.head_dim,
                         " window ", shape.window, ", ", queries[0], " of ", keys[0]));
        Problem p(shape, queries, type, keys);
        check(p, CudaForm::chunks);
    };
    for (const AttentionShape& shape :
         {shape_of(2, 1, 128), shape_of(2, 2, 64), shape_of(2, 1, 96, 700), shape_of(2, 1, 128, 2500)}) {
        chunks(shape, {1024, 1024}, {1024, 4096});  // 4096 tokens on two ranks: the first's,
        chunks(shape, {1024, 1024}, {2048, 3072});  // and the second's
    }
    chunks(shape_of(2, 1, 128), {1024, 1024}, {2048, 3072}, at::kHalf);
    chunks(shape_of(4, 2, 128), {1152, 1152, 1152, 1152}, {1152, 4608, 2304, 3456});
    Problem uneven(shape_of(2, 1, 128), {1024, 1024}, at::kBFloat16, {2048, 3073});
    check(uneven, CudaForm::packed);
}

TEST_F(AttentionGpu, Sinks) {
    for (const at::ScalarType type : {at::kBFloat16, at::kHalf, at::kFloat})
        for (AttentionShape shape : {shape_of(8, 1, 64), shape_of(8, 1, 64, 100), shape_of(4, 2, 128)})
            for (const std::vector<int32_t>& lengths : {std::vector<int32_t>{256, 256}, {700, 3, 129, 1, 40}}) {
                SCOPED_TRACE(cat(c10::toString(type), " H ", shape.heads, " d ", shape.head_dim, " window ",
                                 shape.window, ", ", lengths.size(), " segments"));
                shape.sinks = true;
                Problem p(shape, lengths, type);
                check(p, type == at::kFloat    ? CudaForm::portable
                         : lengths.size() == 2 ? CudaForm::dense
                                               : CudaForm::packed);
                // The public call, without lse: it takes one from the workspace.
                plan(p);
                attention_forward(*ctx, p.shape, p.segments, p.q, p.k, p.v, p.o, p.lse, p.sinks);
                const at::Tensor expected = p.o.clone();
                attention_forward(*ctx, p.shape, p.segments, p.q, p.k, p.v, p.o, {}, p.sinks);
                EXPECT_LT((p.o - expected).abs().max().item<double>(), 0.02);
            }
}

TEST_F(AttentionGpu, StronglyNegativeScores) {
    // Every score is about -190: a key that should be hidden but is read as zeros would have weight exp(0 +
    // 190), infinite in fp32.
    const std::vector<std::vector<int32_t>> batches = {{256, 256}, {192, 64, 320}, {64}, {65, 1000, 63, 1}, {704, 100}};
    for (const std::vector<int32_t>& lengths : batches)
        for (const int64_t window : {0, 90}) {
            Problem p(shape_of(4, 2, 64, window), lengths, at::kBFloat16);
            p.q.mul_(0.1).add_(5.0);
            p.k.mul_(0.1).sub_(4.75);
            plan(p);
            const Result expected = reference(p);
            const CudaChoice choice = choose_backward(*ctx, p.shape, p.segments, p.backward());
            EXPECT_EQ(choice.kernels, p.segments.max_q == 256 ? CudaForm::dense : CudaForm::packed);
            for (const CudaChoice& c : {choice, CudaChoice{}}) {
                SCOPED_TRACE(name_of_form(c.kernels));
                const Result r = run(p, c);
                const Tolerance allowed = tolerance(at::kBFloat16, c.kernels, p.shape.head_dim);
                expect_close("out", r.out, expected.out, p.segments.q_offsets, allowed);
                expect_close("dv", r.dv, expected.dv, p.segments.k_offsets, allowed);
                // Nearly parallel keys: dq and dk are differences of large terms, of which bf16 leaves the
                // size only.
                EXPECT_TRUE(r.dq.isfinite().all().item<bool>() && r.dk.isfinite().all().item<bool>());
            }
        }
}

TEST_F(AttentionGpu, PackedPlansServeSmallerBatches) {
    // One plan, made for 4096 tokens in 16 segments of up to 1024, then batches below it: as in a run with
    // varying rows.
    Problem largest(shape_of(8, 2, 128), std::vector<int32_t>(4, 1024), at::kBFloat16);
    const int64_t bytes = attention_workspace(largest.shape, at::kBFloat16, ctx->device(), false, 4096, 16, 1024);
    ctx->workspace = at::empty({bytes}, at::TensorOptions(at::kByte).device(at::kCUDA));
    for (const std::vector<int32_t>& lengths : {std::vector<int32_t>{1000, 7, 300},
                                                {513},
                                                {1, 2, 3},
                                                {1023, 1022, 1021, 1020},
                                                {30},
                                                std::vector<int32_t>(16, 255)}) {
        SCOPED_TRACE(cat(lengths.size(), " segments, the first of ", lengths[0], "; workspace ", bytes));
        Problem p(largest.shape, lengths, at::kBFloat16);
        const CudaChoice choice = choose_backward(*ctx, p.shape, p.segments, p.backward());
        EXPECT_EQ(name_of_form(choice.kernels), std::string("packed"));
        expect_close(p, run(p, choice), reference(p), tolerance(at::kBFloat16, CudaForm::packed));
    }
}

TEST_F(AttentionGpu, LongSegmentsAgreeWithThePortableKernels) {
    for (const std::vector<int32_t>& lengths :
         {std::vector<int32_t>{4096, 4096}, std::vector<int32_t>{6000, 11, 1900, 281}})
        for (const int64_t window : {0, 1500}) {
            Problem p(shape_of(8, 2, 128, window), lengths, at::kBFloat16);
            plan(p);
            const CudaChoice choice = choose_forward(*ctx, p.shape, p.segments, p.forward());
            EXPECT_EQ(name_of_form(choice.kernels), std::string(p.segments.uniform ? "dense" : "packed"));
            const Result portable = run(p, {});
            expect_close(p, run(p, choice), portable, tolerance(at::kBFloat16, choice.kernels));
        }
}

TEST_F(AttentionGpu, PortableForm) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf})
        for (const AttentionShape& shape : {shape_of(4, 2, 5), shape_of(3, 1, 64), shape_of(4, 2, 100, 33),
                                            shape_of(2, 2, 128), shape_of(2, 1, 193), shape_of(2, 1, 256, 70)})
            for (const std::vector<int32_t>& lengths :
                 {std::vector<int32_t>{130}, std::vector<int32_t>{64, 64}, std::vector<int32_t>{1, 300, 2, 17, 1}}) {
                SCOPED_TRACE(cat(c10::toString(type), " d ", shape.head_dim, " window ", shape.window, ", ",
                                 lengths.size(), " segments"));
                Problem p(shape, lengths, type);
                plan(p);
                expect_close(p, run(p, {}), reference(p), tolerance(type, CudaForm::portable, shape.head_dim));
            }
}

/// A table may give either direction of what cuDNN serves to our own kernels.
TEST_F(AttentionGpu, TheTablesEngineRuns) {
    for (const std::vector<int32_t>& lengths : {std::vector<int32_t>{256, 256}, std::vector<int32_t>{300, 17, 64}}) {
        Problem p(shape_of(8, 2, 128), lengths, at::kBFloat16);
        plan(p);
        const Result expected = reference(p);
        const CudaChoice own = choose_forward(*ctx, p.shape, p.segments, p.forward());
        ASSERT_NE(own.kernels, CudaForm::portable);
        for (const spec::ProductForm form : {spec::ProductForm::nt, spec::ProductForm::nn}) {
            const bool forward = form == spec::ProductForm::nt;
            SCOPED_TRACE(cat(name_of_form(own.kernels), forward ? ", own forward" : ", own backward"));
            auto table = std::make_shared<spec::KernelTable>();
            table->choices = {{.op = spec::KernelOperator::attention,
                               .form = form,
                               .n = {0, p.segments.max_k},
                               .k = {128, 128},
                               .kernel = spec::KernelSource::portable}};
            Context by_table(ctx->device(), table);
            by_table.workspace = ctx->workspace;
            const CudaChoice there = choose_forward(by_table, p.shape, p.segments, p.forward()),
                             back = choose_backward(by_table, p.shape, p.segments, p.backward());
            EXPECT_EQ(there.kernels, forward ? CudaForm::portable : own.kernels);
            EXPECT_EQ(back.kernels, forward ? own.kernels : CudaForm::portable);
            EXPECT_EQ(there.lse_order, back.lse_order);
            p.clear();
            attention_cuda_forward(by_table, p.shape, p.segments, p.forward(), there);
            attention_cuda_backward(by_table, p.shape, p.segments, p.backward(), back);
            expect_close(p, keep(p), expected, tolerance(at::kBFloat16, own.kernels));
        }
    }
}

/// Every head of 16 bits that FlashAttention-2 would take has tensor cores; needs no GPU.
TEST(AttentionForms, TensorCoresServeHeadsOf16Bits) {
    for (int head_dim = 1; head_dim <= 264; ++head_dim) {
        const bool serves = head_dim % 8 == 0 && head_dim <= 256;
        EXPECT_EQ(kernels::attention_mma_serves(spec::DType::bf16, head_dim), serves) << head_dim;
        EXPECT_EQ(kernels::attention_mma_serves(spec::DType::f16, head_dim), serves) << head_dim;
        EXPECT_FALSE(kernels::attention_mma_serves(spec::DType::f32, head_dim)) << head_dim;
    }
}

// The portable form's kernels for 16-bit rows: lengths around their tiles (16, 32, 64, 128), padded head_dims, groups
// of query heads; and the same bits whenever they run.
TEST_F(AttentionGpu, PortableFormByTensorCores) {
    const std::vector<std::pair<std::vector<int32_t>, std::vector<int32_t>>> batches = {
        {{1, 7, 63, 65, 129, 200}, {}}, {{128, 64, 256, 127}, {}}, {{5, 140, 1, 128}, {37, 300, 300, 192}}};
    for (const at::ScalarType type : {at::kBFloat16, at::kHalf})
        for (const AttentionShape& shape :
             {shape_of(2, 2, 64), shape_of(4, 1, 64, 33), shape_of(8, 1, 64), shape_of(2, 2, 128), shape_of(8, 2, 128),
              shape_of(8, 1, 128, 100), shape_of(4, 1, 128, 1), shape_of(2, 1, 128, 64), shape_of(4, 2, 96),
              shape_of(2, 1, 72, 50), shape_of(2, 2, 16), shape_of(2, 1, 112), shape_of(2, 2, 256), shape_of(8, 1, 256),
              shape_of(4, 2, 256, 100), shape_of(2, 1, 192), shape_of(4, 1, 136, 33)})
            for (const auto& [queries, keys] : batches) {
                SCOPED_TRACE(cat(c10::toString(type), " H ", shape.heads, " K ", shape.kv_heads, " d ", shape.head_dim,
                                 " window ", shape.window, ", ", queries[0], " first"));
                Problem p(shape, queries, type, keys);
                plan(p);
                const Result first = run(p, {});
                expect_close(p, first, reference(p), tolerance(type, CudaForm::portable, shape.head_dim));
                EXPECT_TRUE(equal(run(p, {}), first));
            }
}

TEST_F(AttentionGpu, MoreKeysThanQueries) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16})
        for (const int64_t window : {0, 50}) {
            Problem chunk(shape_of(8, 2, 64, window), {5, 40, 1}, type, {37, 200, 300});
            check(chunk, CudaForm::portable);
            Problem decode(shape_of(8, 2, 128, window), {1, 1, 1}, type, {3, 1000, 129});
            check(decode, CudaForm::portable);
            Problem odd(shape_of(2, 1, 200, window), {1}, type, {77});
            check(odd, CudaForm::portable);
        }
}

TEST_F(AttentionGpu, UnalignedTensorsFallBack) {
    Problem p(shape_of(4, 2, 64), {256, 256}, at::kBFloat16);
    plan(p);
    const at::Tensor shifted = at::empty({512 * 512 + 1}, p.q.options());
    p.q = shifted.narrow(0, 1, 512 * 256).view({512, 4, 64});
    p.q.copy_(at::randn({512, 4, 64}, p.q.options()));
    const Result expected = reference(p);
    p.clear();
    attention_forward(*ctx, p.shape, p.segments, p.q, p.k, p.v, p.o, p.lse);
    attention_backward(*ctx, p.shape, p.segments, p.go, p.q, p.k, p.v, p.o, p.lse, p.dq, p.dk, p.dv);
    expect_close(p, keep(p), expected, tolerance(at::kBFloat16, CudaForm::portable));
}

TEST_F(AttentionGpu, CudnnServes16BitRowsOfWholeVectors) {
    const at::Device device = ctx->device();
    EXPECT_TRUE(cudnn_serves(shape_of(32, 8, 128), at::kBFloat16, device));
    EXPECT_FALSE(cudnn_serves(shape_of(32, 8, 128), at::kFloat, device));
    EXPECT_FALSE(cudnn_serves(shape_of(32, 8, 100), at::kBFloat16, device));
}

TEST_F(AttentionGpu, WithoutStatistics) {
    for (const std::vector<int32_t>& lengths : {std::vector<int32_t>{256, 256}, std::vector<int32_t>{300, 20}}) {
        Problem p(shape_of(4, 2, 64), lengths, at::kBFloat16);
        plan(p);
        attention_forward(*ctx, p.shape, p.segments, p.q, p.k, p.v, p.o, p.lse);
        const at::Tensor with = p.o.clone();
        p.clear();
        attention_forward(*ctx, p.shape, p.segments, p.q, p.k, p.v, p.o, {});
        EXPECT_TRUE(at::equal(p.o, with));
    }
}

TEST_F(AttentionGpu, AllocatesNothingAndReplaysInAGraph) {
    for (const std::vector<int32_t>& lengths : {std::vector<int32_t>{512, 512}, std::vector<int32_t>{700, 3, 129}}) {
        Problem p(shape_of(8, 2, 128), lengths, at::kBFloat16);
        plan(p);
        const c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool();
        const c10::cuda::CUDAStreamGuard guard(stream);
        const auto both = [&] {
            attention_forward(*ctx, p.shape, p.segments, p.q, p.k, p.v, p.o, p.lse);
            attention_backward(*ctx, p.shape, p.segments, p.go, p.q, p.k, p.v, p.o, p.lse, p.dq, p.dk, p.dv);
        };
        cudaDeviceSynchronize();
        both();
        const Result expected = keep(p);
        const int64_t before = allocations();
        both();
        EXPECT_EQ(allocations(), before);
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t replay = nullptr;
        ASSERT_EQ(cudaStreamBeginCapture(stream.stream(), cudaStreamCaptureModeThreadLocal), cudaSuccess);
        both();
        ASSERT_EQ(cudaStreamEndCapture(stream.stream(), &graph), cudaSuccess);
        ASSERT_EQ(cudaGraphInstantiate(&replay, graph, 0), cudaSuccess);
        p.clear();
        ASSERT_EQ(cudaGraphLaunch(replay, stream.stream()), cudaSuccess);
        cudaStreamSynchronize(stream.stream());
        const Result r = keep(p);
        EXPECT_TRUE(at::equal(r.out, expected.out));
        expect_close(p, r, expected, tolerance(at::kBFloat16, CudaForm::dense));  // dq is summed in an order of its own
        cudaGraphExecDestroy(replay);
        cudaGraphDestroy(graph);
    }
}

}  // namespace
}  // namespace unsloth::ops::attention_testing
