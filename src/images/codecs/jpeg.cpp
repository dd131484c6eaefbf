// JPEG by libjpeg-turbo, with the settings that Pillow leaves as they are: exact integer DCT, smooth upsampling.
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <vector>
// jpeglib.h wants <cstdio> before it.
#include <jerror.h>
#include <jpeglib.h>

#include "images/codecs/codecs.h"

namespace unsloth::images::codecs {
namespace {

/// More scans than any encoder writes: each costs a pass over the whole image.
constexpr int most_scans = 500;

struct Decoder {
    jpeg_decompress_struct info;
    jpeg_error_mgr errors;
    jpeg_progress_mgr progress;
    std::jmp_buf out;
    char why[JMSG_LENGTH_MAX];
    bool cut;
};

Decoder& decoder_of(j_common_ptr info) {
    return *static_cast<Decoder*>(info->client_data);
}

[[noreturn]] void leave(j_common_ptr info) {
    Decoder& decoder = decoder_of(info);
    (*info->err->format_message)(info, decoder.why);
    std::longjmp(decoder.out, 1);
}

/// Ignores warnings, as Pillow does, except for a file that ends too early, whose rest would be grey.
void heed(j_common_ptr info, int level) {
    if (level >= 0 || info->err->msg_code != JWRN_JPEG_EOF) return;
    decoder_of(info).cut = true;
    leave(info);
}

void watch_scans(j_common_ptr info) {
    if (reinterpret_cast<j_decompress_ptr>(info)->input_scan_number <= most_scans) return;
    Decoder& decoder = decoder_of(info);
    std::snprintf(decoder.why, sizeof decoder.why, "more than %d scans", most_scans);
    std::longjmp(decoder.out, 1);
}

void begin(Decoder& decoder) {
    std::memset(&decoder, 0, sizeof decoder);
    decoder.info.err = jpeg_std_error(&decoder.errors);
    decoder.info.client_data = &decoder;
    decoder.errors.error_exit = leave;
    decoder.errors.emit_message = heed;
    decoder.progress.progress_monitor = watch_scans;
}

[[noreturn]] void refuse(const Decoder& decoder) {
    if (decoder.cut) throw Refused(unsloth_image_damaged, "is a JPEG file that is cut off");
    throw Refused(unsloth_image_damaged, std::string("is a damaged JPEG file (") + decoder.why + ")");
}

// Between setjmp and the last call of the library no object has a destructor: longjmp would pass over it.

bool read_header(Decoder& decoder, Bytes file) {
    if (setjmp(decoder.out) != 0) return false;
    jpeg_create_decompress(&decoder.info);
    decoder.info.client_data = &decoder;  // creating cleared it
    decoder.info.progress = &decoder.progress;
    jpeg_save_markers(&decoder.info, JPEG_APP0 + 1, 0xFFFF);
    jpeg_mem_src(&decoder.info, file.data(), static_cast<unsigned long>(file.size()));
    jpeg_read_header(&decoder.info, TRUE);
    return true;
}

bool read_pixels(Decoder& decoder, uint8_t* rgb, uint8_t* row, int width) {
    if (setjmp(decoder.out) != 0) return false;
    jpeg_decompress_struct& info = decoder.info;
    info.out_color_space = info.num_components == 1 ? JCS_GRAYSCALE : info.num_components == 3 ? JCS_RGB : JCS_CMYK;
    jpeg_start_decompress(&info);
    while (info.output_scanline < info.output_height) {
        uint8_t* line = rgb + static_cast<std::size_t>(info.output_scanline) * static_cast<std::size_t>(width) * 3;
        JSAMPROW target = info.num_components == 3 ? line : row;
        if (jpeg_read_scanlines(&info, &target, 1) == 0) break;
        if (info.num_components == 1) {
            for (int x = 0; x < width; ++x) std::memset(line + 3 * x, row[x], 3);
        } else if (info.num_components == 4) {
            for (int x = 0; x < width; ++x) {
                // Adobe's inverted inks, as Pillow takes all of four; its MULDIV255 rounds the product.
                const uint32_t light = row[4 * x + 3];
                for (int c = 0; c < 3; ++c) {
                    const uint32_t ink = 255u - row[4 * x + c], product = ink * light + 128;
                    line[3 * x + c] = static_cast<uint8_t>(light - (((product >> 8) + product) >> 8));
                }
            }
        }
    }
    jpeg_finish_decompress(&info);
    return true;
}

struct Opened {
    Opened() = default;
    Opened(const Opened&) = delete;
    Opened& operator=(const Opened&) = delete;
    ~Opened() { jpeg_destroy_decompress(&decoder.info); }
    Decoder decoder;
};

void open(Decoder& decoder, Bytes file) {
    begin(decoder);
    if (!read_header(decoder, file)) refuse(decoder);
    const jpeg_decompress_struct& info = decoder.info;
    if (info.data_precision != 8)
        throw Refused(unsloth_image_unsupported,
                      "is a JPEG file of " + std::to_string(info.data_precision) + " bits a channel, not 8");
    if (info.num_components != 1 && info.num_components != 3 && info.num_components != 4)
        throw Refused(unsloth_image_unsupported,
                      "is a JPEG file of " + std::to_string(info.num_components) + " channels, not 1, 3 or 4");
}

}  // namespace

bool is_jpeg(Bytes file) {
    return begins_with(file, "\xFF\xD8\xFF");
}

UnslothImageHeader jpeg_header(Bytes file) {
    Opened opened;
    open(opened.decoder, file);
    const jpeg_decompress_struct& info = opened.decoder.info;
    std::vector<uint8_t> exif;
    std::string_view xmp;
    constexpr std::string_view exif_mark{"Exif\0\0", 6}, xmp_mark{"http://ns.adobe.com/xap/1.0/\0", 29};
    for (jpeg_saved_marker_ptr marker = info.marker_list; marker != nullptr; marker = marker->next) {
        const Bytes data{marker->data, marker->data_length};
        if (begins_with(data, exif_mark)) {  // long EXIF data continue in further markers
            const Bytes more = exif.empty() ? data : data.subspan(exif_mark.size());
            exif.insert(exif.end(), more.begin(), more.end());
        } else if (begins_with(data, xmp_mark)) {
            xmp = text_of(data).substr(xmp_mark.size());
        }
    }
    return {static_cast<int32_t>(info.image_width), static_cast<int32_t>(info.image_height), orientation_of(exif, xmp)};
}

void decode_jpeg(Bytes file, const UnslothImageHeader& header, uint8_t* rgb) {
    Opened opened;
    open(opened.decoder, file);
    std::vector<uint8_t> row(static_cast<std::size_t>(header.width) * 4);
    if (!read_pixels(opened.decoder, rgb, row.data(), header.width)) refuse(opened.decoder);
}

}  // namespace unsloth::images::codecs
