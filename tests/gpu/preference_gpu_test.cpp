#include "gpu/gpu_testing.h"
#include "ops/preference_cases.h"

namespace unsloth {
namespace {

using PreferenceGpu = testing::GpuTest;

TEST_F(PreferenceGpu, MatchesOracleAndCpu) {
    testing::check_on_gpu(testing::preference_cases);
}

}  // namespace
}  // namespace unsloth
