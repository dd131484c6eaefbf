#include "model/workspace.h"

#include <algorithm>
#include <vector>

#include "unsloth/model/decoder_layer.h"
#include "unsloth/ops/dora.h"
#include "unsloth/ops/experts.h"
#include "unsloth/ops/gated_delta.h"
#include "unsloth/ops/gemm.h"
#include "unsloth/ops/norm.h"

namespace unsloth::model {
namespace {

/// The most that any layer's attention takes (layers differ in their window at most).
int64_t attention_bytes(const spec::ModelSpec& spec, const weights::LayerLayout& layout, const ActivationSizes& sizes,
                        at::ScalarType dtype, at::Device device) {
    // The tensors are columns of buffers that have an adapter's, too, or as many as the residual stream.
    const int64_t row = weights::row_stride(
        std::max(layout.has(Group::qkv) ? layout[Group::qkv].n : 0, spec.hidden_size) + layout.widest_rank());
    int64_t most = 0;
    std::vector<int64_t> seen;
    for (int64_t layer = 0; layer < spec.num_layers; ++layer) {
        const ops::AttentionShape shape = attention_shape(spec, layer);
        if (std::find(seen.begin(), seen.end(), shape.window) != seen.end()) continue;
        seen.push_back(shape.window);
        most = std::max(most, ops::attention_workspace(shape, dtype, device, sizes.deterministic, sizes.tokens,
                                                       sizes.segments, sizes.longest, sizes.training, sizes.keys, row));
    }
    return most;
}

/// Of layers with gated delta nets.
int64_t delta_bytes(const spec::ModelSpec& spec, const ActivationSizes& sizes, at::ScalarType dtype,
                    at::Device device) {
    if (!spec.delta) return 0;
    const spec::DeltaSpec& delta = *spec.delta;
    return std::max(ops::delta_rule_workspace({delta.key_heads, delta.value_heads, delta.key_dim, delta.value_dim},
                                              dtype, device, sizes.tokens, sizes.delta_segments(), sizes.training),
                    sizes.training ? ops::gated_norm_workspace(device, delta.value_dim) : 0);
}

/// Of the largest product: a group's with its adapters, or lm_head's.
int64_t products_workspace(const spec::ModelSpec& spec, const weights::LayerLayout& layout,
                           const ActivationSizes& sizes, const spec::RunPlan& run, at::ScalarType dtype,
                           at::Device device) {
    if (!device.is_cpu()) return ops::gemm_workspace(device);
    int64_t most = ops::gemm_cpu_workspace(dtype, run.head_tile, spec.vocab_size, spec.hidden_size);
    for (const Group g : layout.all_groups()) {
        const int64_t matrices = weights::is_of_experts(g) ? spec.experts->count : 1;
        most = std::max(most, ops::gemm_cpu_workspace(dtype, sizes.tokens, layout[g].n / matrices + layout[g].r,
                                                      layout[g].k + layout[g].r));
    }
    if (sizes.patches > 0 && spec.vision->tiles) {
        const spec::VisionSpec& tower = *spec.vision;
        const int64_t c = tower.hidden_size, rows = tower.tiles->tower_rows();
        const int64_t features = c * (1 + static_cast<int64_t>(tower.tiles->chosen.size()));
        const int64_t inner = std::max({3 * c, tower.intermediate_size, tower.patch_bytes()});
        const weights::MatrixGroup& keys = layout[Group::cross_kv];
        most = std::max({most, ops::gemm_cpu_workspace(dtype, rows, inner, c),
                         ops::gemm_cpu_workspace(dtype, rows, c, inner),
                         ops::gemm_cpu_workspace(dtype, rows, tower.out_size, features),
                         ops::gemm_cpu_workspace(dtype, sizes.image_rows(spec), keys.n + keys.r, keys.k + keys.r)});
        if (sizes.trains_tower)
            most = std::max({most, ops::gemm_cpu_workspace(dtype, rows, features, tower.out_size),
                             ops::gemm_cpu_workspace(dtype, sizes.image_rows(spec), keys.k, keys.n + keys.r)});
    } else if (sizes.patches > 0) {
        const spec::VisionSpec& tower = spec.vision.value();
        const int64_t c = tower.hidden_size, tokens = tower.tokens_of(sizes.patches), merged = tower.merged_size();
        const int64_t inner = (tower.gated_mlp ? 2 : 1) * tower.inner_size();
        most = std::max(
            {most, ops::gemm_cpu_workspace(dtype, sizes.patches, std::max(3 * c, inner), c),
             ops::gemm_cpu_workspace(dtype, sizes.patches, c,
                                     std::max(tower.inner_size(), spec::VisionSpec::frames * tower.patch_bytes())),
             ops::gemm_cpu_workspace(dtype, tokens, std::max(merged, tower.out_size), merged)});
    }
    if (spec.experts)
        most = std::max(most, ops::gemm_cpu_workspace(dtype, sizes.tokens, spec.experts->count, spec.hidden_size));
    return most;
}

}  // namespace

int64_t workspace_bytes(const spec::ModelSpec& spec, const weights::LayerLayout& layout, const ActivationSizes& sizes,
                        const spec::RunPlan& run, at::ScalarType dtype, at::Device device) {
    const int64_t attention = attention_bytes(spec, layout, sizes, dtype, device);
    const int64_t norm = ops::norm_backward_workspace(
        device, std::max(sizes.tokens * spec.num_heads, sizes.head_rows),
        std::max(spec.hidden_size, spec.qk_norm_of_all_heads ? spec.q_size() : spec.head_dim));
    int64_t dora = 0;
    for (const Group g : layout.all_groups())
        if (layout.dora) dora = std::max(dora, ops::dora_backward_workspace(device, sizes.tokens, layout[g].n));
    const int64_t paged =
        sizes.cache_tokens > 0
            ? ops::paged_attention_workspace(attention_shape(spec, 0), device, sizes.segments, sizes.longest_context())
            : 0;
    const int64_t order =
        spec.experts ? ops::order_workspace(device, sizes.tokens * spec.experts->top_k, spec.experts->count) : 0;
    return std::max({attention, paged, norm, dora, order, delta_bytes(spec, sizes, dtype, device),
                     products_workspace(spec, layout, sizes, run, dtype, device)});
}

}  // namespace unsloth::model
