// The interface of libunsloth_images.so, which alone links the image libraries: opened when the first image is met. C,
// and no exception crosses it.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

/// What an image file says before its pixels.
struct UnslothImageHeader {
    int32_t width, height;  ///< as stored: EXIF may turn them
    int32_t orientation;    ///< EXIF's, 1 to 8; 1 where the file says nothing
};

/// How a call ended. The reason is in `error` (at most `size` bytes with the ending zero), as a clause: "is cut off".
enum UnslothImageStatus : int {
    unsloth_image_read = 0,
    unsloth_image_unknown = 1,      ///< neither JPEG, PNG nor WebP
    unsloth_image_damaged = 2,      ///< damaged, or cut off
    unsloth_image_unsupported = 3,  ///< a kind of these that is not read
};

/// "libjpeg-turbo 2.1.5, libpng 1.6.39, libwebp 1.2.4", for the keys of caches.
const char* unsloth_images_version(void);
/// Reads the size without decoding, from the file's bytes.
int unsloth_image_header(const uint8_t* file, std::size_t bytes, UnslothImageHeader* header, char* error,
                         std::size_t size);
/// Decodes into `rgb` [height][width][3], as stored. `header` is that of the same bytes; the caller has checked its
/// size. Transparent pixels are laid on white.
int unsloth_image_decode(const uint8_t* file, std::size_t bytes, const UnslothImageHeader* header, uint8_t* rgb,
                         char* error, std::size_t size);

}  // extern "C"
