// What the tests of images share: the files of tests/golden/images, and files that nobody should decode.
#pragma once

#include <gtest/gtest.h>
#include <zlib.h>

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "common/errors.h"
#include "common/files.h"
#include "unsloth/core/files.h"
#include "unsloth/images/image.h"

namespace unsloth::images {

/// The decoding library is there.
class WithImages : public testing::Test {
  protected:
    void SetUp() override {
        if (!std::filesystem::exists(test::binary_folder() / "libunsloth_images.so"))
            GTEST_SKIP() << "built without image libraries";
    }
};

inline std::span<const std::byte> bytes_of(const std::string& text) {
    return std::as_bytes(std::span(text.data(), text.size()));
}

inline std::string image_file(const std::string& name) {
    return read_file(test::golden("images/images/" + name));
}

inline const nlohmann::json& expectations() {
    static const nlohmann::json all = nlohmann::json::parse(read_file(test::golden("images/expected.json")));
    return all;
}

inline uint32_t crc_of(const std::vector<uint8_t>& bytes) {
    return static_cast<uint32_t>(::crc32(0, bytes.data(), static_cast<unsigned>(bytes.size())));
}

inline std::string big_endian(uint32_t value) {
    std::string text;
    for (int shift = 24; shift >= 0; shift -= 8) text += static_cast<char>(value >> shift & 255);
    return text;
}

inline std::string png_chunk(const std::string& name, const std::string& data) {
    const std::string named = name + data;
    const auto sum =
        ::crc32(0, reinterpret_cast<const unsigned char*>(named.data()), static_cast<unsigned>(named.size()));
    return big_endian(static_cast<uint32_t>(data.size())) + named + big_endian(static_cast<uint32_t>(sum));
}

/// A PNG file from its rows as they are stored, without their filter bytes. `kind`: PNG's color type.
inline std::string png_file(uint32_t width, uint32_t height, int bits, int kind, const std::string& rows,
                            const std::string& chunks = {}) {
    const std::string header = big_endian(width) + big_endian(height) + static_cast<char>(bits) +
                               static_cast<char>(kind) + std::string(3, '\0');
    std::string raw;
    for (std::size_t y = 0; y < height && !rows.empty(); ++y)
        raw += '\0' + rows.substr(y * rows.size() / height, rows.size() / height);
    std::string packed(::compressBound(raw.size()), '\0');
    auto size = static_cast<uLongf>(packed.size());
    ::compress(reinterpret_cast<Bytef*>(packed.data()), &size, reinterpret_cast<const Bytef*>(raw.data()), raw.size());
    packed.resize(size);
    return "\x89PNG\r\n\x1A\n" + png_chunk("IHDR", header) + chunks + png_chunk("IDAT", packed) + png_chunk("IEND", "");
}

}  // namespace unsloth::images
