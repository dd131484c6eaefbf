#include "ops/vision_cases.h"
#include "unsloth/core/error.h"

namespace unsloth {
namespace {

TEST(VisionOps, MatchDoublePrecision) {
    testing::check_on_cpu(testing::vision_cases(1));
}

TEST(VisionOps, RefuseWrongTensors) {
    ops::Context ctx(at::kCPU);
    const at::Tensor x = at::randn({4, 8}), weight = at::ones({8});
    EXPECT_THROW(ops::layer_norm_forward(ctx, x, at::ones({7}), weight, 1e-6, x), CheckError);
    EXPECT_THROW(ops::layer_norm_forward(ctx, x, weight.to(at::kHalf), weight, 1e-6, x), CheckError);
    EXPECT_THROW(ops::gelu(ctx, x.t(), ops::Gelu::erf), CheckError);
    EXPECT_THROW(ops::patch_values(ctx, at::zeros({2, 7}, at::kByte), at::ones({3, 256}), 2, at::empty({2, 14})),
                 CheckError);
}

}  // namespace
}  // namespace unsloth
