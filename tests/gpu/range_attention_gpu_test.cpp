#include "gpu/gpu_testing.h"
#include "ops/range_attention_cases.h"

namespace unsloth {
namespace {

using RangeAttentionGpu = testing::GpuTest;

TEST_F(RangeAttentionGpu, MatchesOracleAndCpu) {
    testing::check_on_gpu(testing::range_attention_cases);
}

}  // namespace
}  // namespace unsloth
