#include "gpu/gpu_testing.h"
#include "ops/norm_cases.h"

namespace unsloth {
namespace {

using NormGpu = testing::GpuTest;

TEST_F(NormGpu, MatchesOracleAndCpu) {
    testing::check_on_gpu(testing::norm_cases);
}

}  // namespace
}  // namespace unsloth
