// Sizes, patches and tiles.
#include "unsloth/images/processor.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "images/resample.h"
#include "unsloth/core/check.h"
#include "unsloth/core/error.h"

namespace unsloth::images {
namespace {

/// transformers' smart_resize(): whole squares of merged patches, within the bounds of pixels.
Size patched_size(const Processor& processor, Size size) {
    const double height = size.height, width = size.width, factor = processor.patch * processor.merge;
    constexpr double longest_ratio = 200;
    if (std::max(height, width) / std::min(height, width) > longest_ratio)
        throw Error("image.unsupported",
                    cat("the image is ", size.width, " x ", size.height,
                        " pixels: the model's processor takes no side that is more than 200 times the other"),
                    "Cut it, or leave the row out.");
    const auto most = static_cast<double>(processor.most_pixels), least = static_cast<double>(processor.least_pixels);
    double new_height = std::nearbyint(height / factor) * factor, new_width = std::nearbyint(width / factor) * factor;
    if (new_height * new_width > most) {
        const double shrink = std::sqrt(height * width / most);
        new_height = std::max(factor, std::floor(height / shrink / factor) * factor);
        new_width = std::max(factor, std::floor(width / shrink / factor) * factor);
    } else if (new_height * new_width < least) {
        const double grow = std::sqrt(least / (height * width));
        new_height = std::ceil(height * grow / factor) * factor;
        new_width = std::ceil(width * grow / factor) * factor;
    }
    return {static_cast<int32_t>(new_width), static_cast<int32_t>(new_height)};
}

/// transformers' get_optimal_tiled_canvas(): the arrangement that enlarges least, else shrinks least; of several the
/// smallest. transformers numbers the arrangements by height, then by width.
Grid tiling_of(const Processor& processor, Size size) {
    Grid best;
    double best_scale = 0;
    int32_t id = 0;
    for (int32_t height = 1; height <= processor.most_tiles; ++height)
        for (int32_t width = 1; width * height <= processor.most_tiles; ++width) {
            ++id;
            const double tile = processor.tile;
            const double scale = std::min(height * tile / size.height, width * tile / size.width);
            const bool better = best.height == 0 || (scale >= 1 ? best_scale < 1 || scale < best_scale
                                                                : best_scale < 1 && scale > best_scale);
            if (better || (scale == best_scale && height * width < best.height * best.width)) {
                best = {height, width, id};
                best_scale = scale;
            }
        }
    return best;
}

/// transformers' get_image_size_fit_to_canvas().
Size fitted_size(const Processor& processor, Size size, const Grid& grid) {
    const int32_t tile = processor.tile;
    const int32_t most_width = std::clamp(size.width, tile, grid.width * tile);
    const int32_t most_height = std::clamp(size.height, tile, grid.height * tile);
    const double by_height = static_cast<double>(most_height) / size.height;
    const double by_width = static_cast<double>(most_width) / size.width;
    const auto scaled = [](int32_t side, double scale, int32_t most) {
        return std::min(std::max(static_cast<int32_t>(std::floor(side * scale)), 1), most);
    };
    if (by_width < by_height) return {most_width, scaled(size.height, by_width, most_height)};
    return {scaled(size.width, by_height, most_width), most_height};
}

/// Copies the square of `side` pixels at (left, top) as planes of its channels. Pixels beyond the image are 0.
void copy_square(const Image& image, int32_t left, int32_t top, int32_t side, uint8_t* to) {
    const auto plane = static_cast<std::size_t>(side) * static_cast<std::size_t>(side);
    const int32_t rows = std::clamp(image.size.height - top, 0, side);
    const int32_t columns = std::clamp(image.size.width - left, 0, side);
    for (int32_t y = 0; y < rows; ++y) {
        const uint8_t* from =
            image.rgb.data() + (static_cast<std::size_t>(top + y) * static_cast<std::size_t>(image.size.width) +
                                static_cast<std::size_t>(left)) *
                                   3;
        uint8_t* row = to + static_cast<std::size_t>(y) * static_cast<std::size_t>(side);
        for (int32_t x = 0; x < columns; ++x, from += 3, ++row)
            for (std::size_t c = 0; c < 3; ++c) row[c * plane] = from[c];
    }
}

/// For an image of more than shrink_to pixels, the size with about that many pixels; for others their own size.
Size shrunk_size(const Processor& processor, Size size) {
    const double pixels = static_cast<double>(size.width) * size.height,
                 most = static_cast<double>(processor.shrink_to);
    if (processor.shrink_to == 0 || pixels <= most) return size;
    const double factor = std::sqrt(most / pixels);
    const auto scaled = [&](int32_t side) { return std::max(static_cast<int32_t>(side * factor), 1); };
    return {scaled(size.width), scaled(size.height)};
}

}  // namespace

Grid grid_of(const Processor& processor, Size size) {
    UNSLOTH_CHECK(size.width > 0 && size.height > 0, "an image of ", size.width, " x ", size.height);
    size = shrunk_size(processor, size);
    if (processor.layout == Layout::tiles) return tiling_of(processor, size);
    const Size resized = patched_size(processor, size);
    return {resized.height / processor.patch, resized.width / processor.patch, 0};
}

int64_t tokens_of(const Processor& processor, const Grid& grid) {
    if (processor.layout == Layout::tiles) return 1;
    return int64_t{grid.height} * grid.width / (processor.merge * processor.merge);
}

Pixels process(const Processor& processor, Image image) {
    Pixels pixels{grid_of(processor, image.size), {}};
    const Grid& grid = pixels.grid;
    const Size shrunk = shrunk_size(processor, image.size);
    if (shrunk.width != image.size.width) image = resize(std::move(image), shrunk, Filter::bicubic);
    const bool tiles = processor.layout == Layout::tiles;
    const int32_t side = tiles ? processor.tile : processor.patch, merge = tiles ? 1 : processor.merge;
    const Size size = tiles ? fitted_size(processor, image.size, grid) : Size{grid.width * side, grid.height * side};
    image = resize(std::move(image), size, processor.filter);
    const auto square = static_cast<std::size_t>(side) * static_cast<std::size_t>(side) * 3;
    pixels.values.resize(square * static_cast<std::size_t>(grid.height) * static_cast<std::size_t>(grid.width));
    uint8_t* to = pixels.values.data();
    for (int32_t y = 0; y < grid.height; y += merge)
        for (int32_t x = 0; x < grid.width; x += merge)
            for (int32_t i = 0; i < merge; ++i)
                for (int32_t j = 0; j < merge; ++j, to += square)
                    copy_square(image, (x + j) * side, (y + i) * side, side, to);
    return pixels;
}

std::array<std::array<float, 256>, 3> normalization(const Processor& processor) {
    std::array<std::array<float, 256>, 3> table{};
    for (std::size_t c = 0; c < 3; ++c)
        for (std::size_t byte = 0; byte < 256; ++byte) {
            const auto value = static_cast<float>(static_cast<double>(byte) * processor.rescale);
            table[c][byte] = (value - static_cast<float>(processor.mean[c])) / static_cast<float>(processor.std[c]);
        }
    return table;
}

}  // namespace unsloth::images
