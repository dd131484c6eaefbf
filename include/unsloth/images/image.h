// Images: JPEG, PNG and WebP files to RGB, by a library that is opened when the first image is met.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace unsloth::images {

struct Size {
    int32_t width = 0, height = 0;
    bool operator==(const Size&) const = default;
};

/// RGB, one byte a channel: [height][width][3].
struct Image {
    Size size;
    std::vector<uint8_t> rgb;
};

// What a file may claim. All of it is checked before anything is decoded.
inline constexpr int64_t max_file_bytes = int64_t{64} << 20;
inline constexpr int64_t max_pixels = 100'000'000;  ///< 300 MB as RGB
inline constexpr int32_t max_side = 32'768;

/// The size in pixels, as the image is seen: EXIF's orientation is applied. Reads the header alone. Input Errors, which
/// do not name the file: image.no-reader where the library cannot be opened, image.unknown-type, image.damaged,
/// image.unsupported, image.too-large.
Size read_size(std::span<const std::byte> file);

/// Decodes a file to RGB as Pillow 13 does, upright, with transparent pixels laid on white. Input Errors as
/// read_size().
Image decode(std::span<const std::byte> file);

/// The libraries that decode, with their versions; empty where they cannot be opened.
std::string decoder_version();

}  // namespace unsloth::images
