#include "gpu/gpu_testing.h"
#include "ops/swiglu_cases.h"

namespace unsloth {
namespace {

using SwigluGpu = testing::GpuTest;

TEST_F(SwigluGpu, MatchesOracleAndCpu) {
    testing::check_on_gpu(testing::swiglu_cases);
}

}  // namespace
}  // namespace unsloth
