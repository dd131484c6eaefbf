#include "unsloth/model/weight_source.h"

#include <algorithm>

#include "unsloth/core/error.h"
#include "unsloth/ops/rows.h"

namespace unsloth::model {
namespace {

std::string scratch_name(Group g) {
    return cat("scratch ", name_of(g));
}
std::string resident_name(int64_t layer, Group g) {
    return cat("layer ", layer, " ", name_of(g));
}

GroupWeights make_group(const GroupLayout& layout, at::ScalarType dtype, const memory::Arena& arena,
                        const std::string& name, const at::Tensor& bias) {
    at::Tensor buffer = arena.tensor(arena.plan().find(name), {layout.n + layout.r, layout.leading()}, dtype);
    if (layout.r > 0) buffer.zero_();  // margins that no module uses stay 0 for good
    return GroupWeights(layout, buffer, bias);
}

}  // namespace

GroupWeights::GroupWeights(const GroupLayout& layout, at::Tensor whole, at::Tensor bias)
    : buffer(std::move(whole)), bias_N(std::move(bias)) {
    forward_NKR = buffer.narrow(0, 0, layout.n).narrow(1, 0, layout.inputs());
    w_NK = forward_NKR.narrow(1, 0, layout.k);
    b_NR = forward_NKR.narrow(1, layout.k, layout.r);
    backward_NRK = buffer.narrow(1, 0, layout.k);
    a_RK = backward_NRK.narrow(0, layout.n, layout.r);
}

GroupWeights::GroupWeights(Fp8Weights base, at::Tensor a, at::Tensor a_transposed, at::Tensor b, at::Tensor bias)
    : fp8(std::move(base)),
      a_KR(std::move(a_transposed)),
      bias_N(std::move(bias)),
      a_RK(std::move(a)),
      b_NR(std::move(b)) {}

LayerMargins LayerWeights::margins() const {
    LayerMargins result;
    for (std::size_t g = 0; g < groups.size(); ++g) result[g] = {groups[g].a_RK, groups[g].b_NR, groups[g].a_KR};
    return result;
}

std::optional<AdapterMargins> margins_of(ops::Context& ctx, const Adapters* adapters, const LayerLayout& layout,
                                         const std::vector<LayerWeights>& layers, const memory::Arena& arena) {
    if (adapters == nullptr) return std::nullopt;
    std::vector<LayerMargins> margins;
    for (const LayerWeights& layer : layers) margins.push_back(layer.margins());
    return std::optional<AdapterMargins>(std::in_place, ctx, *adapters, layout, margins, arena);
}

void expand(ops::Context& ctx, const StoredWeight& weight, const at::Tensor& out_NK) {
    if (const auto* packed = std::get_if<ops::Quant4Tensor>(&weight)) {
        ops::dequantize_4bit(ctx, packed->view(), out_NK);
    } else if (const auto* tiles = std::get_if<ops::Nf4Tiles>(&weight)) {
        ops::dequantize_nf4_tiles(ctx, *tiles, out_NK);
    } else {
        out_NK.copy_(std::get<at::Tensor>(weight));
    }
}

void lend_norms(const StoredLayer& stored, LayerWeights& weights) {
    weights.input_norm_D = stored.input_norm_D;
    weights.post_norm_D = stored.post_norm_D;
    weights.q_norm_d = stored.q_norm_d;
    weights.k_norm_d = stored.k_norm_d;
}

// --- ScratchSource -------------------------------------------------------------------------------------------------

void ScratchSource::plan(const LayerLayout& layout, at::ScalarType dtype, memory::Plan& plan) {
    for (const Group g : all_groups)
        plan.add("expanded layer", scratch_name(g),
                 layout[g].elements() * static_cast<int64_t>(c10::elementSize(dtype)),
                 memory::always);  // margins are zeroed once, and the last layer is used on both sides of the head
}

ScratchSource::ScratchSource(ops::Context& ctx, const LayerLayout& layout, at::ScalarType dtype,
                             std::vector<StoredLayer> layers, const memory::Arena& arena, const Adapters* adapters,
                             ops::Nf4GemmChooser chooser, bool trains)
    : layout_(layout),
      layers_(std::move(layers)),
      tiles_(layers_.size()),
      chooser_(std::move(chooser)),
      trains_(trains) {
    expanded_.fill(-1);
    for (const Group g : all_groups)
        scratch_.groups[static_cast<std::size_t>(g)] = make_group(layout[g], dtype, arena, scratch_name(g), {});
    adapters_ = margins_of(ctx, adapters, layout, std::vector<LayerWeights>(layers_.size(), scratch_), arena);
    for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
        for (const Group g : all_groups) {
            std::vector<ops::Nf4Tiles> group;
            for (const Slice& slice : layout_[g].slices)
                if (const auto* tiles = std::get_if<ops::Nf4Tiles>(
                        &layers_[layer].projections[static_cast<std::size_t>(slice.projection)]))
                    group.push_back(*tiles);
            if (group.size() == layout_[g].slices.size()) tiles_[layer][static_cast<std::size_t>(g)] = std::move(group);
        }
    }
}

