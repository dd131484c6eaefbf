#include "gpu/gpu_testing.h"
#include "ops/dora_cases.h"

namespace unsloth {
namespace {

using DoraGpu = testing::GpuTest;

TEST_F(DoraGpu, MatchesOracleAndCpu) {
    testing::check_on_gpu(testing::dora_cases);
}

}  // namespace
}  // namespace unsloth
