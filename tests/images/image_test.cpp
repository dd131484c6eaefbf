// Decoding, as Pillow 13 with libjpeg-turbo does (tests/golden/images/make_expected.py), and what is refused.
#include "unsloth/images/image.h"

#include "images/support.h"

namespace unsloth::images {
namespace {

class Decoding : public WithImages {};

TEST_F(Decoding, EveryKindOfFileIsAsPillowHasIt) {
    for (const auto& [name, expected] : expectations()["decoded"].items()) {
        const std::string file = image_file(name);
        const Image image = decode(bytes_of(file));
        EXPECT_EQ(image.size, (Size{expected["shape"][1], expected["shape"][0]})) << name;
        EXPECT_EQ(crc_of(image.rgb), expected["crc32"].get<uint32_t>()) << name;
        EXPECT_EQ(read_size(bytes_of(file)), image.size) << name;
    }
}

Image transposed(const Image& image) {
    Image result{{image.size.height, image.size.width}, {}};
    for (int32_t x = 0; x < image.size.width; ++x)
        for (int32_t y = 0; y < image.size.height; ++y)
            for (int c = 0; c < 3; ++c)
                result.rgb.push_back(image.rgb[static_cast<std::size_t>((y * image.size.width + x) * 3 + c)]);
    return result;
}

Image mirrored(const Image& image) {
    Image result{image.size, {}};
    for (int32_t y = 0; y < image.size.height; ++y)
        for (int32_t x = image.size.width; x-- > 0;)
            for (int c = 0; c < 3; ++c)
                result.rgb.push_back(image.rgb[static_cast<std::size_t>((y * image.size.width + x) * 3 + c)]);
    return result;
}

Image turned_over(const Image& image) {
    return transposed(mirrored(transposed(image)));
}

TEST_F(Decoding, AllOrientationsOfExif) {
    const std::string file = image_file("f_exif6.jpg");
    const std::size_t entry = file.find(std::string("\x01\x12\x00\x03\x00\x00\x00\x01\x00", 9));
    const std::size_t little = file.find(std::string("\x12\x01\x03\x00\x01\x00\x00\x00", 8));
    const std::size_t place = entry != std::string::npos ? entry + 9 : little + 8;
    ASSERT_LT(place, file.size()) << "no orientation";
    ASSERT_EQ(file[place], 6);
    const auto with = [&](int orientation) {
        std::string changed = file;
        changed[place] = static_cast<char>(orientation);
        const Image image = decode(bytes_of(changed));
        EXPECT_EQ(read_size(bytes_of(changed)), image.size) << orientation;
        return image;
    };
    const Image stored = with(1);
    const std::vector<Image> expected = {stored,
                                         mirrored(stored),
                                         mirrored(turned_over(stored)),
                                         turned_over(stored),
                                         transposed(stored),
                                         mirrored(transposed(stored)),
                                         mirrored(turned_over(transposed(stored))),
                                         turned_over(transposed(stored))};
    for (int orientation = 1; orientation <= 8; ++orientation)
        EXPECT_EQ(with(orientation).rgb, expected[static_cast<std::size_t>(orientation - 1)].rgb) << orientation;
    EXPECT_EQ(with(9).rgb, stored.rgb) << "what EXIF does not know turns nothing";
}

TEST_F(Decoding, OrientationOfXmpWhereExifHasNone) {
    std::string file = image_file("a_420.jpg");
    const Size stored = read_size(bytes_of(file));
    const std::string xmp = std::string("http://ns.adobe.com/xap/1.0/\0", 29) + "<x tiff:Orientation=\"6\"/>";
    file.insert(2, std::string("\xFF\xE1\0", 3) + static_cast<char>(xmp.size() + 2) + xmp);
    EXPECT_EQ(read_size(bytes_of(file)), (Size{stored.height, stored.width}));
}

std::vector<uint8_t> decoded(const std::string& file) {
    return decode(bytes_of(file)).rgb;
}

TEST_F(Decoding, PngOfFewBitsAndTransparentColors) {
    using Values = std::vector<uint8_t>;
    constexpr int grey = 0, rgb = 2, palette = 3, grey_alpha = 4, rgba = 6;
    EXPECT_EQ(decoded(png_file(2, 1, 1, grey, "\x40")), (Values{0, 0, 0, 255, 255, 255}));
    EXPECT_EQ(decoded(png_file(2, 1, 2, grey, "\x90")), (Values{170, 170, 170, 85, 85, 85}));
    EXPECT_EQ(decoded(png_file(2, 1, 4, grey, "\x3C")), (Values{51, 51, 51, 204, 204, 204}));
    EXPECT_EQ(decoded(png_file(2, 1, 8, grey, "\x07\x08", png_chunk("tRNS", std::string("\0\x07", 2)))),
              (Values{255, 255, 255, 8, 8, 8}));
    EXPECT_EQ(decoded(png_file(2, 1, 8, rgb, "abcdef", png_chunk("tRNS", std::string("\0d\0e\0f", 6)))),
              (Values{'a', 'b', 'c', 255, 255, 255}));
    const std::string colors = png_chunk("PLTE", "abcdef");
    EXPECT_EQ(decoded(png_file(2, 1, 1, palette, "\x40", colors)), (Values{'a', 'b', 'c', 'd', 'e', 'f'}));
    EXPECT_EQ(decoded(png_file(2, 1, 1, palette, "\x40", colors + png_chunk("tRNS", std::string(1, '\0')))),
              (Values{255, 255, 255, 'd', 'e', 'f'}));
    EXPECT_EQ(decoded(png_file(1, 1, 8, grey_alpha, "\x64\x80")), (Values{177, 177, 177}));
    EXPECT_EQ(decoded(png_file(1, 1, 16, grey_alpha, std::string("\x64\x01\xFF\xFF", 4))), (Values{100, 100, 100}));
    EXPECT_EQ(decoded(png_file(1, 1, 8, rgba, std::string("\x0A\x14\x1E\0", 4))), (Values{255, 255, 255}));
}

TEST_F(Decoding, WhatIsNoReadableImageIsRefused) {
    const auto refused = [](const std::string& file, const char* id, const std::string& says) {
        for (const bool whole : {false, true}) {
            try {
                whole ? (void)decode(bytes_of(file)) : (void)read_size(bytes_of(file));
                ADD_FAILURE() << "taken: " << says;
            } catch (const Error& error) {
                EXPECT_EQ(error.id().name(), id) << error.what();
                EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << error.what();
            }
        }
    };
    refused("", "image.unknown-type", "has no bytes");
    refused("GIF89a", "image.unknown-type", "GIF");
    refused("<svg/>", "image.unknown-type", "SVG");
    refused("hello", "image.unknown-type", "no image");
    constexpr int grey = 0;
    refused(png_file(50'000, 1, 8, grey, ""), "image.too-large", "50000 x 1");
    refused(png_file(30'000, 30'000, 8, grey, ""), "image.too-large", "30000 x 30000");
    refused(png_file(0, 1, 8, grey, ""), "image.damaged", "PNG");
    refused(png_file(1, 1, 16, grey, "ab"), "image.unsupported", "16 bits");
    std::string jpeg = image_file("a_420.jpg");
    const std::size_t frame = jpeg.find("\xFF\xC0");
    ASSERT_NE(frame, std::string::npos);
    jpeg.replace(frame + 5, 4, "\xFD\xE8\xFD\xE8");
    refused(jpeg, "image.too-large", "65000 x 65000");
    refused(std::string(static_cast<std::size_t>(max_file_bytes) + 1, 'x'), "image.too-large", "bytes");
}

TEST_F(Decoding, CutAndChangedFilesNeverPass) {
    for (const auto& [name, expected] : expectations()["decoded"].items()) {
        const std::string file = image_file(name);
        for (std::size_t i = 1; i < 12; ++i) {
            const std::string cut = file.substr(0, file.size() * i / 12);
            EXPECT_THROW(decode(bytes_of(cut)), Error) << name << " cut to " << cut.size();
        }
        std::string changed = file;  // whatever comes of it, the process goes on
        for (std::size_t at = 20; at < file.size(); at += 97) {
            changed[at] = static_cast<char>(~changed[at]);
            try {
                (void)decode(bytes_of(changed));
            } catch (const Error& error) {
                EXPECT_EQ(error.kind(), ErrorKind::input) << error.what();
            }
        }
    }
}

}  // namespace
}  // namespace unsloth::images
