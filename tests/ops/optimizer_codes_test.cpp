// The codes of 8-bit optimizer states.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "ops/optimizer_support.h"

namespace unsloth {
namespace {

using namespace optimizer_cases;

TEST_F(OptimizerTest, MapsAreBitsandbytes) {
    const auto expected = nlohmann::json::parse(std::ifstream(test::golden("optimizer/dynamic_map.json")));
    EXPECT_EQ(ops::dynamic_map(true), expected["signed"].get<std::vector<float>>());
    EXPECT_EQ(ops::dynamic_map(false), expected["unsigned"].get<std::vector<float>>());
    const at::Tensor maps = ops::dynamic_maps(at::kCPU);
    EXPECT_EQ(maps[255].item<float>(), 1);
    EXPECT_EQ(maps[256].item<float>(), 0);
}

TEST_F(OptimizerTest, NearestCodesFromAnyGuess) {
    const formats::SafetensorsFile file(test::golden("optimizer/blockwise8.safetensors"));
    for (const bool is_signed : {true, false}) {
        const std::string kind = is_signed ? "signed" : "unsigned";
        const std::vector<float> map = ops::dynamic_map(is_signed);
        std::vector<float> midpoints(256);
        for (std::size_t i = 0; i < 255; ++i) midpoints[i] = (map[i] + map[i + 1]) * 0.5F;
        const at::Tensor input = golden::tensor(file, kind + ".input"), absmax = golden::tensor(file, kind + ".absmax");
        const at::Tensor codes = golden::tensor(file, kind + ".codes_nearest");
        int ties = 0;
        for (int64_t i = 0; i < input.numel(); ++i) {
            const float x = input[i].item<float>() * (1.0F / absmax[i / 256].item<float>());
            int expected = codes[i].item<int>();
            if (expected < 255 &&
                x == midpoints[static_cast<std::size_t>(expected)]) {  // the file's rule takes the lower one
                ++ties;
                expected += expected % 2;
            }
            for (const int guess : {expected, 0, 127, 255})
                ASSERT_EQ(kernels::adamw::nearest_code(x, midpoints.data(), guess), expected)
                    << kind << " " << i << " " << x;
        }
        EXPECT_GT(ties, 0) << "the file should try values on a midpoint";
    }
}

/// Where the kernel's table and a search could differ: around every threshold and at every bucket's edge, for
/// both signs.
template <class Codes>
void expect_codes_of_search(const float* map, bool is_signed) {
    namespace adamw = kernels::adamw;
    std::vector<float> midpoints(256);
    for (std::size_t i = 0; i < 255; ++i) midpoints[i] = (map[i] + map[i + 1]) * 0.5F;
    std::vector<uint32_t> sorted, entries, tried = {0, 1, adamw::least_bits - 1, adamw::least_bits, adamw::one_bits};
    for (int k = 0; k < Codes::thresholds; ++k) {
        sorted.push_back(adamw::bits_of_float(Codes::threshold(map, k)));
        for (uint32_t bits = sorted.back() - 2; bits <= sorted.back() + 2; ++bits) tried.push_back(bits);
    }
    ASSERT_TRUE(std::is_sorted(sorted.begin(), sorted.end()));
    ASSERT_GE(sorted.front(), adamw::least_bits);
    for (int bucket = 0; bucket < Codes::buckets; ++bucket) {
        entries.push_back(Codes::entry(sorted.data(), bucket));
        const uint32_t begin = (Codes::first + static_cast<uint32_t>(bucket)) << Codes::shift;
        for (const uint32_t bits : {begin, begin + Codes::below / 2, begin + Codes::below})
            if (bits <= adamw::one_bits) tried.push_back(bits);
        EXPECT_LE(std::count_if(sorted.begin(), sorted.end(),
                                [&](uint32_t t) { return t >> Codes::shift == begin >> Codes::shift; }),
                  1);
    }
    for (const uint32_t bits : tried) {
        const float x = adamw::float_of_bits(bits);
        if (!is_signed) {
            ASSERT_EQ(Codes::code(entries.data(), x), adamw::nearest_code(x, midpoints.data(), 128)) << x;
            continue;
        }
        for (const float m : {x, -x})
            ASSERT_EQ(adamw::signed_code(entries.data(), m, x),
                      adamw::with_sign_of(m, adamw::nearest_code(m, midpoints.data(), 128)))
                << m;
    }
}

TEST_F(OptimizerTest, TableOfCodesEqualsASearch) {
    expect_codes_of_search<kernels::adamw::SignedCodes>(ops::dynamic_map(true).data(), true);
    expect_codes_of_search<kernels::adamw::UnsignedCodes>(ops::dynamic_map(false).data(), false);
}

}  // namespace
}  // namespace unsloth
