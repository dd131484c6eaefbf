#include "unsloth/core/json_depth.h"

#include <gtest/gtest.h>

#include <string>

namespace unsloth {
namespace {

TEST(JsonDepth, CountsBracketsOutsideOfStrings) {
    EXPECT_EQ(json_nesting_depth(""), 0);
    EXPECT_EQ(json_nesting_depth("3"), 0);
    EXPECT_EQ(json_nesting_depth("[{}, [[]], []]"), 3);
    EXPECT_EQ(json_nesting_depth(R"({"[[[": "\\\"{{{", "a": []})"), 2);
    EXPECT_EQ(json_nesting_depth("]]]["), 0) << "closing more than was opened is for the parser to refuse";
    EXPECT_EQ(json_nesting_depth(std::string(1'000'000, '[')), 1'000'000);
}

TEST(JsonDepth, CountsTheKeysOfTheWidestObject) {
    EXPECT_EQ(most_json_keys(""), 0);
    EXPECT_EQ(most_json_keys("[1, [], {}]"), 0);
    EXPECT_EQ(most_json_keys(R"({"a:": ":\\\":", "b": {"c": 1, "d": 2, "e": [{"f": 3}]}})"), 3);
    EXPECT_EQ(most_json_keys("]:}:"), 2);
}

}  // namespace
}  // namespace unsloth
