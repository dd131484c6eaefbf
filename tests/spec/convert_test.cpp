#include "unsloth/spec/convert.h"
#include "common/files.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "unsloth/core/error.h"
#include "unsloth/core/half.h"
#include "unsloth/spec/dynamic_map.h"

namespace unsloth::spec {
namespace {

/// Rounds to `bits` of significand and a smallest exponent, in double, which is exact here: an independent reference.
double rounded(double x, int bits, int smallest_exponent, double largest) {
    if (x == 0.0 || !std::isfinite(x)) return x;
    const int exponent = std::max(std::ilogb(x), smallest_exponent);
    const double result = std::ldexp(std::nearbyint(std::ldexp(x, bits - 1 - exponent)), exponent - bits + 1);
    return std::abs(result) > largest ? std::copysign(std::numeric_limits<double>::infinity(), x) : result;
}

/// Floats of every exponent, on ties, beside ties and between.
std::vector<float> probes() {
    std::vector<float> values = {0.0F,     -0.0F,         65504.0F, 65519.996F, 65520.0F,
                                 65536.0F, 3.4028235e38F, 1e-45F,   INFINITY,   -INFINITY};
    for (uint32_t exponent = 0; exponent < 255; ++exponent)
        for (const uint32_t mantissa :
             {0U, 1U, 0xFFFU, 0x1000U, 0x1001U, 0x3000U, 0x7FFFU, 0x8000U, 0x8001U, 0x18000U, 0x7FFFFFU, 0x2AAAAAU})
            for (const uint32_t sign : {0U, 1U})
                values.push_back(float_from_bits(sign << 31 | exponent << 23 | mantissa));
    return values;
}

TEST(Half, EveryPatternSurvivesTheRoundTrip) {
    for (uint32_t bits = 0; bits < 0x10000; ++bits) {
        const auto half = static_cast<uint16_t>(bits);
        if (std::isnan(f16_to_f32(half))) {
            EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(f16_to_f32(half)))));
        } else {
            EXPECT_EQ(f32_to_f16(f16_to_f32(half)), half);
        }
        if (std::isnan(bf16_to_f32(half))) {
            EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(bf16_to_f32(half)))));
        } else {
            EXPECT_EQ(f32_to_bf16(bf16_to_f32(half)), half);
        }
    }
}

TEST(Half, KnownValues) {
    EXPECT_EQ(f16_to_f32(0x3C00), 1.0F);
    EXPECT_EQ(f16_to_f32(0x0001), std::ldexp(1.0F, -24));
    EXPECT_EQ(f16_to_f32(0x7BFF), 65504.0F);
    EXPECT_EQ(f16_to_f32(0xFC00), -std::numeric_limits<float>::infinity());
    EXPECT_EQ(bf16_to_f32(0x3F80), 1.0F);
    EXPECT_EQ(f32_to_bf16(1.00390625F), 0x3F80) << "a tie goes to even";
    EXPECT_EQ(f32_to_bf16(1.01171875F), 0x3F82) << "a tie goes to even";
}

TEST(Half, RoundsToNearestEven) {
    for (const float x : probes()) {
        EXPECT_EQ(static_cast<double>(f16_to_f32(f32_to_f16(x))), rounded(x, 11, -14, 65504.0)) << x;
        EXPECT_EQ(static_cast<double>(bf16_to_f32(f32_to_bf16(x))), rounded(x, 8, -126, 3.3895313892515355e38)) << x;
        EXPECT_EQ(std::signbit(f16_to_f32(f32_to_f16(x))), std::signbit(x)) << x;
    }
    EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(NAN))));
    EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(float_from_bits(0x7F800001)))));
}

TEST(Convert, ReadsAndWritesUnalignedBuffers) {
    const std::vector<float> values = {1.0F, -2.5F, 0.1F, 1e-6F, 300.0F};
    for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
        std::vector<std::byte> bytes(1 + values.size() * size_of(type));
        convert_from_f32(type, values.data(), static_cast<int64_t>(values.size()), bytes.data() + 1);
        std::vector<float> back(values.size());
        convert_to_f32(type, bytes.data() + 1, static_cast<int64_t>(back.size()), back.data());
        for (std::size_t i = 0; i < values.size(); ++i) {
            const float expected = type == DType::f32    ? values[i]
                                   : type == DType::bf16 ? bf16_to_f32(f32_to_bf16(values[i]))
                                                         : f16_to_f32(f32_to_f16(values[i]));
            EXPECT_EQ(back[i], expected) << name_of(type);
        }
    }
    const double wide = 0.1;
    float narrow = 0.0F;
    convert_to_f32(DType::f64, reinterpret_cast<const std::byte*>(&wide), 1, &narrow);
    EXPECT_EQ(narrow, 0.1F);
    EXPECT_THROW(convert_to_f32(DType::i8, reinterpret_cast<const std::byte*>(&wide), 1, &narrow), CheckError);
}

TEST(DynamicMap, EqualsBitsandbytes) {
    std::ifstream file(test::golden("spec/dynamic_map.json"));
    const auto golden = nlohmann::json::parse(file);
    for (const bool is_signed : {true, false}) {
        const auto& expected = golden.at(is_signed ? "signed" : "unsigned");
        const auto& map = dynamic_map_256(is_signed);
        ASSERT_EQ(expected.size(), map.size());
        for (std::size_t i = 0; i < map.size(); ++i) EXPECT_EQ(map[i], expected[i].get<float>()) << i;
    }
}

}  // namespace
}  // namespace unsloth::spec
