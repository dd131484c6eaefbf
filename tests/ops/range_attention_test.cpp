#include "ops/range_attention_cases.h"
#include "unsloth/core/error.h"

namespace unsloth {
namespace {

TEST(RangeAttention, MatchesDoublePrecision) {
    testing::check_on_cpu(testing::range_attention_cases(1));
}

TEST(RangeAttention, RefusesWrongRanges) {
    ops::Context ctx(at::kCPU);
    const at::Tensor q = at::randn({4, 2, 8}), k = at::randn({6, 1, 8}), out = at::empty({4, 2, 8});
    const ops::AttentionShape shape{.heads = 2, .kv_heads = 1, .head_dim = 8, .scale = 1.0};
    const auto attend = [&](const std::vector<ops::AttentionRange>& ranges) {
        ops::range_attention_forward(ctx, shape, ranges, q, k, k, out);
    };
    attend({{0, 4, 0, 6}});
    EXPECT_THROW(attend({{0, 5, 0, 6}}), CheckError);
    EXPECT_THROW(attend({{0, 4, 0, 7}}), CheckError);
    EXPECT_THROW(attend({{0, 4, 3, 3}}), CheckError);
    EXPECT_THROW(attend({{0, 3, 0, 6}, {2, 4, 0, 6}}), CheckError);
}

}  // namespace
}  // namespace unsloth