/// Biases and norms are read where they are.
void ScratchSource::lend(const StoredLayer& stored) {
    for (const Group g : all_groups)
        scratch_.groups[static_cast<std::size_t>(g)].bias_N = stored.biases[static_cast<std::size_t>(g)];
    lend_norms(stored, scratch_);
}

std::optional<PackedWeights> ScratchSource::packed(int layer, Group g, int64_t tokens) const {
    const std::vector<ops::Nf4Tiles>& tiles = tiles_.at(static_cast<std::size_t>(layer))[static_cast<std::size_t>(g)];
    if (!chooser_ || tiles.empty()) return std::nullopt;
    constexpr auto dequantize = ops::Nf4GemmChoice::Kernel::dequantize;
    const auto choice = [&](bool transposed) { return chooser_(tokens, layout_[g].n, layout_[g].k, transposed); };
    PackedWeights result{tiles, choice(false), trains_ ? choice(true) : ops::Nf4GemmChoice{}};
    if (result.forward.kernel == dequantize || (trains_ && result.backward.kernel == dequantize)) return std::nullopt;
    return result;
}

/// Expands the groups whose products read the scratch and that do not lie there yet; 4-bit rows of all of them in one
/// launch.
void ScratchSource::expand_layer(ops::Context& ctx, int layer) {
    std::vector<spec::Quant4View> rows;
    std::vector<at::Tensor> outs;
    for (const Group g : all_groups) {
        int& held = expanded_[static_cast<std::size_t>(g)];
        if (scratch_[g].packed || held == layer) continue;
        held = layer;
        for (const Slice& slice : layout_[g].slices) {
            const at::Tensor out_NK = scratch_[g].w_NK.narrow(0, slice.n_begin, slice.n);
            const StoredWeight& weight =
                layers_[static_cast<std::size_t>(layer)].projections[static_cast<std::size_t>(slice.projection)];
            if (const auto* quantised = std::get_if<ops::Quant4Tensor>(&weight)) {
                rows.push_back(quantised->view());
                outs.push_back(out_NK);
            } else if (const auto* tiles = std::get_if<ops::Nf4Tiles>(&weight)) {
                ops::dequantize_nf4_tiles(ctx, *tiles, out_NK);
            } else {
                ops::copy_2d(ctx, std::get<at::Tensor>(weight), out_NK);
            }
        }
    }
    if (!rows.empty()) ops::dequantize_4bit(ctx, rows, outs);
}

