#include "ops/dora_cases.h"
#include "unsloth/core/error.h"

namespace unsloth {
namespace {

TEST(Dora, MatchesItsFormulasInDoublePrecision) {
    testing::check_on_cpu(testing::dora_cases(1));
}

TEST(Dora, RefusesWrongTensors) {
    ops::Context ctx(at::kCPU);
    const at::Tensor z = at::randn({4, 6}), y = at::empty({4, 6});
    const ops::OutputScale scale{at::ones({6}), at::ones({6}), {}};
    EXPECT_NO_THROW(ops::dora_forward(ctx, z, scale, {}, y));
    EXPECT_THROW(ops::dora_forward(ctx, z, {at::ones({5}), at::ones({6}), {}}, {}, y), CheckError);
    EXPECT_THROW(ops::dora_forward(ctx, z, scale, at::empty({4, 5}), y), CheckError);
    EXPECT_THROW(ops::dora_backward(ctx, z, z, scale, y, {{2, at::zeros({5})}}), CheckError);
    EXPECT_THROW(ops::dora_swiglu_forward(ctx, z, scale, at::empty({4, 2})), CheckError);
}

}  // namespace
}  // namespace unsloth
