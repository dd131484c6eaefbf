#include "unsloth/spec/vision_spec.h"

#include <algorithm>
#include <cmath>

#include "unsloth/core/error.h"

namespace unsloth::spec {
namespace {

/// A tower over tiles, with the projection to the text model's size.
class TilesTable {
  public:
    TilesTable(const VisionSpec& spec, const TilesSpec& tiles) : spec_(spec), tiles_(tiles) {}

    std::vector<VisionTensor> all() {
        const int64_t c = spec_.hidden_size, p = spec_.patch_size, rows = tiles_.rows();
        const auto ids = static_cast<int64_t>(tiles_.arrangements.size()) + 1;
        add("class_embedding", {c});
        add("patch_embedding.weight", {c, VisionSpec::channels, p, p});
        add("gated_positional_embedding.embedding", {rows, c});
        add("gated_positional_embedding.gate", {1});
        add("gated_positional_embedding.tile_embedding.weight", {ids, tiles_.most * rows * c});
        for (const char* const where : {"pre", "post"}) {
            add(cat(where, "_tile_positional_embedding.embedding.weight"), {ids, tiles_.most * c});
            add(cat(where, "_tile_positional_embedding.gate"), {1});
        }
        norm("layernorm_pre"), norm("layernorm_post");
        for (int64_t layer = 0; layer < spec_.depth; ++layer) block(cat("transformer.layers.", layer, "."));
        for (int64_t layer = 0; layer < tiles_.global_depth; ++layer) {
            const std::string block = cat("global_transformer.layers.", layer, ".");
            this->block(block);
            add(block + "gate_attn", {1});
            add(block + "gate_ffn", {1});
        }
        const int64_t features = c * (1 + static_cast<int64_t>(tiles_.chosen.size()));
        tensors_.push_back({"multi_modal_projector.weight", {spec_.out_size, features}});
        tensors_.push_back({"multi_modal_projector.bias", {spec_.out_size}});
        return std::move(tensors_);
    }

  private:
    void add(const std::string& name, std::vector<int64_t> shape) {
        tensors_.push_back({"vision_model." + name, std::move(shape)});
    }
    void norm(const std::string& module) {
        add(module + ".weight", {spec_.hidden_size});
        add(module + ".bias", {spec_.hidden_size});
    }
    void block(const std::string& block) {
        const int64_t c = spec_.hidden_size, f = spec_.intermediate_size;
        norm(block + "input_layernorm");
        for (const char* const name : {"q", "k", "v", "o"}) add(cat(block, "self_attn.", name, "_proj.weight"), {c, c});
        norm(block + "post_attention_layernorm");
        add(block + "mlp.fc1.weight", {f, c});
        add(block + "mlp.fc1.bias", {f});
        add(block + "mlp.fc2.weight", {c, f});
        add(block + "mlp.fc2.bias", {c});
    }

    const VisionSpec& spec_;
    const TilesSpec& tiles_;
    std::vector<VisionTensor> tensors_;
};

class VisionTable {
  public:
    explicit VisionTable(const VisionSpec& spec) : spec_(spec) {}

    void linear(const std::string& module, int64_t n, int64_t k) {
        tensors_.push_back({module + ".weight", {n, k}});
        tensors_.push_back({module + ".bias", {n}});
    }
    void norm(const std::string& module, int64_t size) {
        tensors_.push_back({module + ".weight", {size}});
        if (!spec_.rms_norm) tensors_.push_back({module + ".bias", {size}});
    }
    void block(int64_t layer) {
        const std::string block = cat("blocks.", layer, ".");
        const int64_t c = spec_.hidden_size, f = spec_.intermediate_size;
        norm(block + "norm1", c);
        linear(block + "attn.qkv", 3 * c, c);
        linear(block + "attn.proj", c, c);
        norm(block + "norm2", c);
        if (spec_.gated_mlp) {
            linear(block + "mlp.gate_proj", f, c);
            linear(block + "mlp.up_proj", f, c);
            linear(block + "mlp.down_proj", c, f);
        } else {
            linear(block + "mlp.linear_fc1", f, c);
            linear(block + "mlp.linear_fc2", c, f);
        }
    }
    /// `size`: of what its norm takes at a time.
    void merger(const std::string& module, int64_t size) {
        const int64_t m = spec_.merged_size();
        const bool numbered = spec_.gated_mlp;  // Qwen2.5's
        norm(module + (numbered ? ".ln_q" : ".norm"), size);
        linear(module + (numbered ? ".mlp.0" : ".linear_fc1"), m, m);
        linear(module + (numbered ? ".mlp.2" : ".linear_fc2"), spec_.out_size, m);
    }
    std::vector<VisionTensor> all() {
        const int64_t c = spec_.hidden_size, p = spec_.patch_size;
        tensors_.push_back({"patch_embed.proj.weight", {c, VisionSpec::channels, VisionSpec::frames, p, p}});
        if (spec_.patch_bias) tensors_.push_back({"patch_embed.proj.bias", {c}});
        if (const int64_t side = spec_.position_side; side > 0)
            tensors_.push_back({"pos_embed.weight", {side * side, c}});
        for (int64_t layer = 0; layer < spec_.depth; ++layer) block(layer);
        merger("merger", c);
        for (std::size_t i = 0; i < spec_.deepstack.size(); ++i)
            merger(cat("deepstack_merger_list.", i), spec_.merged_size());
        return std::move(tensors_);
    }

