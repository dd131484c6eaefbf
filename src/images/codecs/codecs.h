// What the kinds of image files share within libunsloth_images.so.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

#include "images/codec_library.h"

namespace unsloth::images::codecs {

using Bytes = std::span<const uint8_t>;

/// A file that is not read; the text is a clause about it.
class Refused : public std::runtime_error {
  public:
    Refused(UnslothImageStatus status, const std::string& why) : std::runtime_error(why), status_(status) {}
    UnslothImageStatus status() const { return status_; }

  private:
    UnslothImageStatus status_;
};

// Each kind: whether the bytes begin as such a file, its header, and its pixels as rgb [height][width][3]. Refused.
bool is_jpeg(Bytes file);
UnslothImageHeader jpeg_header(Bytes file);
void decode_jpeg(Bytes file, const UnslothImageHeader& header, uint8_t* rgb);
bool is_png(Bytes file);
UnslothImageHeader png_header(Bytes file);
void decode_png(Bytes file, const UnslothImageHeader& header, uint8_t* rgb);
bool is_webp(Bytes file);
UnslothImageHeader webp_header(Bytes file);
void decode_webp(Bytes file, const UnslothImageHeader& header, uint8_t* rgb);

/// The orientation in EXIF data (with or without its "Exif" mark), else in XMP's text; 1 where neither has one. As
/// Pillow's getexif().
int orientation_of(Bytes exif, std::string_view xmp);

inline std::string_view text_of(Bytes bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
inline bool begins_with(Bytes bytes, std::string_view text) {
    return text_of(bytes).starts_with(text);
}
/// The part from `offset`; `count` bytes at most.
inline Bytes part_of(Bytes bytes, std::size_t offset, std::size_t count) {
    if (offset >= bytes.size()) return {};
    return bytes.subspan(offset, count < bytes.size() - offset ? count : bytes.size() - offset);
}
/// An unsigned integer of `count` bytes; the caller has checked that they are there.
inline uint32_t big_endian(const uint8_t* bytes, int count) {
    uint32_t value = 0;
    for (int i = 0; i < count; ++i) value = value << 8 | bytes[i];
    return value;
}
inline uint32_t little_endian(const uint8_t* bytes, int count) {
    uint32_t value = 0;
    for (int i = count; i-- > 0;) value = value << 8 | bytes[i];
    return value;
}

/// One pixel laid on white, as Pillow's alpha_composite does it: 7 bits beyond the byte, then divided by 255.
inline void lay_on_white(const uint8_t* color, uint8_t alpha, uint8_t* rgb) {
    for (int c = 0; c < 3; ++c) {
        const uint32_t sum = (color[c] * uint32_t{alpha} + 255u * (255u - alpha)) * 128u + (0x80u << 7);
        rgb[c] = static_cast<uint8_t>(((sum >> 8) + sum) >> 8 >> 7);
    }
}

}  // namespace unsloth::images::codecs
