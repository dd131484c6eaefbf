#include "gpu/gpu_testing.h"
#include "ops/swiglu_cases.h"

namespace unsloth {
namespace {

using SwigluGpu = testing::GpuTest;

TEST_F(SwigluGpu, MatchesOracleAndCpu) {
    testing::check_on_gpu(testing::swiglu_cases);
}

TEST_F(SwigluGpu, BackwardRebuildsTheForwardsBits) {
    testing::expect_swiglu_rebuilds_bits(at::kCUDA);
}

}  // namespace
}  // namespace unsloth
