// What a vision model sees of an image: resized, cut into patches or tiles, as its folder's processor says.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "unsloth/images/image.h"

namespace unsloth::images {

enum class Filter { bilinear, bicubic };

/// How an image becomes the tower's input.
enum class Layout {
    patches,  ///< Qwen: resized to whole squares of merged patches, within bounds of pixels
    tiles,    ///< mllama: fitted into a canvas of tiles, padded with 0
};

/// The settings of a model's image processor. What it does not name is as its class in transformers has it.
struct Processor {
    Layout layout = Layout::patches;
    Filter filter = Filter::bicubic;
    double rescale = 1.0 / 255;
    std::array<double, 3> mean{}, std{};
    int64_t shrink_to = 0;  ///< images of more pixels are made so small first, keeping their proportions; 0: none
    // Of patches.
    int32_t patch = 14, merge = 2;  ///< pixels of a patch's side; patches of a token's side
    int64_t least_pixels = 56 * 56, most_pixels = 28 * 28 * 1280;
    // Of tiles.
    int32_t tile = 224, most_tiles = 4;  ///< pixels of a tile's side; tiles of an image

    bool operator==(const Processor&) const = default;
};

/// Reads processor_config.json (its image_processor), else preprocessor_config.json; nothing where the folder has
/// neither, or the former without an image_processor. Input Error image.processor for another class, and for settings
/// that are not implemented, by name; json.* for what is no such file.
std::optional<Processor> read_processor(const std::filesystem::path& model_folder);

/// All settings in one line, for hashes and messages.
std::string describe(const Processor& processor);

/// The shape of what the tower gets of one image.
struct Grid {
    int32_t height = 0, width = 0;  ///< in patches, or in tiles
    int32_t aspect_id = 0;          ///< of tiles: transformers' number of the arrangement, from 1; else 0

    bool operator==(const Grid&) const = default;
};

/// Of an image of this size: no pixel is needed. Input Error image.unsupported for a side more than 200 times the other
/// (of patches).
Grid grid_of(const Processor& processor, Size size);
/// The place-holding tokens of one image in a row: of patches, one for each merged square; of tiles, one.
int64_t tokens_of(const Processor& processor, const Grid& grid);

/// What the tower sees, before its values are normalised. With patches [height * width][3][patch][patch], in the order
/// (row and column of merged squares, row and column within the square): a still image is its frame twice, and both are
/// equal, so that one is kept. With tiles [height * width][3][tile][tile], row by row.
struct Pixels {
    Grid grid;
    std::vector<uint8_t> values;
};

/// Resizes and cuts an image, byte for byte as transformers with its PIL backend and Pillow 13; with shrink_to after
/// Pillow's bicubic resize() to int(width * f) x int(height * f), f = sqrt(shrink_to / pixels). Input Error as
/// grid_of().
Pixels process(const Processor& processor, Image image);

/// The tower's input for each byte of each channel: (byte * rescale - mean) / std, rounded as transformers does.
std::array<std::array<float, 256>, 3> normalization(const Processor& processor);

}  // namespace unsloth::images
