#include "gpu/gpu_testing.h"
#include "ops/distill_cases.h"

namespace unsloth {
namespace {

using DistillGpu = testing::GpuTest;

TEST_F(DistillGpu, MatchesOracleAndCpu) {
    testing::check_on_gpu(testing::distill_cases);
}

}  // namespace
}  // namespace unsloth
