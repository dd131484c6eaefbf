#include "gpu/gpu_testing.h"
#include "ops/decision_cases.h"

namespace unsloth {
namespace {

using DecisionGpu = testing::GpuTest;

TEST_F(DecisionGpu, MatchesOracleAndCpu) {
    testing::check_on_gpu(testing::decision_cases);
}

}  // namespace
}  // namespace unsloth
