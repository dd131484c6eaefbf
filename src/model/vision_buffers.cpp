// The buffers of a tower over images.
#include <algorithm>

#include "model/activation_list.h"

namespace unsloth::model {

/// An image has the same buffers whatever its tiles. Its features are there as long as layers read them.
void ActivationList::tiles(const spec::VisionSpec& tower, const spec::TilesSpec& tiles, VisionBuffers& b) {
    const int64_t rows = tiles.tower_rows(), c = tower.hidden_size;
    alike_ = 1;
    const uint8_t alone = memory::tower | (sizes_.trains_tower ? memory::backward : 0);
    const auto buffer = [&](const char* name, int64_t count, at::ScalarType dtype, at::Tensor& tensor) {
        add({"tower", name, {count}, dtype, alone}, tensor);
    };
    buffer("pixels", tiles.most * tiles.patches() * tower.patch_bytes(), at::kByte, b.bytes);
    if (!sizes_.trains_tower) buffer("patches", rows * c, dtype_, b.x);  // else they are in the blocks' inputs
    buffer("normed patches", rows * c, dtype_, b.h);
    buffer("inner values of patches",
           std::max(rows * std::max(3 * c, tower.intermediate_size), tiles.patches() * tower.patch_bytes()), dtype_,
           b.wide);
    buffer("learned positions", rows * 4, at::kInt, b.index);
    buffer("their shares", rows * 4, at::kFloat, b.share);
    buffer("layers' outputs", tiles.features() * c * (1 + static_cast<int64_t>(tiles.chosen.size())), dtype_,
           b.stacked);
    own({"tower",
         "image features",
         {sizes_.image_tokens * tiles.features(), weights::row_stride(spec_.hidden_size + layout_[Group::cross_kv].r)},
         dtype_,
         memory::always},
        b.features);
    if (sizes_.tower_rank > 0) buffer("adapters' values of patches", rows * sizes_.tower_rank, dtype_, b.u);
    if (!sizes_.trains_tower) return;
    tower_backward(tower,
                   {.rows = rows,
                    .kept = sizes_.image_tokens * rows,
                    .slots = tower.depth + 1 + tiles.global_depth + 1,
                    .narrow = c},
                   b);
    own({"tower",
         "gradient of image features",
         {sizes_.image_tokens * tiles.features(), tower.out_size},
         dtype_,
         memory::backward},
        b.backward.dfeatures);
    add({"tower",
         "gradient of the projector's A",
         {sizes_.tower_rank * c * (1 + static_cast<int64_t>(tiles.chosen.size()))},
         at::kFloat,
         memory::backward},
        b.backward.da);
}

/// Of tokens and features where layers read these.
void ActivationList::sight(TokenBuffers& b) {
    const int64_t rows = sizes_.image_rows(spec_);
    const auto of_features = [&](const char* name, at::Tensor& tensor) {
        own({"tokens", name, {rows}, at::kInt, memory::always}, tensor);
    };
    const auto of_tokens = [&](const char* name, at::Tensor& tensor) {
        own({"tokens", name, {sizes_.tokens}, at::kFloat, memory::always, Rows::tokens}, tensor);
    };
    if (sizes_.dropout) {
        of_features("rows of features", b.feature_row_S);
        of_features("offsets of features", b.feature_offset_S);
    }
    if (sizes_.adapters > 0) of_features("adapters of features", b.feature_adapter_S);
    of_tokens("tokens that see images", b.attends_T);
    of_tokens("tokens behind images", b.adds_T);
}

void ActivationList::vision(const spec::VisionSpec& tower, VisionBuffers& b) {
    if (tower.tiles) return tiles(tower, *tower.tiles, b);
    const int64_t patches = sizes_.patches, c = tower.hidden_size, f = tower.inner_size();
    const int64_t merge = tower.merge * tower.merge, tokens = tower.tokens_of(patches);
    alike_ = 1;
    const uint8_t again = sizes_.trains_tower ? memory::backward : 0, alone = memory::tower | again,
                  until_read = memory::tower | memory::forward | again;
    const auto buffer = [&](const char* name, int64_t count, at::ScalarType dtype, at::Tensor& tensor) {
        add({"tower", name, {count}, dtype, alone}, tensor);
    };
    buffer("pixels", patches * tower.patch_bytes(), at::kByte, b.bytes);
    buffer("patches", patches * c, dtype_, b.x);
    // A token's output may be larger than the patches that it is made of.
    const int64_t narrow = std::max(c, (tower.out_size + merge - 1) / merge);
    buffer("normed patches", patches * (tower.gated_mlp ? std::max(narrow, f) : narrow), dtype_, b.h);
    const int64_t inner = (tower.gated_mlp ? 2 : 1) * f, values = spec::VisionSpec::frames * tower.patch_bytes();
    buffer("inner values of patches", patches * std::max({3 * c, inner, values}), dtype_, b.wide);
    if (tower.rms_norm) buffer("rstd of patches", patches, at::kFloat, b.rstd);
    if (tower.position_side > 0) {
        buffer("learned positions", patches * 4, at::kInt, b.index);
        buffer("their shares", patches * 4, at::kFloat, b.share);
    }
    buffer("rows and columns", patches * 2, at::kInt, b.positions);
    buffer("cos of patches", patches * tower.head_dim() / 2, at::kFloat, b.cos);
    buffer("sin of patches", patches * tower.head_dim() / 2, at::kFloat, b.sin);
    buffer("tokens of patches", tokens, at::kInt, b.tokens);
    if (sizes_.tower_rank > 0) buffer("adapters' values of patches", patches * sizes_.tower_rank, dtype_, b.u);
    add({"tower", "image features", {sizes_.image_tokens, tower.out_size}, dtype_, until_read}, b.features);
    b.deepstack.resize(tower.deepstack.size());
    for (std::size_t i = 0; i < b.deepstack.size(); ++i)
        own({"tower",
             Name("image features after", Name::Of::layer, static_cast<int64_t>(i)),
             {sizes_.image_tokens, tower.out_size},
             dtype_,
             until_read},
            b.deepstack[i]);
    if (sizes_.trains_tower)
        tower_backward(
            tower, {.rows = patches, .kept = sizes_.image_tokens * merge, .slots = tower.depth + 1, .narrow = narrow},
            b);
}

void ActivationList::tower_backward(const spec::VisionSpec& tower, const TowerRows& of, VisionBuffers& b) {
    const int64_t c = tower.hidden_size, f = tower.inner_size(), narrow = of.narrow;
    TowerBackward& back = b.backward;
    const auto buffer = [&](const char* name, int64_t columns, at::ScalarType dtype, at::Tensor& tensor) {
        add({"tower", name, {of.rows * columns}, dtype, memory::backward}, tensor);
    };
    own({"tower",
         "inputs of the tower's blocks",
         {of.slots, of.kept * c},
         dtype_,
         memory::tower | memory::forward | memory::head | memory::backward},
        back.inputs);
    buffer("gradient of patches", c, dtype_, back.g);
    buffer("patches between", c, dtype_, back.middle);
    buffer("normed patches between", c, dtype_, back.normed2);
    buffer("qkv of patches", 3 * c, dtype_, back.qkv);
    buffer("gradient of qkv of patches", std::max(3 * c, narrow), dtype_, back.dqkv);
    buffer("attended patches", c, dtype_, back.out);
    buffer("lse of patches", tower.num_heads, at::kFloat, back.lse);
    buffer("MLP's values of patches", std::max(f, narrow), dtype_, back.act);
    buffer("gradient of MLP's values of patches", std::max(f, narrow), dtype_, back.dact);
    buffer("gradient of normed patches", narrow, dtype_, back.dh);
    if (tower.rms_norm) buffer("first rstd of patches", 1, at::kFloat, back.rstd1);
    buffer("gradients of adapters' values", sizes_.tower_rank, dtype_, b.v);
}

}  // namespace unsloth::model
