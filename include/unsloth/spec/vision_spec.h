// The tower of a model that sees images: a transformer over patches, whose outputs replace the embeddings of image
// tokens. A token's patches, a square of merge x merge, come one after another.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace unsloth::spec {

/// mllama's form of a tower. An image is a few tiles of one size; those that it lacks are padding, and are computed
/// too. Tokens do not become features: layers of the text model read them (LayerSpec::crosses).
struct TilesSpec {
    int64_t most = 0;             ///< tiles of an image, with those of padding
    int64_t side = 0;             ///< patches of a tile's side
    int64_t global_depth = 0;     ///< layers after the others, whose outputs are multiplied by gates
    std::vector<int64_t> chosen;  ///< of the others those whose outputs are part of the features
    std::vector<std::array<int32_t, 2>> arrangements;  ///< rows and columns of tiles; number i has the id i + 1

    int64_t patches() const { return side * side; }
    int64_t rows() const { return patches() + 1; }  ///< of a tile: its class embedding first
    int64_t features() const { return most * rows(); }
    /// Rows of the tower: each tile has zeros up to a multiple of 8, and these are attended to.
    int64_t tower_rows() const { return most * ((rows() + 7) / 8 * 8); }
    /// The id of `height` rows and `width` columns of tiles; CheckError where there is none.
    int64_t arrangement(int64_t height, int64_t width) const;
};

struct VisionSpec {
    static constexpr int64_t channels = 3;
    static constexpr int64_t frames = 2;  ///< a patch's weights are of two; those of an image are equal

    int64_t hidden_size = 0;        ///< C
    int64_t intermediate_size = 0;  ///< F of its MLPs
    int64_t depth = 0;
    int64_t num_heads = 0;
    int64_t out_size = 0;             ///< of a token's features: the text model's hidden_size
    int64_t patch_size = 0;           ///< pixels of a patch's side
    int64_t merge = 0;                ///< patches of a token's side
    bool rms_norm = false;            ///< else LayerNorm
    bool gated_mlp = false;           ///< down(silu(gate) * up), else fc2(gelu_tanh(fc1)); all have biases
    bool patch_bias = false;          ///< of the product that makes a patch's first values
    int64_t position_side = 0;        ///< learned positions are a square with this side; 0: there are none
    int64_t window = 0;               ///< tokens of a window's side, within which patches attend; 0: to the whole image
    std::vector<int64_t> unwindowed;  ///< layers that attend to the whole image all the same
    /// Layers whose outputs are merged too: number i is added to the image tokens after the text model's layer i.
    std::vector<int64_t> deepstack;
    double norm_eps = 1e-6;
    double rope_theta = 10000.0;
    std::optional<TilesSpec> tiles;
    int32_t image_token = -1;                         ///< the id at the positions of an image's tokens
    std::array<double, 3> image_mean{}, image_std{};  ///< of pixels from 0 to 1, by channel

    int64_t head_dim() const { return hidden_size / num_heads; }
    /// Inner values of an MLP as it is computed. Those of a gated one begin rows of their own: 16 bytes of 16 bits.
    int64_t inner_size() const { return gated_mlp ? (intermediate_size + 7) / 8 * 8 : intermediate_size; }
    int64_t patch_bytes() const { return channels * patch_size * patch_size; }
    int64_t merged_size() const { return merge * merge * hidden_size; }  ///< values of a token's patches
    /// Image tokens of this many patches, or of this many tiles.
    int64_t tokens_of(int64_t patches) const { return tiles ? 1 : patches / (merge * merge); }
    bool attends_in_windows(int64_t layer) const;
};

/// Operations, multiply-adds times two, of a forward pass over an image of `patches` patches, all of them in whole
/// windows; with tiles of any image.
double vision_operations(const VisionSpec& spec, int64_t patches);

/// A tensor of the tower: its name below the tower's module (with tiles: below the model), and its shape.
struct VisionTensor {
    std::string name;
    std::vector<int64_t> shape;
};
/// Whether it is the weight of a linear, which may be quantised.
bool holds_products(const VisionTensor& tensor);
/// All of them, in the order of a forward pass.
std::vector<VisionTensor> vision_tensors(const VisionSpec& spec);

/// The order in which an image's patches pass the tower, and what follows from it.
struct PatchOrder {
    std::vector<int32_t> patches;        ///< [P] numbers in the order of data::Image
    std::vector<int32_t> rows, columns;  ///< [P] of each, in this order, its position in the image
    std::vector<int32_t> tokens;         ///< [P / merge²] numbers of the image's tokens in this order
    std::vector<int32_t> windows;  ///< offsets of the windows' patches, from 0 to P; without windows of the whole image
};
PatchOrder patch_order(const VisionSpec& spec, int64_t grid_h, int64_t grid_w);

/// Of each patch the four learned positions that it is interpolated from, and their shares.
struct PatchPositions {
    std::vector<int32_t> index;  ///< [P, 4]
    std::vector<float> share;    ///< [P, 4]
};
PatchPositions patch_positions(const VisionSpec& spec, const PatchOrder& order, int64_t grid_h, int64_t grid_w);

}  // namespace unsloth::spec
