#include "unsloth/model/fp8_source.h"

#include "unsloth/core/error.h"
#include "unsloth/ops/fp8.h"

namespace unsloth::model {
namespace {

/// One buffer of a group. The plan and the constructor walk the same list.
struct Buffer {
    const char* name;
    int64_t rows, columns;
    at::ScalarType type;
};

std::vector<Buffer> buffers_of(const GroupLayout& group, at::ScalarType dtype) {
    return {{"W codes", group.n, group.k, at::kFloat8_e4m3fn},
            {"W scales", group.n, 1, at::kFloat},
            {"W^T codes", group.k, group.n, at::kFloat8_e4m3fn},
            {"W^T scales", group.k, 1, at::kFloat},
            {"A", group.r, group.k, dtype},
            {"A^T", group.k, group.r, dtype},
            {"sB", group.n, group.r, dtype}};
}

std::string buffer_name(int64_t layer, Group g, const char* what) {
    return cat("layer ", layer, " ", name_of(g), " ", what);
}

}  // namespace

void Fp8Source::plan(const spec::ModelSpec& spec, const LayerLayout& layout, at::ScalarType dtype, memory::Plan& plan) {
    for (int64_t layer = 0; layer < spec.num_layers; ++layer)
        for (const Group g : all_groups)
            for (const Buffer& b : buffers_of(layout[g], dtype))
                plan.add("layer weights", buffer_name(layer, g, b.name),
                         b.rows * b.columns * static_cast<int64_t>(c10::elementSize(b.type)));
}

Fp8Source::Fp8Source(ops::Context& ctx, const spec::ModelSpec& spec, const LayerLayout& layout, at::ScalarType dtype,
                     std::vector<StoredLayer> layers, const memory::Arena& arena, const Adapters* adapters)
    : layers_(static_cast<std::size_t>(spec.num_layers)) {
    for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
        const StoredLayer& stored = layers.at(layer);
        for (const Group g : all_groups) {
            std::vector<at::Tensor> made;
            for (const Buffer& b : buffers_of(layout[g], dtype))
                made.push_back(arena.tensor(arena.plan().find(buffer_name(static_cast<int64_t>(layer), g, b.name)),
                                            {b.rows, b.columns}, b.type));
            for (std::size_t margin = 4; margin < made.size(); ++margin)
                made[margin].zero_();  // what no module uses stays 0 for good
            const auto index = static_cast<std::size_t>(g);
            layers_[layer].groups[index] = GroupWeights({{made[0], made[1].squeeze(1)}, {made[2], made[3].squeeze(1)}},
                                                        made[4], made[5], made[6], stored.biases[index]);
        }
        lend_norms(stored, layers_[layer]);
    }
    adapters_ = margins_of(ctx, adapters, layout, layers_, arena);
}

void Fp8Source::load(ops::Context& ctx, int layer, Group g, const at::Tensor& w_NK) {
    const Fp8Weights& base = *layers_.at(static_cast<std::size_t>(layer))[g].fp8;
    ops::quantize_rows_fp8(ctx, w_NK, base.forward_NK);
    ops::quantize_columns_fp8(ctx, w_NK, base.backward_KN);
}

std::array<at::Tensor, 4> Fp8Source::base(int layer, Group g) const {
    const Fp8Weights& base = *layers_.at(static_cast<std::size_t>(layer))[g].fp8;
    return {base.forward_NK.codes, base.forward_NK.scales, base.backward_KN.codes, base.backward_KN.scales};
}

void Fp8Source::refresh(ops::Context& ctx) {
    if (!adapters_ || version_ == adapters_->version()) return;
    adapters_->fill_all(ctx);
    version_ = adapters_->version();
}

}  // namespace unsloth::model
