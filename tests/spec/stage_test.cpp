#include "unsloth/spec/stage.h"

#include <gtest/gtest.h>

namespace unsloth::spec {
namespace {

TEST(LayerRanges, AreReadAsTheyAreWritten) {
    const std::vector<LayerRange> ranges = {{0, 16}, {16, 17}, {17, 32}};
    EXPECT_EQ(layer_ranges_text(ranges), "0-16 16-17 17-32");  // in checkpoints since there are pipelines
    EXPECT_EQ(parse_layer_ranges("0-16 16-17 17-32"), ranges);
    EXPECT_EQ(parse_layer_ranges(" 0-16 16-17 17-32"), ranges);
    EXPECT_TRUE(parse_layer_ranges("").empty());
    EXPECT_EQ(parse_layer_ranges("0-16 sixteen-17").size(), 1U);
}

}  // namespace
}  // namespace unsloth::spec