  private:
    const VisionSpec& spec_;
    std::vector<VisionTensor> tensors_;
};

}  // namespace

bool VisionSpec::attends_in_windows(int64_t layer) const {
    return window > 0 && std::ranges::find(unwindowed, layer) == unwindowed.end();
}

double vision_operations(const VisionSpec& spec, int64_t patches) {
    double weights = 0;  // that each patch meets
    if (spec.tiles) {
        for (const VisionTensor& tensor : vision_tensors(spec))
            if (holds_products(tensor))
                weights += static_cast<double>(tensor.shape[0]) * static_cast<double>(tensor.shape[1]);
        const auto rows = static_cast<double>(spec.tiles->tower_rows()),
                   layers = static_cast<double>(spec.depth + spec.tiles->global_depth);
        return 2 * rows * (weights + 2 * layers * rows * static_cast<double>(spec.hidden_size));
    }
    for (const VisionTensor& tensor : vision_tensors(spec)) {
        if (tensor.shape.size() < 2 || tensor.name == "pos_embed.weight") continue;
        double size = 1;
        for (const int64_t side : tensor.shape) size *= static_cast<double>(side);
        const bool of_tokens = tensor.name.find("merger") != std::string::npos;
        weights += of_tokens ? size / static_cast<double>(spec.merge * spec.merge) : size;
    }
    const int64_t in_window = spec.window * spec.merge * spec.window * spec.merge;
    double keys = 0;  // of all layers
    for (int64_t layer = 0; layer < spec.depth; ++layer)
        keys += static_cast<double>(spec.attends_in_windows(layer) ? std::min(in_window, patches) : patches);
    return 2 * static_cast<double>(patches) * (weights + 2 * keys * static_cast<double>(spec.hidden_size));
}

int64_t TilesSpec::arrangement(int64_t height, int64_t width) const {
    const auto found =
        std::ranges::find(arrangements, std::array{static_cast<int32_t>(height), static_cast<int32_t>(width)});
    UNSLOTH_CHECK(found != arrangements.end(), "no arrangement of ", height, " x ", width, " tiles");
    return found - arrangements.begin() + 1;
}

bool holds_products(const VisionTensor& tensor) {
    const std::string_view name = tensor.name;
    return tensor.shape.size() == 2 && name != "pos_embed.weight" && name.find("embedding") == std::string_view::npos;
}

std::vector<VisionTensor> vision_tensors(const VisionSpec& spec) {
    if (spec.tiles) return TilesTable(spec, *spec.tiles).all();
    return VisionTable(spec).all();
}

PatchOrder patch_order(const VisionSpec& spec, int64_t grid_h, int64_t grid_w) {
    const int64_t m = spec.merge, h = grid_h / m, w = grid_w / m;  // tokens
    UNSLOTH_CHECK(h > 0 && w > 0 && h * m == grid_h && w * m == grid_w, "an image of ", grid_h, " x ", grid_w,
                  " patches, of which ", m, " x ", m, " are a token");
    const int64_t tall = spec.window > 0 ? spec.window : h, wide = spec.window > 0 ? spec.window : w;
    PatchOrder order;
    order.windows = {0};
    const auto add_token = [&](int64_t y, int64_t x) {
        order.tokens.push_back(static_cast<int32_t>(y * w + x));
        for (int64_t i = 0; i < m * m; ++i) {
            order.patches.push_back(static_cast<int32_t>((y * w + x) * m * m + i));
            order.rows.push_back(static_cast<int32_t>(y * m + i / m));
            order.columns.push_back(static_cast<int32_t>(x * m + i % m));
        }
    };
    for (int64_t top = 0; top < h; top += tall)
        for (int64_t left = 0; left < w; left += wide) {
            for (int64_t y = top; y < std::min(h, top + tall); ++y)
                for (int64_t x = left; x < std::min(w, left + wide); ++x) add_token(y, x);
            order.windows.push_back(static_cast<int32_t>(order.patches.size()));
        }
    return order;
}

PatchPositions patch_positions(const VisionSpec& spec, const PatchOrder& order, int64_t grid_h, int64_t grid_w) {
    const int64_t side = spec.position_side;
    struct Place {
        int32_t below, above;
        float share;  // of the one above
    };
    // As torch.linspace in fp32: from both ends to the middle.
    const auto places = [&](int64_t count) {
        std::vector<Place> all;
        const float last = static_cast<float>(side - 1), step = count > 1 ? last / static_cast<float>(count - 1) : 0.0F;
        for (int64_t i = 0; i < count; ++i) {
            const float at = i < count / 2 || count == 1 ? step * static_cast<float>(i)
                                                         : last - step * static_cast<float>(count - 1 - i);
            const auto below = static_cast<int32_t>(at);
            all.push_back({below, std::min(below + 1, static_cast<int32_t>(side - 1)), at - static_cast<float>(below)});
        }
        return all;
    };
    const std::vector<Place> rows = places(grid_h), columns = places(grid_w);
    const auto width = static_cast<int32_t>(side);
    PatchPositions positions;
    for (std::size_t i = 0; i < order.patches.size(); ++i) {
        const Place& y = rows[static_cast<std::size_t>(order.rows[i])];
        const Place& x = columns[static_cast<std::size_t>(order.columns[i])];
        for (const int32_t index : {y.below * width + x.below, y.below * width + x.above, y.above * width + x.below,
                                    y.above * width + x.above})
            positions.index.push_back(index);
        for (const float share :
             {(1 - y.share) * (1 - x.share), (1 - y.share) * x.share, y.share * (1 - x.share), y.share * x.share})
            positions.share.push_back(share);
    }
    return positions;
}

}  // namespace unsloth::spec
