#include "unsloth/formats/bnb8.h"

#include <cmath>

#include "formats/model_support.h"
#include "unsloth/core/half.h"
#include "unsloth/formats/inspect.h"
#include "unsloth/formats/model_writer.h"

namespace unsloth::formats {
namespace {

using namespace test;

/// A weight as a file of its own, whose parts a test may break.
class StoredInt8 : public testing::Test {
  protected:
    StoredInt8() {
        std::vector<int8_t> codes(static_cast<std::size_t>(rows_ * cols_));
        for (std::size_t i = 0; i < codes.size(); ++i)
            codes[i] = static_cast<int8_t>(static_cast<int>(i * 37 % 255) - 127);
        maxima_ = {0.5F, 127.0F, 0.0F};
        const auto decls = int8_declarations("m.weight", rows_, cols_);
        const auto bytes = [](const auto& values) {
            const auto span = std::as_bytes(std::span(values));
            return std::vector<std::byte>(span.begin(), span.end());
        };
        blobs_ = {{decls[0], bytes(codes)}, {decls[1], bytes(maxima_)}, {decls[2], {std::byte{0}}}};
    }
    Checkpoint write() {
        write_safetensors(folder_ / "model.safetensors", blobs_);
        return Checkpoint::open(folder_.path().string());
    }
    void expect_refused(const std::vector<std::string>& words) {
        const Checkpoint checkpoint = write();
        expect_input_error(words, [&] { find_int8(checkpoint, "m.weight"); });
    }

    int64_t rows_ = 3, cols_ = 5;
    std::vector<float> maxima_;
    std::vector<TensorBlob> blobs_;
    ScratchFolder folder_;
};

TEST_F(StoredInt8, IsDequantisedByRows) {
    const Checkpoint checkpoint = write();
    const auto weight = find_int8(checkpoint, "m.weight");
    ASSERT_TRUE(weight);
    EXPECT_EQ(weight->stored_bytes(), 15U + 12 + 1);
    const auto* const codes = reinterpret_cast<const int8_t*>(weight->codes->data.data());
    std::vector<float> whole(15), last(5);
    dequantize_rows(*weight, 0, 3, whole.data());
    for (int64_t i = 0; i < 15; ++i) {
        const double expected = codes[i] * static_cast<double>(maxima_[static_cast<std::size_t>(i / 5)]) / 127;
        EXPECT_NEAR(static_cast<double>(whole[static_cast<std::size_t>(i)]), expected, std::abs(expected) * 3 * 0x1p-24)
            << i;
    }
    dequantize_rows(*weight, 1, 2, last.data());
    EXPECT_TRUE(std::equal(last.begin(), last.end(), whole.begin() + 5));
    EXPECT_THROW(dequantize_rows(*weight, 0, 4, whole.data()), CheckError);
}

TEST_F(StoredInt8, IsNoneWithoutItsMaxima) {
    blobs_.erase(blobs_.begin() + 2);
    EXPECT_TRUE(find_int8(write(), "m.weight")) << "the format may be absent";
    blobs_.erase(blobs_.begin() + 1);
    EXPECT_FALSE(find_int8(write(), "m.weight"));
}

TEST_F(StoredInt8, IsRefusedWhereItCannotBeRead) {
    const auto intact = blobs_;
    blobs_[2].data = {std::byte{1}};
    expect_refused({"m.weight_format", "row-major"});
    blobs_ = intact;
    blobs_[1] = {{"m.SCB", spec::DType::f32, {2}}, std::vector<std::byte>(8)};
    expect_refused({"m.SCB", "F32 [3]", "F32 [2]"});
    blobs_[1] = {{"m.SCB", spec::DType::f16, {3}}, std::vector<std::byte>(6)};
    expect_refused({"m.SCB", "F16"});
    blobs_ = intact;
    const float nan = NAN;
    std::memcpy(blobs_[1].data.data() + 4, &nan, sizeof nan);
    expect_refused({"m.SCB", "row 1", "not finite"});
}

TEST(QuantizeInt8, TakesTheNearestCodeOfTheHalf) {
    const int64_t cols = 6;
    // 0.5 and 1.5 steps are ties; 2049 is no half: it becomes 2048 first.
    const std::vector<float> w = {127,   0.5F, 1.5F, -2.5F, -127, 63.46F, 2049, 8.07F, 0,
                                  -1024, 2048, 1,    0,     0,    0,      0,    0,     0};
    std::vector<int8_t> codes(w.size());
    std::vector<float> maxima(3);
    quantize_int8_rows(w.data(), 3, cols, codes.data(), maxima.data());
    EXPECT_EQ(maxima, (std::vector<float>{127, 2048, 0}));
    EXPECT_EQ(std::vector<int8_t>(codes.begin(), codes.begin() + 6), (std::vector<int8_t>{127, 0, 2, -2, -127, 63}));
    EXPECT_EQ(std::vector<int8_t>(codes.begin() + 6, codes.begin() + 12),
              (std::vector<int8_t>{127, 1, 0, -64, 127, 0}));
    EXPECT_EQ(std::vector<int8_t>(codes.begin() + 12, codes.end()), std::vector<int8_t>(6, 0));
}

TEST(WriteInt8, GivesAModelThatIsReadBackWithinHalfAStep) {
    const ScratchFolder folder;
    const spec::ModelSpec spec = tiny_spec();
    write_model_folder(folder / "base", spec, random_weights(spec));
    const WeightFile base = WeightFile::open((folder / "base").string());
    fs::create_directories(folder / "out");
    write_model(MergedModel(base, nullptr), folder / "out", {spec::WeightType::int8, 9000});
    const WeightFile found = WeightFile::open((folder / "out").string());
    EXPECT_EQ(found.tensors.int8_linears(), 14);
    EXPECT_EQ(found.tensors.quantised_linears(), 0);
    ASSERT_TRUE(found.quantization.has_value());
    EXPECT_TRUE(found.quantization->load_in_8bit);
    EXPECT_FALSE(found.quantization->load_in_4bit);
    EXPECT_TRUE(inspect_path((folder / "out").string()).ok());
    EXPECT_EQ(inspect_path((folder / "out").string()).kinds,
              (std::map<std::string, int64_t>{{"BF16", 7}, {"int8", 14}}));
    for (const TensorSource& before : base.tensors.all()) {
        const TensorSource& after = *found.tensors.find(before.rule.hf_name);
        std::vector<float> expected(static_cast<std::size_t>(before.rows() * before.cols())), values(expected.size());
        before.read_f32(expected.data());
        after.read_f32(values.data());
        if (after.int8() == nullptr) {
            EXPECT_EQ(values, expected) << before.rule.hf_name;
            continue;
        }
        for (int64_t row = 0; row < before.rows(); ++row) {
            float largest = 0;
            for (int64_t i = 0; i < before.cols(); ++i)
                largest = std::max(largest, std::fabs(expected[static_cast<std::size_t>(row * before.cols() + i)]));
            for (int64_t i = 0; i < before.cols(); ++i) {
                const auto at = static_cast<std::size_t>(row * before.cols() + i);
                ASSERT_NEAR(values[at], expected[at], largest / 127 * 0.51F)
                    << before.rule.hf_name << " " << row << ", " << i;
            }
        }
    }
}

}  // namespace
}  // namespace unsloth::formats
