#include "unsloth/formats/finite.h"

#include <cmath>
#include <limits>

#include "formats/support.h"
#include "unsloth/formats/inspect.h"
#include "unsloth/spec/convert.h"

namespace unsloth::formats {
namespace {

using namespace test;

constexpr float nan_value = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();

/// A file with one tensor [rows, 100] of this type, all ones but the one at `place` (-1: none).
fs::path file_with(const ScratchFolder& folder, spec::DType type, int64_t rows, int64_t place, float value) {
    std::vector<float> values(static_cast<std::size_t>(rows) * 100, 1.0F);
    if (place >= 0) values[static_cast<std::size_t>(place)] = value;
    std::vector<std::byte> bytes(values.size() * spec::size_of(type));
    spec::convert_from_f32(type, values.data(), static_cast<int64_t>(values.size()), bytes.data());
    const fs::path path = folder / cat(name_of(type), "-", place, ".safetensors");
    write_safetensors(path, {{{"some.weight", type, {rows, 100}}, bytes}});
    return path;
}

TEST(Finite, FindsTheFirstOfAnyType) {
    const ScratchFolder folder;
    constexpr int64_t rows = 40'000;  // several pieces for several threads
    for (const spec::DType type : {spec::DType::f32, spec::DType::bf16, spec::DType::f16})
        for (const int64_t place : {int64_t{-1}, int64_t{0}, int64_t{65'536}, int64_t{3'141'592}, rows * 100 - 1})
            for (const float value : {nan_value, infinity, -infinity}) {
                const SafetensorsFile file(file_with(folder, type, rows, place, value));
                const auto found = first_not_finite(file.at("some.weight"));
                EXPECT_EQ(found.value_or(-1), place) << name_of(type) << " " << value;
            }
}

TEST(Finite, TheLargestNumbersAreNumbers) {
    const ScratchFolder folder;
    for (const auto& [type, largest] :
         {std::pair{spec::DType::f32, std::numeric_limits<float>::max()}, std::pair{spec::DType::bf16, 3.3895314e38F},
          std::pair{spec::DType::f16, 65504.0F}}) {
        const SafetensorsFile file(file_with(folder, type, 1, 7, largest));
        EXPECT_FALSE(first_not_finite(file.at("some.weight")));
    }
}

/// What rounds to infinity in the type that a model computes in is no number there.
TEST(Finite, SomeNumbersAreTooLargeForSixteenBits) {
    const ScratchFolder folder;
    using spec::DType;
    const auto place_in = [&](DType type, float value, DType held) {
        const SafetensorsFile file(file_with(folder, type, 3, 205, value));
        return first_not_finite(file.at("some.weight"), held).value_or(-1);
    };
    EXPECT_EQ(place_in(DType::f32, 65519.0F, DType::f16), -1);
    EXPECT_EQ(place_in(DType::f32, -65520.0F, DType::f16), 205);
    EXPECT_EQ(place_in(DType::f32, 65520.0F, DType::bf16), -1);
    EXPECT_EQ(place_in(DType::f32, std::numeric_limits<float>::max(), DType::bf16), 205);
    EXPECT_EQ(place_in(DType::bf16, 65280.0F, DType::f16), -1);
    EXPECT_EQ(place_in(DType::bf16, 65536.0F, DType::f16), 205);
    EXPECT_EQ(place_in(DType::bf16, 3.3895314e38F, DType::bf16), -1);
    EXPECT_EQ(place_in(DType::f16, 65504.0F, DType::f16), -1);
    const SafetensorsFile file(file_with(folder, DType::bf16, 5, 203, 70144.0F));
    expect_error("checkpoint.too-large-value",
                 {"'some.weight' holds 70144 at row 2, column 3", "too large for float16", "model.dtype"},
                 [&] { require_finite(file.at("some.weight"), DType::f16); });
}

TEST(Finite, TheMessageNamesFileTensorPlaceAndValue) {
    const ScratchFolder folder;
    const fs::path path = file_with(folder, spec::DType::bf16, 5, 203, -infinity);
    const SafetensorsFile file(path);
    try {
        require_finite(file.at("some.weight"));
        FAIL() << "accepted";
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::input);
        const std::string message = error.what();
        for (const std::string& part :
             {path.string(), std::string("'some.weight'"), std::string("row 2, column 3"), std::string("-inf")})
            EXPECT_NE(message.find(part), std::string::npos) << message;
    }
}

}  // namespace
}  // namespace unsloth::formats
