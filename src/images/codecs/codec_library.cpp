// libunsloth_images.so: which library reads a file, and what it says.
#include "images/codec_library.h"

#include <png.h>
#include <webp/decode.h>

#include <cstdio>
#include <exception>
#include <new>
// jpeglib.h wants <cstdio> before it.
#include <jpeglib.h>

#include "images/codecs/codecs.h"

namespace unsloth::images::codecs {
namespace {

struct Kind {
    bool (*is)(Bytes file);
    UnslothImageHeader (*header)(Bytes file);
    void (*decode)(Bytes file, const UnslothImageHeader& header, uint8_t* rgb);
};
constexpr Kind kinds[] = {
    {is_jpeg, jpeg_header, decode_jpeg}, {is_png, png_header, decode_png}, {is_webp, webp_header, decode_webp}};

/// What else people take for an image, by how it begins.
std::string other_kind(Bytes file) {
    if (file.empty()) return "has no bytes";
    if (begins_with(file, "GIF8")) return "is a GIF file";
    if (begins_with(file, "BM")) return "is a BMP file";
    if (begins_with(file, std::string_view("II*\0", 4)) || begins_with(file, std::string_view("MM\0*", 4)))
        return "is a TIFF file";
    if (begins_with(part_of(file, 4, 4), "ftyp")) return "is a HEIC or AVIF file, or a film";
    if (begins_with(file, "%PDF")) return "is a PDF file";
    if (begins_with(file, "<")) return "is a text (SVG, XML or a page)";
    return "is no image that this program knows";
}

const Kind& kind_of(Bytes file) {
    for (const Kind& kind : kinds)
        if (kind.is(file)) return kind;
    throw Refused(unsloth_image_unknown, other_kind(file));
}

template <class Step>
int guarded(char* error, std::size_t size, const Step& step) {
    try {
        step();
        return unsloth_image_read;
    } catch (const Refused& refused) {
        std::snprintf(error, size, "%s", refused.what());
        return refused.status();
    } catch (const std::exception& failure) {
        std::snprintf(error, size, "could not be decoded (%s)", failure.what());
        return unsloth_image_damaged;
    }
}

}  // namespace
}  // namespace unsloth::images::codecs

using namespace unsloth::images::codecs;

extern "C" {

const char* unsloth_images_version(void) {
    static const std::string text = [] {
        const int webp = WebPGetDecoderVersion();
        char all[96];
        std::snprintf(all, sizeof all, "libjpeg-turbo %d, libpng %s, libwebp %d.%d.%d", LIBJPEG_TURBO_VERSION_NUMBER,
                      png_get_libpng_ver(nullptr), webp >> 16, webp >> 8 & 255, webp & 255);
        return std::string(all);
    }();
    return text.c_str();
}

int unsloth_image_header(const uint8_t* file, std::size_t bytes, UnslothImageHeader* header, char* error,
                         std::size_t size) {
    return guarded(error, size, [&] {
        const Bytes all{file, bytes};
        *header = kind_of(all).header(all);
    });
}

int unsloth_image_decode(const uint8_t* file, std::size_t bytes, const UnslothImageHeader* header, uint8_t* rgb,
                         char* error, std::size_t size) {
    return guarded(error, size, [&] {
        const Bytes all{file, bytes};
        kind_of(all).decode(all, *header, rgb);
    });
}

}  // extern "C"
