#include "unsloth/core/hex.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>

namespace unsloth {
namespace {

TEST(Hex, HasTwoDigitsOfEachByte) {
    const std::array<uint8_t, 5> bytes = {0, 9, 0x1a, 0x80, 0xff};
    EXPECT_EQ(hex(std::as_bytes(std::span(bytes))), "00091a80ff");
    EXPECT_EQ(hex({}), "");
}

}  // namespace
}  // namespace unsloth
