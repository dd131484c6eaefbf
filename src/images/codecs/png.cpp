// PNG by libpng: its bytes as they are stored, made RGB here as Pillow's convert() does.
#include <png.h>

#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <vector>

#include "images/codecs/codecs.h"

namespace unsloth::images::codecs {
namespace {

struct Source {
    Bytes file;
    std::size_t place = 0;
    bool cut = false;
    char why[128] = {};
};

void read_bytes(png_structp png, png_bytep out, std::size_t count) {
    Source& source = *static_cast<Source*>(png_get_io_ptr(png));
    if (count > source.file.size() - source.place) {
        source.cut = true;
        png_error(png, "the file ends");
    }
    std::memcpy(out, source.file.data() + source.place, count);
    source.place += count;
}

void leave(png_structp png, png_const_charp why) {
    Source& source = *static_cast<Source*>(png_get_error_ptr(png));
    std::snprintf(source.why, sizeof source.why, "%s", why);
    png_longjmp(png, 1);
}

void pass_over(png_structp, png_const_charp) {}

class Opened {
  public:
    explicit Opened(Bytes file) : source{.file = file} {
        png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &source, leave, pass_over);
        info = png == nullptr ? nullptr : png_create_info_struct(png);
        if (info == nullptr) {
            png_destroy_read_struct(&png, &info, nullptr);
            throw std::bad_alloc();
        }
    }
    Opened(const Opened&) = delete;
    Opened& operator=(const Opened&) = delete;
    ~Opened() { png_destroy_read_struct(&png, &info, nullptr); }

    [[noreturn]] void refuse() const {
        if (source.cut) throw Refused(unsloth_image_damaged, "is a PNG file that is cut off");
        throw Refused(unsloth_image_damaged, std::string("is a damaged PNG file (") + source.why + ")");
    }

