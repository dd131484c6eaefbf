#include "gpu/gpu_testing.h"
#include "ops/cross_entropy_cases.h"

namespace unsloth {
namespace {

using CrossEntropyGpu = testing::GpuTest;

TEST_F(CrossEntropyGpu, MatchesOracleAndCpu) {
    testing::check_on_gpu(testing::cross_entropy_cases);
}

}  // namespace
}  // namespace unsloth
