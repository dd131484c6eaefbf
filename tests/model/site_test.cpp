#include "unsloth/model/site.h"

#include <gtest/gtest.h>

namespace unsloth::model {
namespace {

TEST(Sites, HaveCodesInTheOrderOfExecution) {
    constexpr int layers = 3;
    std::vector<Site> order;
    for (int layer = 0; layer < layers; ++layer)
        for (const Place place : {Place::input_norm, Place::post_norm}) order.push_back({place, layer});
    order.push_back({Place::final_norm});
    order.push_back({Place::loss});
    for (int layer = layers - 1; layer >= 0; --layer)
        for (const Place place : {Place::post_norm, Place::input_norm})
            order.push_back({place, layer, Direction::backward});
    for (uint32_t code = 0; code < order.size(); ++code) {
        EXPECT_EQ(code_of(order[code], layers), code);
        EXPECT_EQ(site_of(code, layers), order[code]) << code;
    }
    EXPECT_THROW(site_of(static_cast<uint32_t>(order.size()), layers), std::exception);
}

}  // namespace
}  // namespace unsloth::model
