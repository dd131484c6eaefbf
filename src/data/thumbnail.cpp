#include "unsloth/data/thumbnail.h"

#include <zlib.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "unsloth/core/check.h"
#include "unsloth/images/picture.h"

namespace unsloth::data {
namespace {

void add_number(std::string& to, uint32_t value) {
    for (int shift = 24; shift >= 0; shift -= 8) to += static_cast<char>(value >> static_cast<unsigned>(shift) & 255U);
}

void add_chunk(std::string& to, std::string_view type, const std::string& data) {
    add_number(to, static_cast<uint32_t>(data.size()));
    const std::size_t begin = to.size();
    to += type;
    to += data;
    const auto* const summed = reinterpret_cast<const Bytef*>(to.data() + begin);
    add_number(to, static_cast<uint32_t>(::crc32(0, summed, static_cast<uInt>(to.size() - begin))));
}

/// RGB of 8 bits, with no filter.
std::string png_of(const images::Image& image) {
    const auto line = static_cast<std::size_t>(image.size.width) * 3;
    std::string lines;
    for (int32_t y = 0; y < image.size.height; ++y) {
        lines += '\0';
        lines.append(reinterpret_cast<const char*>(image.rgb.data()) + static_cast<std::size_t>(y) * line, line);
    }
    uLongf size = ::compressBound(static_cast<uLong>(lines.size()));
    std::string packed(size, '\0');
    const int done = ::compress2(reinterpret_cast<Bytef*>(packed.data()), &size,
                                 reinterpret_cast<const Bytef*>(lines.data()), static_cast<uLong>(lines.size()), 9);
    UNSLOTH_CHECK(done == Z_OK, "zlib could not compress ", lines.size(), " bytes: ", done);
    packed.resize(size);
    std::string header;
    add_number(header, static_cast<uint32_t>(image.size.width));
    add_number(header, static_cast<uint32_t>(image.size.height));
    header += std::string_view("\x08\x02\0\0\0", 5);
    std::string file("\x89PNG\r\n\x1a\n");
    add_chunk(file, "IHDR", header);
    add_chunk(file, "IDAT", packed);
    add_chunk(file, "IEND", "");
    return file;
}

std::string base64_of(std::string_view bytes) {
    constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string text;
    for (std::size_t i = 0; i < bytes.size(); i += 3) {
        const std::string_view some = bytes.substr(i, 3);
        uint32_t bits = 0;
        for (std::size_t k = 0; k < 3; ++k) bits = bits << 8U | (k < some.size() ? static_cast<uint8_t>(some[k]) : 0U);
        for (std::size_t k = 0; k < 4; ++k) text += k <= some.size() ? digits[bits >> (18 - 6 * k) & 63U] : '=';
    }
    return text;
}

}  // namespace

std::string thumbnail_of(const Image& image, const VisionRows& vision) {
    UNSLOTH_CHECK(image.pixels != nullptr, "an image without its pixels");
    const std::string file =
        png_of(images::picture_of(vision.processor, {image.grid_h, image.grid_w, 0}, *image.pixels, thumbnail_side));
    return "data:image/png;base64," + base64_of(file);
}

std::vector<std::string> thumbnails_of(const std::vector<Image>& images, const VisionRows& vision, std::size_t most) {
    std::vector<std::string> urls;
    for (std::size_t i = 0; i < std::min(images.size(), most); ++i) urls.push_back(thumbnail_of(images[i], vision));
    return urls;
}

}  // namespace unsloth::data