const LayerWeights& ScratchSource::ready(ops::Context& ctx, int layer, int64_t tokens) {
    for (const Group g : all_groups) scratch_.groups[static_cast<std::size_t>(g)].packed = packed(layer, g, tokens);
    expand_layer(ctx, layer);
    if (current_ != layer) lend(layers_[static_cast<std::size_t>(layer)]);
    if (adapters_ && (current_ != layer || adapter_version_ != adapters_->version())) {
        adapters_->fill(ctx, layer);
        adapter_version_ = adapters_->version();
    }
    current_ = layer;
    return scratch_;
}

int ScratchSource::held() const {
    const bool whole = std::all_of(expanded_.begin(), expanded_.end(), [&](int layer) { return layer == current_; });
    return whole ? current_ : -1;
}

void ScratchSource::assume_held(int layer) {
    current_ = layer;
    expanded_.fill(layer);
    if (adapters_) adapter_version_ = adapters_->version();
    if (layer >= 0) lend(layers_.at(static_cast<std::size_t>(layer)));
}

// --- ResidentSource ------------------------------------------------------------------------------------------------

void ResidentSource::plan(const spec::ModelSpec& spec, const LayerLayout& layout, at::ScalarType dtype,
                          memory::Plan& plan) {
    for (int64_t layer = 0; layer < spec.num_layers; ++layer)
        for (const Group g : all_groups)
            plan.add("layer weights", resident_name(layer, g),
                     layout[g].elements() * static_cast<int64_t>(c10::elementSize(dtype)));
}

ResidentSource::ResidentSource(ops::Context& ctx, const spec::ModelSpec& spec, const LayerLayout& layout,
                               at::ScalarType dtype, std::vector<StoredLayer> layers, const memory::Arena& arena,
                               const Adapters* adapters, const Parameters* masters)
    : layout_(layout), layers_(static_cast<std::size_t>(spec.num_layers)), masters_(masters) {
    for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
        const StoredLayer& stored = layers.at(layer);
        for (const Group g : all_groups) {
            const auto index = static_cast<std::size_t>(g);
            layers_[layer].groups[index] = make_group(
                layout[g], dtype, arena, resident_name(static_cast<int64_t>(layer), g), stored.biases[index]);
        }
        lend_norms(stored, layers_[layer]);
    }
    adapters_ = margins_of(ctx, adapters, layout, layers_, arena);
}

void ResidentSource::load(ops::Context& ctx, int layer, spec::Projection p, const StoredWeight& weight) {
    const Group g = group_of(p);
    for (const Slice& slice : layout_[g].slices) {
        if (slice.projection != p) continue;
        expand(ctx, weight, layers_.at(static_cast<std::size_t>(layer))[g].w_NK.narrow(0, slice.n_begin, slice.n));
    }
}

void ResidentSource::refresh_from_masters(ops::Context& ctx, int layer) {
    for (const Group g : all_groups) {
        const GroupWeights& group = layers_[static_cast<std::size_t>(layer)][g];
        for (const Slice& slice : layout_[g].slices) {
            const auto find = [&](spec::TensorRole role) {
                return masters_->table().find(role, layer, slice.projection, Parameter::Kind::base);
            };
            ops::copy_2d(ctx, masters_->value(*find(spec::TensorRole::linear)),
                         group.w_NK.narrow(0, slice.n_begin, slice.n));
            if (const Parameter* bias = find(spec::TensorRole::bias))
                ops::copy_2d(ctx, masters_->value(*bias).unsqueeze(0),
                             group.bias_N.narrow(0, slice.n_begin, slice.n).unsqueeze(0));
        }
    }
}

void ResidentSource::refresh(ops::Context& ctx) {
    const uint64_t wanted = masters_ != nullptr ? masters_->version : adapters_ ? adapters_->version() : 0;
    if (version_ == wanted) return;
    if (masters_ != nullptr)
        for (int layer = 0; layer < static_cast<int>(layers_.size()); ++layer) refresh_from_masters(ctx, layer);
    if (adapters_) adapters_->fill_all(ctx);
    version_ = wanted;
}

}  // namespace unsloth::model
