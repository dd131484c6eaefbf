#include "unsloth/images/picture.h"

#include <algorithm>
#include <utility>

#include "images/resample.h"
#include "unsloth/core/check.h"

namespace unsloth::images {
namespace {

/// [3][side][side] of a square to its place among the pixels.
void put_square(const uint8_t* from, int32_t left, int32_t top, int32_t side, Image& image) {
    const std::size_t plane = static_cast<std::size_t>(side) * static_cast<std::size_t>(side);
    for (int32_t y = 0; y < side; ++y)
        for (int32_t x = 0; x < side; ++x, ++from) {
            const int64_t pixel = int64_t{top + y} * image.size.width + left + x;
            uint8_t* const to = image.rgb.data() + 3 * pixel;
            for (std::size_t c = 0; c < 3; ++c) to[c] = from[c * plane];
        }
}

}  // namespace

Image picture_of(const Processor& processor, const Grid& grid, std::span<const uint8_t> values, int32_t longest) {
    const bool tiles = processor.layout == Layout::tiles;
    const int32_t side = tiles ? processor.tile : processor.patch, merge = tiles ? 1 : processor.merge;
    const auto square = std::size_t{3} * static_cast<std::size_t>(side) * static_cast<std::size_t>(side);
    Image image{{grid.width * side, grid.height * side}, {}};
    UNSLOTH_CHECK(
        grid.width > 0 && grid.height > 0 && longest > 0 && grid.width % merge == 0 && grid.height % merge == 0 &&
            values.size() == square * static_cast<std::size_t>(grid.width) * static_cast<std::size_t>(grid.height),
        values.size(), " bytes of ", grid.width, " x ", grid.height, " squares");
    image.rgb.resize(values.size());
    const uint8_t* from = values.data();
    for (int32_t y = 0; y < grid.height; y += merge)
        for (int32_t x = 0; x < grid.width; x += merge)
            for (int32_t i = 0; i < merge; ++i)
                for (int32_t j = 0; j < merge; ++j, from += square)
                    put_square(from, (x + j) * side, (y + i) * side, side, image);
    const int32_t most = std::max(image.size.width, image.size.height);
    if (most <= longest) return image;
    const auto shrunk = [&](int32_t of) {
        return std::max(1, static_cast<int32_t>((int64_t{of} * longest + most / 2) / most));
    };
    const Size size{shrunk(image.size.width), shrunk(image.size.height)};
    return resize(std::move(image), size, Filter::bilinear);
}

}  // namespace unsloth::images