    Source source;
    png_structp png = nullptr;
    png_infop info = nullptr;
};

// Between setjmp and the last call of the library no object has a destructor: longjmp would pass over it.

bool read_info(Opened& opened) {
    if (setjmp(png_jmpbuf(opened.png)) != 0) return false;
    png_set_read_fn(opened.png, &opened.source, read_bytes);
    // Of the optional chunks tRNS alone says something about pixels.
    png_set_keep_unknown_chunks(opened.png, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
    png_set_user_limits(opened.png, 0x7FFFFFFF, 0x7FFFFFFF);  // the caller has limits of its own
    png_read_info(opened.png, opened.info);
    return true;
}

/// A byte a channel: of 16 bits the high one, of less than 8 the number itself. `rows` point into the pixels.
bool read_rows(Opened& opened, uint8_t** rows) {
    if (setjmp(png_jmpbuf(opened.png)) != 0) return false;
    png_read_image(opened.png, rows);
    png_read_end(opened.png, nullptr);
    return true;
}

bool choose_bytes(Opened& opened) {
    if (setjmp(png_jmpbuf(opened.png)) != 0) return false;
    png_set_strip_16(opened.png);
    png_set_packing(opened.png);
    png_set_interlace_handling(opened.png);
    png_read_update_info(opened.png, opened.info);
    return true;
}

struct Stored {
    int width = 0, height = 0, bits = 0, kind = 0, channels = 0;
};

Stored stored_in(const Opened& opened) {
    png_uint_32 width = 0, height = 0;
    Stored stored;
    png_get_IHDR(opened.png, opened.info, &width, &height, &stored.bits, &stored.kind, nullptr, nullptr, nullptr);
    stored.width = static_cast<int>(width);
    stored.height = static_cast<int>(height);
    stored.channels = png_get_channels(opened.png, opened.info);
    if (stored.kind == PNG_COLOR_TYPE_GRAY && stored.bits == 16)
        throw Refused(unsloth_image_unsupported,
                      "is a grey PNG file of 16 bits, which Pillow would make white: save it with 8 bits");
    if (stored.kind == PNG_COLOR_TYPE_RGB && stored.bits == 16 &&
        png_get_valid(opened.png, opened.info, PNG_INFO_tRNS) != 0)
        throw Refused(unsloth_image_unsupported,
                      "is a PNG file of 16 bits with a transparent color: save it with an alpha channel");
    return stored;
}

/// The color of each value of a palette or of grey, with its alpha.
struct Colors {
    uint8_t rgba[256][4] = {};
    int count = 0;
};

Colors palette_of(const Opened& opened) {
    png_colorp palette = nullptr;
    png_bytep alpha = nullptr;
    int count = 0, alphas = 0;
    png_get_PLTE(opened.png, opened.info, &palette, &count);
    png_get_tRNS(opened.png, opened.info, &alpha, &alphas, nullptr);
    Colors colors;
    colors.count = count;
    for (int i = 0; i < count && i < 256; ++i) {
        const uint8_t color[4] = {palette[i].red, palette[i].green, palette[i].blue,
                                  i < alphas && alpha != nullptr ? alpha[i] : uint8_t{255}};
        std::memcpy(colors.rgba[i], color, sizeof color);
    }
    return colors;
}

Colors greys_of(const Opened& opened, int bits) {
    png_color_16p key = nullptr;
    int keys = 0;
    const bool has_key = png_get_tRNS(opened.png, opened.info, nullptr, &keys, &key) != 0 && key != nullptr;
    Colors colors;
    colors.count = 1 << bits;
    for (int i = 0; i < colors.count; ++i) {
        const auto grey = static_cast<uint8_t>(i * 255 / (colors.count - 1));
        std::memset(colors.rgba[i], grey, 3);
        colors.rgba[i][3] = has_key && key->gray == i ? 0 : 255;
    }
    return colors;
}

void write_row(const Stored& stored, const Colors& colors, const uint8_t* row, uint8_t* rgb) {
    for (int x = 0; x < stored.width; ++x, rgb += 3) {
        const uint8_t* pixel = row + x * stored.channels;
        if (stored.channels == 1) {
            if (pixel[0] >= colors.count)
                throw Refused(unsloth_image_damaged, "is a PNG file with a pixel beyond its palette");
            lay_on_white(colors.rgba[pixel[0]], colors.rgba[pixel[0]][3], rgb);
        } else if (stored.channels == 2) {
            const uint8_t grey[3] = {pixel[0], pixel[0], pixel[0]};
            lay_on_white(grey, pixel[1], rgb);
        } else {
            lay_on_white(pixel, pixel[3], rgb);
        }
    }
}

/// Lays the transparent color of RGB, where there is one, on white.
void whiten(const Opened& opened, const Stored& stored, uint8_t* rgb) {
    png_color_16p key = nullptr;
    int keys = 0;
    if (png_get_tRNS(opened.png, opened.info, nullptr, &keys, &key) == 0 || key == nullptr) return;
    const auto pixels = static_cast<std::size_t>(stored.width) * static_cast<std::size_t>(stored.height);
    for (std::size_t i = 0; i < pixels; ++i, rgb += 3)
        if (rgb[0] == key->red && rgb[1] == key->green && rgb[2] == key->blue) std::memset(rgb, 255, 3);
}

}  // namespace

bool is_png(Bytes file) {
    return begins_with(file, "\x89PNG\r\n\x1A\n");
}

UnslothImageHeader png_header(Bytes file) {
    Opened opened(file);
    if (!read_info(opened)) opened.refuse();
    const Stored stored = stored_in(opened);
    Bytes exif;
    std::string_view xmp;
    constexpr std::size_t signature = 8, frame = 12;  // length, name and checksum of a chunk
    constexpr std::string_view xmp_mark{"XML:com.adobe.xmp\0\0\0\0\0", 22};
    for (std::size_t at = signature; file.size() - at >= frame;) {
        const std::size_t length = big_endian(file.data() + at, 4);
        if (length > file.size() - at - frame) break;
        const Bytes data = file.subspan(at + 8, length);
        const std::string_view name = text_of(file).substr(at + 4, 4);
        if (name == "eXIf") exif = data;
        if (name == "iTXt" && begins_with(data, xmp_mark)) xmp = text_of(data).substr(xmp_mark.size());
        at += frame + length;
    }
    return {stored.width, stored.height, orientation_of(exif, xmp)};
}

void decode_png(Bytes file, const UnslothImageHeader& header, uint8_t* rgb) {
    Opened opened(file);
    if (!read_info(opened)) opened.refuse();
    Stored stored = stored_in(opened);
    if (!choose_bytes(opened)) opened.refuse();
    const auto width = static_cast<std::size_t>(header.width), height = static_cast<std::size_t>(header.height);
    const auto channels = static_cast<std::size_t>(stored.channels);
    std::vector<uint8_t> pixels(stored.channels == 3 ? 0 : width * height * channels);
    uint8_t* const target = stored.channels == 3 ? rgb : pixels.data();
    std::vector<uint8_t*> rows(height);
    for (std::size_t y = 0; y < height; ++y) rows[y] = target + y * width * channels;
    if (!read_rows(opened, rows.data())) opened.refuse();
    if (stored.channels == 3) return whiten(opened, stored, rgb);
    const Colors colors = stored.kind == PNG_COLOR_TYPE_PALETTE ? palette_of(opened)
                          : stored.channels == 1                ? greys_of(opened, stored.bits)
                                                                : Colors{};
    for (std::size_t y = 0; y < height; ++y) write_row(stored, colors, rows[y], rgb + y * width * 3);
}

}  // namespace unsloth::images::codecs
