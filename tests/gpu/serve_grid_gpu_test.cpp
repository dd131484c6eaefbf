// Folding on a GPU: the CPU's bits.
#include "gpu/gpu_testing.h"
#include "ops/serve_grid_cases.h"

namespace unsloth {
namespace {

class ServeGridGpu : public testing::GpuTest {};

TEST_F(ServeGridGpu, HasTheCpusBits) {
    const uint64_t seed = std::random_device{}();
    at::manual_seed(seed);
    std::vector<testing::FoldCase> cases = testing::fold_cases;
    cases.push_back({1000, 4096, 16});
    cases.push_back({70000, 64, 2});  // more rows than a launch's grid has places for tiles of eight
    for (const testing::FoldCase& c : cases)
        for (const spec::ServeGrid grid : testing::all_grids) {
            SCOPED_TRACE(cat(name_of(grid), " ", c.rows, " ", c.cols, " ", c.rank, " ", c.spread, " seed ", seed));
            const testing::FoldData data(c);
            const auto expect_equal = [&](at::ScalarType type, testing::Layout layout, testing::BaseForm base) {
                const at::Tensor cpu = testing::folded(data, grid, type, at::kCPU, layout, base),
                                 gpu = testing::folded(data, grid, type, at::kCUDA, layout, base);
                EXPECT_TRUE(at::equal(cpu.nan_to_num(1e4), gpu.nan_to_num(1e4)))
                    << (cpu != gpu).sum().item<int64_t>() << " of " << cpu.numel() << " differ, base "
                    << static_cast<int>(base);
            };
            for (const testing::BaseForm base : testing::all_base_forms) {
                for (const at::ScalarType type : testing::compute_dtypes)
                    for (const testing::Layout layout : testing::all_layouts) expect_equal(type, layout, base);
            }
        }
}

TEST_F(ServeGridGpu, ABlockThatIsNotFiniteIsSeen) {
    for (const spec::ServeGrid grid : testing::all_grids) {
        testing::FoldData data({.rows = 4, .cols = 64, .rank = 2});
        data.w_NK[1][3] = std::numeric_limits<float>::quiet_NaN();
        EXPECT_FALSE(testing::folded(data, grid, at::kFloat, at::kCUDA)[1].isfinite().all().item<bool>());
    }
}

}  // namespace
}  // namespace unsloth
