#include "ops/preference_cases.h"

namespace unsloth {
namespace {

TEST(Preference, MatchesAutogradInDoublePrecision) {
    testing::check_on_cpu(testing::preference_cases(1));
}

TEST(Preference, ALossThatIsNotFiniteNamesItsSite) {
    testing::OpCase c = testing::preference_case({}, 2, 5, 0);
    c.args[0].value[0] = NAN;
    EXPECT_EQ(testing::run_case(c, at::kCPU).outcome.first_bad_site, 17U);
}

}  // namespace
}  // namespace unsloth
