#include "gpu/gpu_testing.h"
#include "ops/vision_cases.h"

namespace unsloth {
namespace {

using VisionGpu = testing::GpuTest;

TEST_F(VisionGpu, MatchesOracleAndCpu) {
    testing::check_on_gpu(testing::vision_cases);
}

}  // namespace
}  // namespace unsloth
