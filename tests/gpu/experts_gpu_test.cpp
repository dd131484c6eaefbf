#include "gpu/gpu_testing.h"
#include "ops/nf4_experts_cases.h"
#include "unsloth/core/error.h"
#include "unsloth/ops/cuda_graph.h"

namespace unsloth {
namespace {

using ExpertsGpu = testing::GpuTest;

TEST_F(ExpertsGpu, RouterMatchesOracleAndCpu) {
    testing::check_on_gpu(testing::route_cases);
}

TEST_F(ExpertsGpu, RouterTakesTheLowerOfEqualLogitsAndNaNFirst) {
    testing::expect_router_orders(at::kCUDA);
}

TEST_F(ExpertsGpu, OrderIsThatOfAStableSort) {
    testing::check_on_gpu(testing::order_cases);
}

TEST_F(ExpertsGpu, WeightedSumMatchesOracleAndCpu) {
    testing::check_on_gpu(testing::combine_cases);
}

TEST_F(ExpertsGpu, GroupedProductsMatchOracleAndCpu) {
    testing::check_on_gpu(testing::grouped_cases);
}

TEST_F(ExpertsGpu, OurGroupedKernelMatchesOracleAndCpu) {
    testing::check_on_gpu([](uint64_t seed) { return testing::grouped_cases_by(seed, ops::GroupedChoice::kernel); });
}

TEST_F(ExpertsGpu, InTilesAreThoseDequantised) {
    testing::expect_nf4_experts(at::kCUDA, at::kBFloat16);
    testing::expect_nf4_experts(at::kCUDA, at::kBFloat16, testing::InTiles::mxfp4);
}

TEST_F(ExpertsGpu, BalanceMatchesOracleAndCpu) {
    testing::check_on_gpu(testing::balance_cases);
}

/// Layers of the sizes that are trained: every tiling of ours and the library, on the same operands.
TEST_F(ExpertsGpu, LibraryAndKernelAgreeOnWholeLayers) {
    const int major = at::cuda::getCurrentDeviceProperties()->major;
    if (major != 9 && major != 10) GTEST_SKIP() << "LibTorch's grouped kernels are not built for this card";
    ops::Context ctx(at::kCUDA);
    const at::TensorOptions options = at::TensorOptions(at::kBFloat16).device(at::kCUDA);
    for (const int64_t tokens : {32, 512, 4096}) {
        const int64_t experts = 64, choices = 8, k = 2048, n = 1536, rows = tokens * choices;
        const at::Tensor ids = testing::spread_ids({tokens, experts, choices}, testing::Spread::even);
        const at::Tensor ends = testing::ints(testing::expert_rows(ids, experts).ends).to(at::kCUDA);
        const at::Tensor x = at::randn({rows, k}, options), w = at::randn({experts, n, k}, options) / 45;
        for (const bool transpose : {true, false}) {
            const at::Tensor in = transpose ? x : x.narrow(1, 0, n);
            const at::Tensor ours = at::empty({rows, transpose ? n : k}, options), library = at::empty_like(ours);
            ops::GroupedProduct product{.x_nK = in,
                                        .w_ENK = w,
                                        .ends_E = ends,
                                        .out_nN = ours,
                                        .transpose_w = transpose,
                                        .choice = ops::GroupedChoice::kernel};
            ops::grouped_product(ctx, product);
            product.out_nN = library, product.choice = ops::GroupedChoice::library;
            ops::grouped_product(ctx, product);
            testing::expect_close(ours.cpu(), library.cpu().to(at::kDouble), {1.0 / 128, 1e-4, 0},
                                  std::to_string(tokens) + (transpose ? " forward" : " backward"));
        }
    }
}

/// What a step issues for experts can be recorded, and issued again for other choices of the router.
TEST_F(ExpertsGpu, IsRecorded) {
    ops::Context ctx(at::kCUDA);
    const int64_t tokens = 640, experts = 16, choices = 4, columns = 64, rows = tokens * choices;
    const auto floats = at::TensorOptions(at::kFloat).device(at::kCUDA);
    const auto halves = floats.dtype(at::kBFloat16), ints = floats.dtype(at::kInt);
    const at::Tensor logits = at::randn({tokens, experts}, floats), w = at::randn({experts, columns, columns}, halves);
    const at::Tensor ids = at::zeros({tokens, choices}, ints), weights = at::empty({tokens, choices}, floats);
    const ops::ExpertOrder order{at::zeros({experts}, ints), at::zeros({rows}, ints),
                                 at::zeros({tokens, choices}, ints)};
    const at::Tensor x = at::randn({rows, columns}, halves), z = at::empty_like(x),
                     y = at::empty({tokens, columns}, halves);
    ctx.workspace = at::empty({ops::order_workspace(ctx.device(), rows, experts)}, floats.dtype(at::kByte));
    const auto work = [&] {
        ops::route(ctx, {.logits_TE = logits, .ids_Tk = ids, .weights_Tk = weights});
        ops::order_by_expert(ctx, ids, order);
        ops::grouped_product(ctx, {.x_nK = x, .w_ENK = w, .ends_E = order.ends_E, .out_nN = z});
        ops::combine(ctx, {.z_nD = z, .places_Tk = order.places_Tk, .weights_Tk = weights, .y_TD = y});
    };
    const ops::CudaGraph recorded = ops::CudaGraph::capture(ctx, work);
    for (int round = 0; round < 3; ++round) {
        logits.copy_(at::randn({tokens, experts}, floats));
        recorded.launch(ctx);
        const at::Tensor replayed = y.cpu();
        y.fill_(NAN);
        work();
        EXPECT_TRUE(at::equal(replayed, y.cpu())) << round;
    }
}

TEST_F(ExpertsGpu, LibraryRefusesWhatItDoesNotTake) {
    ops::Context ctx(at::kCUDA);
    const auto floats = at::TensorOptions(at::kFloat).device(at::kCUDA);
    EXPECT_THROW(ops::grouped_product(ctx, {.x_nK = at::randn({4, 8}, floats),
                                            .w_ENK = at::randn({1, 8, 8}, floats),
                                            .ends_E = at::full({1}, 4, floats.dtype(at::kInt)),
                                            .out_nN = at::empty({4, 8}, floats),
                                            .choice = ops::GroupedChoice::library}),
                 CheckError);
}

}  // namespace
}  // namespace unsloth
