// How an image is to be turned: EXIF's tag 0x0112, or XMP's tiff:Orientation.
#include "images/codecs/codecs.h"

namespace unsloth::images::codecs {
namespace {

constexpr std::string_view exif_mark{"Exif\0\0", 6};

/// 0: none.
uint32_t exif_orientation(Bytes exif) {
    if (begins_with(exif, exif_mark)) exif = exif.subspan(exif_mark.size());
    constexpr std::size_t header = 8, entry_bytes = 12;
    if (exif.size() < header) return 0;
    const bool little = begins_with(exif, "II"), big = begins_with(exif, "MM");
    if (!little && !big) return 0;
    const auto number = [&](std::size_t at, int count) {
        return little ? little_endian(exif.data() + at, count) : big_endian(exif.data() + at, count);
    };
    const std::size_t folder = number(4, 4);
    if (folder > exif.size() || exif.size() - folder < 2) return 0;
    const uint32_t entries = number(folder, 2);
    for (uint32_t i = 0; i < entries; ++i) {
        const std::size_t entry = folder + 2 + i * entry_bytes;
        if (exif.size() < entry_bytes || entry > exif.size() - entry_bytes) return 0;
        if (number(entry, 2) != 0x0112) continue;
        const uint32_t type = number(entry + 2, 2);
        constexpr uint32_t type_byte = 1, type_short = 3, type_long = 4;
        if (type == type_byte) return number(entry + 8, 1);
        if (type == type_short) return number(entry + 8, 2);
        return type == type_long ? number(entry + 8, 4) : 0;
    }
    return 0;
}

uint32_t xmp_orientation(std::string_view xmp) {
    constexpr std::string_view name = "tiff:Orientation";
    for (std::size_t at = xmp.find(name); at != std::string_view::npos; at = xmp.find(name, at + 1)) {
        std::string_view rest = xmp.substr(at + name.size());
        if (rest.starts_with("=\""))
            rest.remove_prefix(2);
        else if (rest.starts_with(">"))
            rest.remove_prefix(1);
        else
            continue;
        if (!rest.empty() && rest[0] >= '0' && rest[0] <= '9') return static_cast<uint32_t>(rest[0] - '0');
    }
    return 0;
}

}  // namespace

int orientation_of(Bytes exif, std::string_view xmp) {
    uint32_t found = exif_orientation(exif);
    if (found == 0) found = xmp_orientation(xmp);
    return found >= 1 && found <= 8 ? static_cast<int>(found) : 1;
}

}  // namespace unsloth::images::codecs
