#include "gpu/gpu_testing.h"
#include "ops/policy_cases.h"

namespace unsloth {
namespace {

using PolicyGpu = testing::GpuTest;

TEST_F(PolicyGpu, TokensMatchOracleAndCpu) {
    testing::check_on_gpu(testing::token_policy_cases);
}

TEST_F(PolicyGpu, LossesMatchOracleAndCpu) {
    testing::check_on_gpu(testing::policy_loss_cases);
}

}  // namespace
}  // namespace unsloth
