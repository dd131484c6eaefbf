// WebP by libwebp: stills, lossy and lossless.
#include <webp/decode.h>

#include <vector>

#include "images/codecs/codecs.h"

namespace unsloth::images::codecs {
namespace {

[[noreturn]] void refuse(VP8StatusCode status) {
    switch (status) {
        case VP8_STATUS_OUT_OF_MEMORY:
            throw std::bad_alloc();
        case VP8_STATUS_NOT_ENOUGH_DATA:
            throw Refused(unsloth_image_damaged, "is a WebP file that is cut off");
        default:
            throw Refused(unsloth_image_damaged, "is a damaged WebP file");
    }
}

WebPBitstreamFeatures features_of(Bytes file) {
    WebPBitstreamFeatures features;
    if (const VP8StatusCode status = WebPGetFeatures(file.data(), file.size(), &features); status != VP8_STATUS_OK)
        refuse(status);
    if (features.has_animation != 0)
        throw Refused(unsloth_image_unsupported, "is an animated WebP file: save the picture that is meant");
    return features;
}

}  // namespace

bool is_webp(Bytes file) {
    return begins_with(file, "RIFF") && begins_with(part_of(file, 8, 4), "WEBP");
}

UnslothImageHeader webp_header(Bytes file) {
    const WebPBitstreamFeatures features = features_of(file);
    Bytes exif;
    std::string_view xmp;
    constexpr std::size_t riff = 12, frame = 8;  // a chunk's name and length
    for (std::size_t at = riff; at < file.size() && file.size() - at >= frame;) {
        const std::size_t length = little_endian(file.data() + at + 4, 4);
        const std::string_view name = text_of(file).substr(at, 4);
        const Bytes data = part_of(file, at + frame, length);
        if (name == "EXIF") exif = data;
        if (name == "XMP ") xmp = text_of(data);
        at += frame + length + length % 2;
    }
    return {features.width, features.height, orientation_of(exif, xmp)};
}

void decode_webp(Bytes file, const UnslothImageHeader& header, uint8_t* rgb) {
    const WebPBitstreamFeatures features = features_of(file);
    const auto pixels = static_cast<std::size_t>(header.width) * static_cast<std::size_t>(header.height);
    std::vector<uint8_t> rgba;
    WebPDecoderConfig config;
    if (WebPInitDecoderConfig(&config) == 0) throw std::runtime_error("libwebp is of another version");
    const bool opaque = features.has_alpha == 0;
    if (!opaque) rgba.resize(pixels * 4);
    config.output.colorspace = opaque ? MODE_RGB : MODE_RGBA;
    config.output.is_external_memory = 1;
    config.output.u.RGBA = {opaque ? rgb : rgba.data(), header.width * (opaque ? 3 : 4), pixels * (opaque ? 3 : 4)};
    if (const VP8StatusCode status = WebPDecode(file.data(), file.size(), &config); status != VP8_STATUS_OK)
        refuse(status);
    for (std::size_t i = 0; i < rgba.size(); i += 4, rgb += 3) lay_on_white(&rgba[i], rgba[i + 3], rgb);
}

}  // namespace unsloth::images::codecs
