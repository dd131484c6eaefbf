#include "ops/policy_cases.h"

namespace unsloth {
namespace {

TEST(TokenPolicy, MatchesAutogradInDoublePrecision) {
    testing::check_on_cpu(testing::token_policy_cases(1));
}

TEST(PolicyLossOfCompletions, IsThatOfTheHostsFormulas) {
    testing::check_on_cpu(testing::policy_loss_cases(1));
}

}  // namespace
}  // namespace unsloth
