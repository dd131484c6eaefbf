// The quantisers against ggml's own bytes (tests/golden/gguf/make.py).
#include <algorithm>
#include <cmath>
#include <limits>

#include "common/files.h"
#include "formats/support.h"
#include "unsloth/formats/ggml_types.h"

namespace unsloth::formats {
namespace {

using namespace test;

const SafetensorsFile& golden_quants() {
    static const SafetensorsFile file(golden("gguf/quants.safetensors"));
    return file;
}

std::vector<float> values_of(const TensorView& tensor) {
    std::vector<float> values(tensor.data.size() / sizeof(float));
    std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
    return values;
}

class GgmlQuants : public testing::TestWithParam<GgmlType> {
  protected:
    const std::string name_{info_of(GetParam()).name};
    const std::vector<float> x_ = values_of(golden_quants().at("x"));
    const int64_t n_ = static_cast<int64_t>(x_.size());
};

TEST_P(GgmlQuants, GiveTheReferencesBytes) {
    const TensorView& expected = golden_quants().at(name_);
    std::vector<std::byte> bytes(ggml_bytes(GetParam(), n_));
    quantize_ggml(GetParam(), x_.data(), n_, bytes.data());
    ASSERT_EQ(bytes.size(), expected.data.size());
    const auto block = static_cast<std::size_t>(info_of(GetParam()).bytes);
    for (std::size_t i = 0; i < bytes.size(); ++i)
        ASSERT_EQ(bytes[i], expected.data[i]) << "block " << i / block << ", byte " << i % block;
}

TEST_P(GgmlQuants, GiveTheSameBytesBlockByBlock) {
    const int64_t block = info_of(GetParam()).block;
    std::vector<std::byte> whole(ggml_bytes(GetParam(), n_)), parts(whole.size());
    quantize_ggml(GetParam(), x_.data(), n_, whole.data());
    for (int64_t i = 0; i < n_; i += block)
        quantize_ggml(GetParam(), x_.data() + i, block, parts.data() + ggml_bytes(GetParam(), i));
    EXPECT_TRUE(whole == parts);
}

TEST_P(GgmlQuants, DequantiseAsTheReference) {
    const TensorView& bytes = golden_quants().at(name_);
    std::vector<float> values(x_.size());
    dequantize_ggml(GetParam(), bytes.data.data(), n_, values.data());
    EXPECT_EQ(sha256(values), golden_quants().metadata().at(name_));
}

TEST_P(GgmlQuants, SurviveValuesBelowAllScales) {
    const int64_t block = info_of(GetParam()).block;
    std::vector<float> tiny(static_cast<std::size_t>(block), std::numeric_limits<float>::denorm_min());
    tiny[0] = -tiny[0];
    std::vector<std::byte> bytes(ggml_bytes(GetParam(), block));
    quantize_ggml(GetParam(), tiny.data(), block, bytes.data());
    std::vector<float> back(tiny.size());
    dequantize_ggml(GetParam(), bytes.data(), block, back.data());
    for (const float value : back) EXPECT_LE(std::abs(value), 1e-38F);
}

INSTANTIATE_TEST_SUITE_P(Types, GgmlQuants,
                         testing::Values(GgmlType::f16, GgmlType::bf16, GgmlType::q8_0, GgmlType::q4_0, GgmlType::q5_0,
                                         GgmlType::q5_1, GgmlType::q4_k, GgmlType::q5_k, GgmlType::q6_k),
                         [](const auto& info) { return std::string(info_of(info.param).name); });

/// The candidates must earn their time: the error stays below that of plain rounding over each group's range, which has
/// exact scales where the type has rounded ones.
TEST(GgmlKQuants, BeatPlainRounding) {
    constexpr int n = 256 * 64;
    std::vector<float> x(n);
    uint32_t state = 12345;
    for (float& value : x) {  // sums of uniform numbers: nearly normal
        value = -6;
        for (int i = 0; i < 12; ++i)
            value += static_cast<float>((state = state * 1664525U + 1013904223U) >> 8) / (1 << 24);
    }
    const auto error_of = [&](GgmlType type) {
        std::vector<std::byte> bytes(ggml_bytes(type, n));
        std::vector<float> back(n);
        quantize_ggml(type, x.data(), n, bytes.data());
        dequantize_ggml(type, bytes.data(), n, back.data());
        double sum = 0;
        for (int i = 0; i < n; ++i)
            sum += std::pow(back[static_cast<std::size_t>(i)] - x[static_cast<std::size_t>(i)], 2);
        return std::sqrt(sum / n);
    };
    const auto rounding_error = [&](int group, int levels) {
        double sum = 0;
        for (int g = 0; g < n; g += group) {
            const auto [low, high] = std::minmax_element(x.begin() + g, x.begin() + g + group);
            const float step = (*high - *low) / static_cast<float>(levels - 1);
            for (int i = g; i < g + group; ++i) {
                const float code = std::round((x[static_cast<std::size_t>(i)] - *low) / step);
                sum += std::pow(code * step + *low - x[static_cast<std::size_t>(i)], 2);
            }
        }
        return std::sqrt(sum / n);
    };
    EXPECT_LT(error_of(GgmlType::q4_k), 0.95 * rounding_error(32, 16));
    EXPECT_LT(error_of(GgmlType::q5_k), 0.97 * rounding_error(32, 32));
    EXPECT_LT(error_of(GgmlType::q4_k), 0.85 * error_of(GgmlType::q4_0));
    EXPECT_LT(error_of(GgmlType::q6_k), 0.02);
    EXPECT_LT(error_of(GgmlType::q8_0), 0.006);
}

TEST(GgmlTypes, KnowTheirSizes) {
    EXPECT_EQ(ggml_bytes(GgmlType::q4_k, 512), 288U);
    EXPECT_EQ(ggml_bytes(GgmlType::f16, 3), 6U);
    EXPECT_THROW(ggml_bytes(GgmlType::q4_k, 100), CheckError);
    EXPECT_EQ(find_ggml_type(36), nullptr);
    EXPECT_EQ(find_ggml_type(39)->name, "MXFP4");
}

}  // namespace
}  // namespace unsloth::formats
