// Preprocessing, byte for byte as transformers' PIL backend with Pillow 13 (tests/golden/images).
#include "unsloth/images/processor.h"

#include <cmath>

#include "images/resample.h"
#include "images/support.h"
#include "unsloth/images/picture.h"

namespace unsloth::images {
namespace {

const char* const families[] = {"qwen3_vl", "qwen2_5_vl", "mllama"};

Processor processor_of(const std::string& family, const char* form) {
    const auto found = read_processor(test::golden("images/" + family + "/" + form));
    EXPECT_TRUE(found) << family;
    return found.value_or(Processor{});
}

class Preprocessing : public WithImages {};

TEST_F(Preprocessing, PixelsAreThoseOfTransformers) {
    for (const std::string family : families) {
        const Processor processor = processor_of(family, "saved");
        const auto& expected = expectations()[family];
        for (const auto& [name, one] : expected["pixels"].items()) {
            const std::string file = image_file(name);
            const Pixels pixels = process(processor, decode(bytes_of(file)));
            int64_t values = 1;
            for (const auto& side : one["shape"]) values *= side.get<int64_t>();
            EXPECT_EQ(static_cast<int64_t>(pixels.values.size()), values) << family << " " << name;
            EXPECT_EQ(crc_of(pixels.values), one["crc32"].get<uint32_t>()) << family << " " << name;
        }
    }
}

/// Its pixels are put where they were: preprocessing them again changes nothing.
TEST_F(Preprocessing, PicturesAreWhatTheModelSees) {
    for (const std::string family : families) {
        const Processor processor = processor_of(family, "saved");
        for (const auto& [name, one] : expectations()[family]["pixels"].items()) {
            const Pixels pixels = process(processor, decode(bytes_of(image_file(name))));
            const Pixels again = process(processor, picture_of(processor, pixels.grid, pixels.values, 10'000));
            EXPECT_EQ(again.grid, pixels.grid) << family << " " << name;
            EXPECT_EQ(again.values, pixels.values) << family << " " << name;
            const Size small = picture_of(processor, pixels.grid, pixels.values, 20).size;
            EXPECT_EQ(std::max(small.width, small.height), 20) << family << " " << name;
            EXPECT_NEAR(static_cast<double>(small.width) / small.height,
                        static_cast<double>(pixels.grid.width) / pixels.grid.height, 0.51)
                << family << " " << name;
        }
    }
}

TEST_F(Preprocessing, SizesAloneGiveTheGrid) {
    for (const std::string family : families) {
        const Processor processor = processor_of(family, "saved");
        for (const auto& [name, expected] : expectations()[family]["grids"].items()) {
            const std::string file = image_file(name);
            const Grid grid = grid_of(processor, read_size(bytes_of(file)));
            EXPECT_EQ(grid, process(processor, decode(bytes_of(file))).grid) << family << " " << name;
            if (processor.layout == Layout::tiles) {
                EXPECT_EQ(grid.aspect_id, expected[0]) << name;
                EXPECT_EQ(grid.height * grid.width, expected[1]) << name;
                EXPECT_EQ(tokens_of(processor, grid), 1);
            } else {
                EXPECT_EQ((std::vector<int>{grid.height, grid.width}), expected.get<std::vector<int>>()) << name;
                EXPECT_EQ(tokens_of(processor, grid), grid.height * grid.width / 4);
            }
        }
    }
}

TEST(Processor, NormalizedValuesAreThoseOfTransformers) {
    for (const std::string family : families) {
        const auto table = normalization(processor_of(family, "saved"));
        int compared = 0;
        for (std::size_t c = 0; c < 3; ++c)
            for (const auto& [byte, value] : expectations()[family]["normalized"][c].items()) {
                EXPECT_NEAR(table[c][std::stoul(byte)], value.get<float>(), 1e-6) << family << " " << c << " " << byte;
                ++compared;
            }
        EXPECT_GT(compared, 20) << family;
    }
}

TEST(Processor, BothFormsOfItsFileSayTheSame) {
    for (const std::string family : families) EXPECT_EQ(processor_of(family, "saved"), processor_of(family, "hub"));
    EXPECT_FALSE(read_processor(test::golden("images/images"))) << "no processor there";
}

TEST(Processor, SizesOfQwen) {
    Processor processor;  // 28 pixels a token, 56 * 56 to 28 * 28 * 1280 pixels
    const auto size = [&](int32_t width, int32_t height) {
        const Grid grid = grid_of(processor, {width, height});
        return Size{grid.width * processor.patch, grid.height * processor.patch};
    };
    EXPECT_EQ(size(1920, 1080), (Size{1316, 728}));
    EXPECT_EQ(size(70, 98), (Size{56, 112})) << "halves are rounded to even: 2.5 and 3.5 squares";
    EXPECT_EQ(size(1, 1), (Size{56, 56}));
    EXPECT_EQ(size(200, 1), (Size{812, 28}));
    EXPECT_THROW(size(201, 1), Error);
    EXPECT_THROW(size(1, 201), Error);
}

/// As LLaMA-Factory makes an image smaller before the model's processor sees it.
TEST_F(Preprocessing, ALimitOfPixelsShrinksAnImageFirst) {
    for (const std::string family : families) {
        Processor processor = processor_of(family, "saved");
        int shrunk = 0;
        for (const auto& [name, one] : expectations()[family]["pixels"].items()) {
            const Image image = decode(bytes_of(image_file(name)));
            const int64_t pixels = int64_t{image.size.width} * image.size.height;
            processor.shrink_to = 0;
            const Pixels plain = process(processor, image);
            processor.shrink_to = pixels;
            EXPECT_EQ(process(processor, image).values, plain.values) << name << ": as many as are allowed";
            processor.shrink_to = pixels / 3;
            if (processor.shrink_to == 0) continue;
            const double factor = std::sqrt(static_cast<double>(processor.shrink_to) / static_cast<double>(pixels));
            const Size size{static_cast<int32_t>(image.size.width * factor),
                            static_cast<int32_t>(image.size.height * factor)};
            if (size.width == 0 || size.height == 0) continue;
            const Pixels smaller = process(processor, image);
            EXPECT_EQ(smaller.grid, grid_of(processor, image.size)) << name;
            processor.shrink_to = 0;
            const Pixels expected = process(processor, resize(image, size, Filter::bicubic));
            EXPECT_EQ(smaller.grid, expected.grid) << family << " " << name;
            EXPECT_EQ(smaller.values, expected.values) << family << " " << name;
            ++shrunk;
        }
        EXPECT_GT(shrunk, 3) << family;
    }
    Processor limited;
    limited.shrink_to = 589'824;
    EXPECT_NE(describe(limited), describe(Processor{})) << "encoded rows depend on it";
    const Grid grid = grid_of(limited, {1920, 1080});  // 1024 x 576, of 28 x 28 pixels a token
    EXPECT_EQ((Size{grid.width * limited.patch, grid.height * limited.patch}), (Size{1036, 588}));
}

TEST(Processor, SettingsThatAreNotImplementedAreRefusedByName) {
    const test::ScratchFolder folder;
    const auto refused = [&](const std::string& text, const std::string& says, const char* id = "image.processor") {
        folder.write("preprocessor_config.json", text);
        try {
            (void)read_processor(folder.path());
            ADD_FAILURE() << "taken: " << text;
        } catch (const Error& error) {
            EXPECT_EQ(error.id().name(), id) << error.what();
            EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << error.what();
        }
    };
    const std::string qwen = R"({"image_processor_type": "Qwen2VLImageProcessor", )";
    refused(R"({"image_processor_type": "SiglipImageProcessor"})", "SiglipImageProcessor");
    refused("{}", "image_processor_type", "json.missing-key");
    refused(qwen + R"("do_resize": false})", "do_resize");
    refused(qwen + R"("do_center_crop": true})", "do_center_crop");
    refused(qwen + R"("resample": 1})", "resample");
    refused(qwen + R"("size": {"height": 3, "width": 3}})", "shortest_edge");
    refused(qwen + R"("max_pixels": 100000000000})", "100000000000");
    refused(qwen + R"("patch_size": 0})", "patch_size");
    refused(qwen + R"("image_std": [0, 1, 1]})", "image_std");
    refused(qwen + R"("image_mean": [1, 2]})", "three numbers", "json.wrong-value");
    refused(R"({"image_processor_type": "MllamaImageProcessorFast", "size": {"height": 8, "width": 9}})", "size");
    folder.write("preprocessor_config.json", qwen + R"("min_pixels": 3136, "max_pixels": 12544})");
    const auto read = read_processor(folder.path());
    ASSERT_TRUE(read);
    EXPECT_EQ(read->most_pixels, 12544);
    EXPECT_NE(describe(*read), describe(Processor{}));
}

}  // namespace
}  // namespace unsloth::images
