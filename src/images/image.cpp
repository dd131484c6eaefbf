#include "unsloth/images/image.h"

#include <utility>

#include "images/codec_library.h"
#include "unsloth/core/error.h"
#include "unsloth/core/shared_library.h"

namespace unsloth::images {
namespace {

/// The functions of libunsloth_images.so.
struct CodecLibrary {
    CodecLibrary() {
        file.find(version, "unsloth_images_version");
        file.find(header, "unsloth_image_header");
        file.find(decode, "unsloth_image_decode");
    }

    SharedLibrary file{"libunsloth_images.so"};
    decltype(&unsloth_images_version) version = nullptr;
    decltype(&unsloth_image_header) header = nullptr;
    decltype(&unsloth_image_decode) decode = nullptr;
};

const CodecLibrary& maybe_library() {
    static const CodecLibrary opened;
    return opened;
}

const CodecLibrary& library() {
    const CodecLibrary& opened = maybe_library();
    if (!opened.file.missing().empty())
        throw Error("image.no-reader", cat("the library that reads images cannot be opened: ", opened.file.missing()),
                    "It is built where libjpeg-turbo, libpng and libwebp are installed: run scripts/setup.sh and build "
                    "again.");
    return opened;
}

const uint8_t* data_of(std::span<const std::byte> file) {
    return reinterpret_cast<const uint8_t*>(file.data());
}

void require_read(int status, const char* why) {
    switch (status) {
        case unsloth_image_read:
            return;
        case unsloth_image_unknown:
            throw Error("image.unknown-type", cat("the image ", why), "JPEG, PNG and WebP files are read.");
        case unsloth_image_unsupported:
            throw Error("image.unsupported", cat("the image ", why));
        default:
            throw Error("image.damaged", cat("the image ", why), "Fetch the file again, or leave the row out.");
    }
}

void refuse_large(const UnslothImageHeader& header) {
    const int64_t pixels = int64_t{header.width} * header.height;
    if (header.width <= max_side && header.height <= max_side && pixels <= max_pixels) return;
    throw Error("image.too-large",
                cat("the image is ", header.width, " x ", header.height, " pixels; at most ", max_side, " a side and ",
                    max_pixels, " in all are decoded"),
                "Make it smaller: models see far fewer pixels.");
}

UnslothImageHeader header_of(std::span<const std::byte> file) {
    if (static_cast<int64_t>(file.size()) > max_file_bytes)
        throw Error("image.too-large",
                    cat("the image has ", file.size(), " bytes; at most ", max_file_bytes, " are read"),
                    "Save it smaller, or as JPEG or WebP.");
    UnslothImageHeader header{};
    char why[256] = {};
    require_read(library().header(data_of(file), file.size(), &header, why, sizeof why), why);
    if (header.width < 1 || header.height < 1) throw Error("image.damaged", "the image has no pixels");
    refuse_large(header);
    return header;
}

bool is_transposed(const UnslothImageHeader& header) {
    return header.orientation >= 5;
}

Size upright_size(const UnslothImageHeader& header) {
    return is_transposed(header) ? Size{header.height, header.width} : Size{header.width, header.height};
}

/// Turns the stored pixels as EXIF says: 1 to 4 keep rows as rows (mirrored, turned by 180 degrees, upside down), 5 to
/// 8 make columns of them.
Image upright(Image stored, const UnslothImageHeader& header) {
    if (header.orientation == 1) return stored;
    const int32_t width = header.width, height = header.height, way = header.orientation;
    const bool from_right = way == 2 || way == 3 || way == 7 || way == 8;
    const bool from_below = way == 3 || way == 4 || way == 6 || way == 7;
    Image turned{upright_size(header), std::vector<uint8_t>(stored.rgb.size())};
    uint8_t* to = turned.rgb.data();
    for (int32_t y = 0; y < turned.size.height; ++y)
        for (int32_t x = 0; x < turned.size.width; ++x, to += 3) {
            const int32_t along = is_transposed(header) ? y : x, across = is_transposed(header) ? x : y;
            const int32_t column = from_right ? width - 1 - along : along;
            const int32_t row = from_below ? height - 1 - across : across;
            const uint8_t* const from = &stored.rgb[(static_cast<std::size_t>(row) * static_cast<std::size_t>(width) +
                                                     static_cast<std::size_t>(column)) *
                                                    3];
            for (int c = 0; c < 3; ++c) to[c] = from[c];
        }
    return turned;
}

}  // namespace

Size read_size(std::span<const std::byte> file) {
    return upright_size(header_of(file));
}

Image decode(std::span<const std::byte> file) {
    const UnslothImageHeader header = header_of(file);
    Image stored{{header.width, header.height}, {}};
    stored.rgb.resize(static_cast<std::size_t>(header.width) * static_cast<std::size_t>(header.height) * 3);
    char why[256] = {};
    require_read(library().decode(data_of(file), file.size(), &header, stored.rgb.data(), why, sizeof why), why);
    return upright(std::move(stored), header);
}

std::string decoder_version() {
    const CodecLibrary& opened = maybe_library();
    return opened.file.missing().empty() ? opened.version() : "";
}

}  // namespace unsloth::images
