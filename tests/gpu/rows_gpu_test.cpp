#include "gpu/gpu_testing.h"
#include "ops/rows_cases.h"
#include "unsloth/core/error.h"

namespace unsloth {
namespace {

using RowsGpu = testing::GpuTest;

TEST_F(RowsGpu, MatchesOracleAndCpu) {
    testing::check_on_gpu(testing::rows_cases);
}

/// A table too large for the device's memory stays on the host.
TEST_F(RowsGpu, GathersFromPinnedHostMemory) {
    ops::Context ctx(at::kCUDA);
    const at::Tensor index = at::randint(300, {1000}, at::kInt);
    for (const int64_t columns : {7, 64, 4096}) {
        const at::Tensor table = at::randn({300, columns}).to(at::kBFloat16).pin_memory();
        const at::Tensor out = at::empty({1000, columns}, at::TensorOptions(at::kCUDA).dtype(at::kBFloat16));
        ops::gather_rows(ctx, table, index.to(at::kCUDA), out);
        EXPECT_TRUE(at::equal(out.cpu(), table.index_select(0, index)));
    }
    const at::Tensor pageable = at::randn({300, 8});
    EXPECT_THROW(ops::gather_rows(ctx, pageable, index.to(at::kCUDA), at::empty({1000, 8}, at::kCUDA)), CheckError);
}

}  // namespace
}  // namespace unsloth
