#include "unsloth/weights/weight_provider.h"

#include <algorithm>

#include "unsloth/core/error.h"
#include "unsloth/ops/rows.h"
#include "unsloth/weights/part.h"

namespace unsloth::weights {
namespace {

std::string slot_name(Group g) {
    return cat("scratch ", name_of(g));
}

constexpr const char* staying_table = "tiles' adapters' table";
std::string staying_name(int layer, Group g, const char* matrix) {
    return cat("tiles' adapters ", layer, " ", name_of(g), " ", matrix);
}

void set_margins(Operand& operand, const GroupMargins& margins) {
    operand.a_RK = margins.a_RK;
    operand.b_NR = margins.b_NR;
}

}  // namespace

void WeightProvider::plan_slot(const LayerLayout& layout, at::ScalarType dtype, memory::Plan& plan) {
    for (const Group g : layout.all_groups())
        plan.add("dequantized layer", slot_name(g),
                 layout[g].elements() * static_cast<int64_t>(c10::elementSize(dtype)),
                 memory::always);  // margins are zeroed once, and the last layer is used on both sides of the head
}

void WeightProvider::plan_staying_margins(const LayerLayout& layout, const std::vector<spec::LayerLora>& lora,
                                          at::Device device, at::ScalarType dtype, memory::Plan& plan) {
    const auto item = static_cast<int64_t>(c10::elementSize(dtype));
    for (const int layer : layout.stage.layers(static_cast<int64_t>(lora.size())))
        for (const Group g : layout.groups_of(layer)) {
            plan.add("adapters", staying_name(layer, g, "A"), layout[g].r * layout[g].k * item);
            plan.add("adapters", staying_name(layer, g, "sB"), layout[g].n * layout[g].r * item);
        }
    AdapterMargins::plan(layout, lora, device, /*transposed=*/false, plan, staying_table);
}

/// Columns and rows of no module are zeroed for good, as the slot's are.
void WeightProvider::keep_margins(ops::Context& ctx, const Adapters& adapters, at::ScalarType dtype,
                                  const memory::Arena& arena) {
    staying_.resize(weights_.size());
    for (const int layer : layout_.stage.layers(static_cast<int64_t>(weights_.size())))
        for (const Group g : layout_.groups_of(layer)) {
            const auto zeros = [&](const char* matrix, int64_t rows, int64_t columns) {
                return arena.tensor(arena.plan().find(staying_name(layer, g, matrix)), {rows, columns}, dtype).zero_();
            };
            staying_[static_cast<std::size_t>(layer)][g] = {.a_RK = zeros("A", layout_[g].r, layout_[g].k),
                                                            .b_NR = zeros("sB", layout_[g].n, layout_[g].r),
                                                            .a_KR = {}};
        }
    fills_staying_.emplace(ctx, adapters, layout_, staying_, arena, staying_table);
}

WeightProvider::WeightProvider(ops::Context& ctx, const LayerLayout& layout, at::ScalarType dtype,
                               std::vector<StoredLayer> layers, const memory::Arena& arena, const Adapters* adapters,
                               const Parameters* masters, TilePolicy tiles, std::unique_ptr<LayerPrefetcher> images,
                               comm::Communicator* slices, spec::ServeGrid grid)
    : layout_(layout),
      weights_(layers.size()),
      paged_(layers.size()),
      masters_(masters),
      policy_(std::move(tiles)),
      images_(std::move(images)) {
    for (const Group g : layout.all_groups()) dequantized_[g] = -1;
    std::vector<LayerMargins> margins;
    for (std::size_t layer = 0; layer < layers.size(); ++layer) {
        StoredLayer& stored = layers[layer];
        LayerWeights& weights = weights_[layer];
        if (!layout.stage.has(static_cast<int64_t>(layer))) {
            margins.emplace_back();
            continue;
        }
        for (const Group g : layout.groups_of(static_cast<int64_t>(layer))) {
            StoredGroup& group = stored.groups[g];
            if (auto* ready = std::get_if<Operand>(&group)) {
                weights[g] = std::move(*ready);
            } else {
                if (!slot_.contains(g))
                    slot_[g] = dense_operand(layout[g], arena.tensor(arena.plan().find(slot_name(g)),
                                                                     {layout[g].rows(), layout[g].leading()}, dtype));
                if (!paged_[layer]) paged_[layer] = Paged(layout);
                paged_[layer]->groups[g] = std::move(std::get<std::vector<StoredWeight>>(group));
                take_slot(ctx, *paged_[layer], g, weights[g]);
            }
            weights[g].transpose = std::move(stored.transposes[g]);
            weights[g].bias_N = stored.biases[g];
        }
        weights.norms = std::move(stored.norms);
        LayerMargins& of_layer = margins.emplace_back();
        for (const Group g : layout.groups_of(static_cast<int64_t>(layer))) of_layer[g] = weights[g].margins();
    }
    if (grid != spec::ServeGrid::none) folded_.emplace(ctx, grid, layout, adapters, arena);
    if (adapters == nullptr) return;
    margins_.emplace(ctx, *adapters, layout, margins, arena);
    if (policy_.margins_stay) keep_margins(ctx, *adapters, dtype, arena);
    if (!layout.dora) return;
    dora_.emplace(layout_, *adapters, arena, slices);
    for (const int layer : layout.stage.layers(static_cast<int64_t>(weights_.size())))
        for (const Group g : layout.groups_of(layer)) {
            Operand& operand = weights_[static_cast<std::size_t>(layer)][g];
            operand.scale = dora_->scale(layer, g);
            operand.scale.bias_N = operand.bias_N;
        }
    dequantize_in_turn(ctx, [&](int layer, const LayerWeights& dequantized) {
        for (const Group g : layout.groups_of(layer))
            dora_->measure(ctx, layer, g, std::get<DenseBase>(dequantized[g].base).w_NK);
    });
}

/// Of a walk over layers that is no pass.
void WeightProvider::begin_values(ops::Context& ctx, const std::vector<int>& layers) {
    if (values_ == nullptr) return;
    std::vector<int> units;
    for (const int layer : layers) units.push_back(layer_unit(layer));
    values_->begin(ctx, units);
}

/// The layers with magnitudes, each with its base dequantized, whatever products may read instead.
void WeightProvider::dequantize_in_turn(ops::Context& ctx,
                                        const std::function<void(int layer, const LayerWeights&)>& visit) {
    std::vector<int> layers;
    for (int layer = 0; layer < static_cast<int>(weights_.size()); ++layer)
        if (dora_->adapts(layer)) layers.push_back(layer);
    begin(ctx, layers);
    begin_values(ctx, layers);
    for (const int layer : layers) visit(layer, lay_out(ctx, layer, std::nullopt));
}

/// The slot is what the group's products read, and tiles are what they may read instead.
void WeightProvider::take_slot(ops::Context& ctx, Paged& paged, Group g, Operand& operand) {
    operand = slot_.at(g);
    std::vector<ops::Nf4Tiles> tiles;
    for (const StoredWeight& weight : paged.groups.at(g))
        if (const auto* in_tiles = std::get_if<ops::Nf4Tiles>(&weight)) tiles.push_back(*in_tiles);
    if (tiles.size() != paged.groups.at(g).size()) return;
    if (!is_of_experts(g)) {
        paged.tiles[g] = std::move(tiles);
        return;
    }
    const auto experts = static_cast<std::size_t>(layout_[g].experts), parts = tiles.size() / experts;
    for (std::size_t part = 0; part < parts; ++part) {
        std::vector<ops::Nf4Tiles> of_all;
        for (std::size_t e = 0; e < experts; ++e) of_all.push_back(tiles[e * parts + part]);
        paged.expert_tiles[g].push_back(ops::make_nf4_experts(ctx, std::move(of_all)));
    }
}

void WeightProvider::choose_expert_tiles(const Paged& paged, Group g, int64_t tokens, Operand& operand) const {
    const std::vector<ops::Nf4Experts>& parts = paged.expert_tiles.at(g);
    if (parts.empty()) return;
    if (tokens <= policy_.expert_tokens)
        operand.base = ExpertTiles{parts};
    else
        operand.base = slot_.at(g).base;
}

/// The parts' rows of each expert follow one another in the slot.
void WeightProvider::expand_expert_tiles(ops::Context& ctx, const std::vector<ops::Nf4Experts>& parts,
                                         const at::Tensor& w_NK) const {
    const int64_t stride = w_NK.stride(0), experts = static_cast<int64_t>(parts.front().experts.size());
    int64_t first = 0;
    for (const ops::Nf4Experts& part : parts) {
        ops::dequantize_nf4_experts(
            ctx, part,
            w_NK.narrow(0, first, part.rows)
                .as_strided({experts, part.rows, part.cols}, {w_NK.size(0) / experts * stride, stride, 1}));
        first += part.rows;
    }
}

/// Lets the group's products of `tokens` tokens read its tiles, where they are faster than dequantizing and cuBLASLt.
void WeightProvider::choose_tiles(int layer, Group g, int64_t tokens, Operand& operand) const {
    const Paged& paged = *paged_[static_cast<std::size_t>(layer)];
    if (is_of_experts(g)) return choose_expert_tiles(paged, g, tokens, operand);
    const std::vector<ops::Nf4Tiles>& tiles = paged.tiles.at(g);
    if (!policy_.chooser || tiles.empty()) return;
    constexpr auto dequantize = ops::Nf4GemmChoice::Kernel::dequantize;
    const auto choice = [&](bool transposed) {
        return policy_.chooser(tokens, layout_[g].n, layout_[g].k, transposed);
    };
    TiledBase base{tiles, {}, choice(false), policy_.trains ? choice(true) : ops::Nf4GemmChoice{}};
    for (const Slice& slice : layout_[g].slices) base.tail_columns.push_back({slice.r_begin, slice.r});
    const bool reads_tiles =
        base.forward.kernel != dequantize && !(policy_.trains && base.backward.kernel == dequantize);
    if (reads_tiles) {
        operand.base = std::move(base);
    } else {
        operand.base = slot_.at(g).base;
    }
    if (staying_.empty()) return;
    set_margins(operand, reads_tiles ? staying_[static_cast<std::size_t>(layer)].at(g) : slot_.at(g).margins());
}

/// Dequantizes the groups whose products read the slot and that are not there yet, 4-bit rows of all of them in one
/// launch.
void WeightProvider::expand_into_slot(ops::Context& ctx, int layer) {
    const Paged& paged = *paged_[static_cast<std::size_t>(layer)];
    std::vector<const StoredWeight*> weights;
    std::vector<at::Tensor> outs_NK;
    for (const Group g : layout_.groups_of(layer)) {
        const auto* dense = std::get_if<DenseBase>(&weights_[static_cast<std::size_t>(layer)][g].base);
        const std::vector<StoredWeight>& group = paged.groups.at(g);
        if (group.empty() || dense == nullptr || dequantized_[g] == layer) continue;
        dequantized_[g] = layer;
        if (slot_folded_) {
            for (std::size_t i = 0; i < group.size(); ++i) {
                const Slice& slice = layout_[g].slices[i];
                folded_->fold(ctx, layer, slice, group[i], dense->w_NK.narrow(0, slice.n_begin, slice.n));
            }
            continue;
        }
        if (const auto& parts = paged.expert_tiles.at(g); !parts.empty()) {
            expand_expert_tiles(ctx, parts, dense->w_NK);
            continue;
        }
        auto next = group.begin();
        const auto put = [&](int64_t begin, int64_t rows) {
            weights.push_back(&*next++);
            outs_NK.push_back(dense->w_NK.narrow(0, begin, rows));
        };
        const bool by_runs = group.size() > layout_[g].slices.size();  // of values that are trained: views of them
        for (const Slice& slice : layout_[g].slices) {
            if (!by_runs) put(slice.n_begin, slice.n);
            if (by_runs)
                for (const RowRun& run : row_runs(slice.part)) put(slice.n_begin + run.own, run.rows);
        }
    }
    expand(ctx, weights, outs_NK);
}

/// Whether products may read the layer as it is stored, whatever their tokens.
bool WeightProvider::reads_tiles(const Paged& paged) const {
    const auto any = [](const auto& by_group) {
        return std::ranges::any_of(by_group, [](const auto& group) { return !group.second.empty(); });
    };
    return policy_.chooser && (any(paged.tiles) || any(paged.expert_tiles));
}

void WeightProvider::begin(ops::Context& ctx, const std::vector<int>& pass) {
    if (images_) images_->begin(ctx, pass);
}

const LayerWeights& WeightProvider::ready(ops::Context& ctx, int layer, int64_t tokens, bool adapted) {
    return lay_out(ctx, layer, tokens, adapted);
}

/// A base with other adapters folded in, or with none, is another one.
void WeightProvider::choose_fold(int layer, bool adapted) {
    if (!folded_) return;
    if (slot_folded_ != adapted || (adapted && folded_version_ != folded_->version()))
        for (auto& [g, dequantized] : dequantized_) dequantized = -1;
    slot_folded_ = adapted;
    folded_version_ = folded_->version();
    for (const Group g : layout_.groups_of(layer)) weights_[static_cast<std::size_t>(layer)][g].folded = adapted;
}

/// `tokens`: of the products that will read it, which may choose tiles; nullopt: its base is dequantized.
const LayerWeights& WeightProvider::lay_out(ops::Context& ctx, int layer, std::optional<int64_t> tokens, bool adapted) {
    LayerWeights& weights = weights_.at(static_cast<std::size_t>(layer));
    if (images_) images_->enter(ctx, layer);
    if (values_ != nullptr) values_->enter(ctx, layer_unit(layer));
    const std::optional<Paged>& paged = paged_[static_cast<std::size_t>(layer)];
    if (!paged) return weights;
    if (masters_ != nullptr && held_ != layer) copy_biases(ctx, layer);
    choose_fold(layer, adapted);
    for (const Group g : layout_.groups_of(layer)) {
        if (tokens) {
            choose_tiles(layer, g, *tokens, weights[g]);
        } else if (!paged->groups.at(g).empty()) {
            weights[g].base = slot_.at(g).base;
            if (!staying_.empty()) set_margins(weights[g], slot_.at(g).margins());
        }
    }
    expand_into_slot(ctx, layer);
    // The dequantized values have been read; tiles are read until the next layer is asked for.
    if (images_ && !reads_tiles(*paged)) images_->release();
    if (!staying_.empty() && std::all_of(weights.groups.begin(), weights.groups.end(), [](const auto& group) {
            return std::holds_alternative<TiledBase>(group.second.base);
        }))
        return weights;
    if (margins_ && (held_ != layer || held_version_ != margins_->version())) {
        margins_->fill(ctx, layer);
        held_version_ = margins_->version();
    }
    held_ = layer;
    return weights;
}

WeightProvider::Held WeightProvider::held() const {
    auto groups = layout_.groups_of(std::max(held_, 0));
    const bool whole = held_ >= 0 && std::ranges::all_of(groups, [&](Group g) { return dequantized_.at(g) == held_; });
    return {whole ? held_ : -1, images_ ? images_->state() : LayerPrefetcher::State{}};
}

void WeightProvider::assume_held(const Held& held) {
    assume_dequantized(held.layer);
    if (images_) images_->assume(held.images);
}

void WeightProvider::assume_dequantized(int layer) {
    held_ = layer;
    for (auto& [g, dequantized] : dequantized_) dequantized = -1;
    if (layer >= 0)
        for (const Group g : layout_.groups_of(layer)) dequantized_[g] = layer;
    if (margins_) held_version_ = margins_->version();
    if (!folded_) return;
    slot_folded_ = true;  // CUDA graphs have adapters
    folded_version_ = folded_->version();
}

void WeightProvider::copy_masters(ops::Context& ctx, int layer) {
    for (const Group g : layout_.groups_of(layer))
        for (const Slice& slice : layout_[g].slices) {
            const Parameter& matrix =
                *masters_->table().find(spec::TensorRole::linear, slice.id(layer), Parameter::Kind::base);
            const Operand& operand = weights_[static_cast<std::size_t>(layer)][g];
            const at::Tensor whole_NK = masters_->value(matrix), w_NK = std::get<DenseBase>(operand.base).w_NK;
            for (const RowRun& run : row_runs(slice.part))
                ops::copy_2d(ctx, columns_of(whole_NK.narrow(0, run.whole, run.rows), slice.part),
                             w_NK.narrow(0, slice.n_begin + run.own, run.rows));
        }
    copy_biases(ctx, layer);
}

void WeightProvider::copy_biases(ops::Context& ctx, int layer) {
    for (const Group g : layout_.groups_of(layer))
        for (const Slice& slice : layout_[g].slices) {
            const Parameter* const bias =
                masters_->table().find(spec::TensorRole::bias, slice.id(layer), Parameter::Kind::base);
            if (bias == nullptr) continue;
            const at::Tensor own_N = weights_[static_cast<std::size_t>(layer)][g].bias_N;
            for (const RowRun& run : row_runs(slice.part))
                ops::copy_2d(ctx, masters_->value(*bias).narrow(0, run.whole, run.rows).unsqueeze(0),
                             own_N.narrow(0, slice.n_begin + run.own, run.rows).unsqueeze(0));
        }
}

/// Fills the slot's margins with its layer. Of ready layers, neighbours share a launch, where their
/// adapters are all here.
void WeightProvider::fill_ready_margins(ops::Context& ctx) {
    const auto layers = static_cast<int>(weights_.size());
    const int most = values_ == nullptr ? layers : 1;
    std::vector<int> ready;
    for (int layer = 0; layer < layers; ++layer)
        if (layout_.stage.has(layer) && !paged_[static_cast<std::size_t>(layer)]) ready.push_back(layer);
    begin_values(ctx, ready);
    for (std::size_t i = 0, end = 0; i < ready.size(); i = end) {
        for (end = i + 1; end < ready.size() && ready[end] == ready[end - 1] + 1 && static_cast<int>(end - i) < most;)
            ++end;
        if (values_ != nullptr) values_->enter(ctx, 1 + ready[i]);
        margins_->fill(ctx, ready[i], static_cast<int>(end - i));
    }
}

void WeightProvider::refresh(ops::Context& ctx) {
    const uint64_t wanted = masters_ != nullptr ? masters_->version : margins_ ? margins_->version() : 0;
    if (ready_version_ == wanted) return;
    ready_version_ = wanted;
    const auto layers = static_cast<int>(weights_.size());
    if (masters_ != nullptr) forget();  // layers that are read as stored go through the slot
    if (masters_ != nullptr)
        for (const int layer : layout_.stage.layers(layers))
            if (!paged_[static_cast<std::size_t>(layer)]) copy_masters(ctx, layer);
    if (!margins_) return;
    fill_ready_margins(ctx);
    if (fills_staying_) fills_staying_->fill(ctx, 0, layers);
    if (!dora_) return;
    dequantize_in_turn(ctx, [&](int layer, const LayerWeights& dequantized) {
        for (const Group g : layout_.groups_of(layer))
            dora_->update(ctx, layer, g, std::get<DenseBase>(dequantized[g].base).w_NK, dequantized[g].a_RK,
                          dequantized[g].b_NR);
    });
}

}  // namespace unsloth::weights
