// Image files: their headers, their pixels, and what a model's processor makes of them.
// parser: src/images/*.cpp src/images/codecs/*.cpp
// seeds: tests/golden/images/images
// options: -max_len=16384
#include "fuzz/support.h"
#include "images/codec_library.h"
#include "unsloth/images/processor.h"

namespace {

using namespace unsloth;

void process(images::Image image) {
    images::Processor patches, tiles;
    patches.most_pixels = 1 << 14;
    tiles.layout = images::Layout::tiles;
    tiles.tile = 28;
    for (const images::Processor& processor : {patches, tiles})
        fuzz::accepts([&] {
            const images::Grid grid = images::grid_of(processor, image.size);
            const images::Pixels pixels = images::process(processor, image);
            fuzz::require(pixels.grid == grid, "sizes alone give another grid");
            const int side = processor.layout == images::Layout::tiles ? processor.tile : processor.patch;
            fuzz::require(pixels.values.size() == static_cast<std::size_t>(grid.height * grid.width * side * side * 3),
                          "the pixels are not those of the grid");
        });
}

}  // namespace

// The library's functions themselves, for it is linked here: the program opens it by name.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
    UnslothImageHeader header{};
    char why[256] = {};
    if (unsloth_image_header(data, size, &header, why, sizeof why) != unsloth_image_read) {
        fuzz::require(why[0] != '\0', "refused without a reason");
        return 0;
    }
    fuzz::require(header.width > 0 && header.height > 0 && header.orientation >= 1 && header.orientation <= 8,
                  "a header out of bounds");
    constexpr int64_t most_pixels = 1 << 18;  // larger ones only take time
    if (int64_t{header.width} * header.height > most_pixels) return 0;
    images::Image image{{header.width, header.height}, {}};
    image.rgb.resize(static_cast<std::size_t>(header.width) * static_cast<std::size_t>(header.height) * 3);
    if (unsloth_image_decode(data, size, &header, image.rgb.data(), why, sizeof why) == unsloth_image_read)
        process(std::move(image));
    return 0;
}
