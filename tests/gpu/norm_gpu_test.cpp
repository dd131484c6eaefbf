#include "gpu/gpu_testing.h"
#include "ops/norm_cases.h"

namespace unsloth {
namespace {

using NormGpu = testing::GpuTest;

TEST_F(NormGpu, MatchesOracleAndCpu) {
    testing::check_on_gpu(testing::norm_cases);
}

TEST_F(NormGpu, BackwardRebuildsTheForwardsBits) {
    testing::expect_norm_rebuilds_bits(at::kCUDA);
}

}  // namespace
}  // namespace unsloth
