// The memory that libraries take in addition to a plan's arenas.
#include <algorithm>

#include "unsloth/model/decoder_layer.h"
#include "unsloth/model/loader.h"
#include "unsloth/ops/experts.h"
#include "unsloth/ops/range_attention.h"

namespace unsloth::model {

/// Of a tower over patches, whose ranges are at most those of the whole image.
int64_t ModelPlan::tower_library_bytes() const {
    const spec::VisionSpec& tower = *spec().vision;
    const int64_t patches = request_.sizes.patches;
    return ops::range_attention_library_bytes(
        request_.device, request_.dtype,
        {.heads = tower.num_heads, .kv_heads = tower.num_heads, .head_dim = tower.head_dim()}, patches, patches,
        /*backward=*/trains_tower(), request_.sizes.deterministic);
}

int64_t ModelPlan::outside_arenas() const {
    int64_t bytes = memory::outside_arenas_bytes + (spec().experts ? ops::grouped_library_bytes(request_.device) : 0);
    if (sees_images() && spec().vision->tiles) {
        const int64_t rows = spec().vision->tiles->tower_rows(), most = request_.sizes.image_rows(spec());
        const ops::AttentionShape tower{.heads = spec().vision->num_heads,
                                        .kv_heads = spec().vision->num_heads,
                                        .head_dim = spec().vision->head_dim()};
        const auto library = [&](const ops::AttentionShape& shape, int64_t queries, int64_t keys, bool backward) {
            return ops::range_attention_library_bytes(request_.device, request_.dtype, shape, queries, keys, backward,
                                                      request_.sizes.deterministic);
        };
        bytes += std::max(library(tower, rows, rows, trains_tower()),
                          library(attention_shape(spec(), 0), request_.sizes.longest, most, request_.trains));
    } else if (sees_images())
        bytes += tower_library_bytes();
    return bytes;
}

}  // namespace unsloth::model
