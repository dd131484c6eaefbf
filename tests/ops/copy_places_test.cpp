#include "unsloth/ops/copy_places.h"

#include <gtest/gtest.h>

#include "ops/tensor_testing.h"
#include "unsloth/core/error.h"

namespace unsloth {
namespace {

TEST(CopyPlaces, OthersStayAsTheyAre) {
    ops::Context ctx(at::kCPU);
    const at::Tensor floats = at::randn({5, 2, 3}), halves = at::randn({5, 7}).to(at::kHalf);
    const at::Tensor data[] = {floats.clone(), halves.clone()};
    const ops::PlaceCopy copies[] = {{0, 3}, {0, 1}, {4, 2}};
    ops::copy_places(ctx, data, copies);
    const at::Tensor from = at::tensor({0, 0, 4, 0, 4}, at::kLong);
    EXPECT_TRUE(at::equal(data[0], floats.index_select(0, from)));
    EXPECT_TRUE(at::equal(data[1], halves.index_select(0, from)));
}

TEST(CopyPlaces, RefusesPlacesThatAreNotThereOrDependOnTheOrder) {
    ops::Context ctx(at::kCPU);
    const at::Tensor data[] = {at::zeros({3, 2})};
    for (const std::vector<ops::PlaceCopy>& copies :
         {std::vector<ops::PlaceCopy>{{0, 3}}, {{-1, 0}}, {{0, 1}, {2, 1}}, {{0, 1}, {1, 2}}})
        EXPECT_THROW(ops::copy_places(ctx, data, copies), CheckError);
}

}  // namespace
}  // namespace unsloth
