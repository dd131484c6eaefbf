#include "unsloth/core/whole_number.h"

#include <gtest/gtest.h>

namespace unsloth {
namespace {

TEST(WholeNumber, IsDigitsAlone) {
    EXPECT_EQ(whole_number("0"), 0);
    EXPECT_EQ(whole_number("9223372036854775807"), INT64_MAX);
    for (const char* text : {"", "-", "-1", "-0", "+1", " 1", "1 ", "1.0", "x1", "9223372036854775808"})
        EXPECT_EQ(whole_number(text), std::nullopt) << text;
}

}  // namespace
}  // namespace unsloth
