#include "gpu/gpu_testing.h"
#include "ops/rope_cases.h"

namespace unsloth {
namespace {

using RopeGpu = testing::GpuTest;

TEST_F(RopeGpu, MatchesOracleAndCpu) {
    testing::check_on_gpu(testing::rope_cases);
}

}  // namespace
}  // namespace unsloth
