#include <cstdio>
#include <numeric>

#include "gpu/gpu_testing.h"
#include "ops/delta_net_cases.h"
#include "unsloth/ops/copy_places.h"

namespace unsloth {
namespace {

class DeltaNetGpu : public testing::GpuTest {};

/// One kernel for a token of each sequence: as the three, up to the order of sums.
TEST_F(DeltaNetGpu, OneTokenASequenceIsItsParts) {
    const std::pair<ops::DeltaShape, at::ScalarType> cases[] = {{{2, 4, 128, 128}, at::kBFloat16},
                                                                {{2, 2, 128, 128}, at::kBFloat16},
                                                                {{1, 3, 128, 128}, at::kHalf},
                                                                {{2, 8, 128, 128}, at::kFloat},
                                                                {{2, 4, 24, 16}, at::kFloat}};
    for (const auto& [shape, dtype] : cases)
        for (const int64_t tokens : {1, 5, 130}) {
            ops::Context ctx(at::kCUDA);
            const ops::Segments segments =
                testing::segments_of(std::vector<int32_t>(static_cast<size_t>(tokens), 1), ctx.device());
            const testing::NetCase net(shape, tokens, dtype, ctx.device());
            const testing::NetResult parts = net.by_parts(ctx, segments), whole = net.whole(ctx, segments);
            const double tolerance = dtype == at::kFloat ? 1e-5 : 0.01;
            for (const auto& [one, other] : {std::pair{whole.y_THv, parts.y_THv}, {whole.states, parts.states}}) {
                const at::Tensor expected = other.to(at::kDouble);
                EXPECT_LE((one.to(at::kDouble) - expected).norm().item<double>(),
                          tolerance * expected.norm().item<double>())
                    << tokens << " tokens, " << shape.value_heads << " heads of " << shape.value_dim;
            }
            EXPECT_TRUE(at::equal(whole.inputs, parts.inputs)) << "inputs are copied";
            EXPECT_TRUE(at::equal(whole.states[tokens + 1], net.states_NHkv[tokens + 1])) << "nobody's";
            EXPECT_TRUE(at::equal(whole.states[0], net.states_NHkv[0])) << "of no sequence here";
        }
}

TEST_F(DeltaNetGpu, CopiesWholePlaces) {
    ops::Context ctx(at::kCUDA);
    for (const int64_t columns : {7, 4096, 70000}) {
        std::vector<at::Tensor> data, before;
        for (int i = 0; i < 130; ++i)  // more than a launch takes
            before.push_back(at::randn({150, i % 2 == 0 ? columns : 24}, at::TensorOptions(at::kCUDA)));
        for (const at::Tensor& one : before) data.push_back(one.clone());
        std::vector<ops::PlaceCopy> copies;
        std::vector<int64_t> from(150);
        std::iota(from.begin(), from.end(), 0);
        for (int32_t i = 0; i < 70; ++i) copies.push_back({i / 2, 149 - i}), from[static_cast<size_t>(149 - i)] = i / 2;
        ops::copy_places(ctx, data, copies);
        const at::Tensor index = at::tensor(from, at::kLong).to(ctx.device());
        for (size_t i = 0; i < data.size(); ++i)
            ASSERT_TRUE(at::equal(data[i], before[i].index_select(0, index))) << columns << ", " << i;
    }
}

/// Qwen3.5 9B's shape: printed for the reader; the bound is far above what is expected.
TEST_F(DeltaNetGpu, Speed) {
    ops::Context ctx(at::kCUDA);
    const int64_t rows = 64;
    const ops::Segments segments = testing::segments_of(std::vector<int32_t>(rows, 1), ctx.device());
    const testing::NetCase net({16, 32, 128, 128}, rows, at::kBFloat16, ctx.device());
    const ops::DeltaNet of_net = net.net(segments);
    const at::Tensor convolved = at::empty(of_net.in.mixed_TC.sizes(), net.columns_TN.options()), o = net.values(),
                     y = net.values();
    const double ms = testing::milliseconds_of([&] { ops::delta_net_forward(ctx, segments, of_net, convolved, o, y); });
    std::printf("  a net of %d rows %8.4f ms\n", static_cast<int>(rows), ms);
    EXPECT_LT(ms, 1.0);
}

}  // namespace
}  // namespace unsloth
