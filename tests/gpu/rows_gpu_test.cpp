#include "gpu/gpu_testing.h"
#include "ops/rows_cases.h"

namespace unsloth {
namespace {

using RowsGpu = testing::GpuTest;

TEST_F(RowsGpu, MatchesOracleAndCpu) {
    testing::check_on_gpu(testing::rows_cases);
}

}  // namespace
}  // namespace unsloth
