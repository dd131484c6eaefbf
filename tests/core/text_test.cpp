#include "unsloth/core/text.h"

#include <gtest/gtest.h>

namespace unsloth {
namespace {

TEST(Text, TrimmedOfWhiteSpaceAtBothEnds) {
    EXPECT_EQ(trimmed(" \r\n12 3\t\f\v"), "12 3");
    EXPECT_EQ(trimmed("a"), "a");
    EXPECT_EQ(trimmed(" \n"), "");
    EXPECT_EQ(trimmed(""), "");
}

TEST(Text, SizesInMessages) {
    EXPECT_EQ(human_size(0), "0 B");
    EXPECT_EQ(human_size(1023), "1023 B");
    EXPECT_EQ(human_size(1536), "1.5 KiB");
    EXPECT_EQ(human_size(45 << 20), "45.0 MiB");
    EXPECT_EQ(human_size(int64_t{5} << 28), "1.2 GiB");
    EXPECT_EQ(human_size(int64_t{3} << 40), "3.0 TiB");
    EXPECT_EQ(human_size(int64_t{3} << 50), "3072.0 TiB");
}

TEST(Text, SizesInPlansOfMemory) {
    EXPECT_EQ(human_bytes(0), "0.0 MiB");
    EXPECT_EQ(human_bytes(45 << 20), "45.0 MiB");
    EXPECT_EQ(human_bytes(int64_t{5} << 28), "1.25 GiB");
}

}  // namespace
}  // namespace unsloth
