#include "ops/delta_net_cases.h"

namespace unsloth {
namespace {

/// The three operators, and what they keep.
TEST(DeltaNet, IsItsPartsOneAfterTheOther) {
    at::manual_seed(4);
    ops::Context ctx(at::kCPU);
    const ops::Segments segments = testing::segments_of({3, 1}, at::kCPU);
    const testing::NetCase net({2, 4, 8, 6}, 4, at::kFloat, at::kCPU);
    testing::NetResult parts = net.by_parts(ctx, segments), whole = net.whole(ctx, segments);
    EXPECT_TRUE(at::equal(whole.y_THv, parts.y_THv));
    EXPECT_TRUE(at::equal(whole.inputs, parts.inputs) && at::equal(whole.states, parts.states));
}

}  // namespace
}  // namespace unsloth
