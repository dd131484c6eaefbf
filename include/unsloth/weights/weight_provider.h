// Prepares a layer's weights for its GEMMs, wherever and in whatever form they are stored; only it knows either.
//
// A group's base is stored as GEMMs read it, or is dequantized into a slot that layers take in turn. Adapters are in
// the tail rows and columns of either.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "unsloth/weights/dora_norms.h"
#include "unsloth/weights/folded_adapters.h"
#include "unsloth/weights/layer_prefetcher.h"
#include "unsloth/weights/operand.h"
#include "unsloth/weights/parameters.h"
#include "unsloth/weights/stored_weight.h"

namespace unsloth::weights {

/// A group that is ready as stored, or its projections in the order of its slices, to be dequantized.
using StoredGroup = std::variant<Operand, std::vector<StoredWeight>>;

struct StoredLayer {
    ByGroup<StoredGroup> groups;
    ByGroup<std::optional<CodedTranspose>> transposes;
    ByGroup<at::Tensor> biases;                    ///< compute dtype, joined over a group; undefined: none
    std::map<spec::TensorRole, at::Tensor> norms;  ///< fp32; a router: compute dtype
};

/// Which GEMMs read tiles; `trains`: the gradients' GEMMs must read them too; `margins_stay`: all layers are in tiles,
/// with the adapters of GEMMs that read those permanently next to them (plan_staying_margins).
struct TilePolicy {
    ops::Nf4GemmChooser chooser;
    bool trains = false, margins_stay = false;
    int64_t expert_tokens = 0;  ///< the most whose experts' products read tiles
};
/// Rows of an expert, on average, up to which its products read tiles: a product reads them for every 16 rows.
inline constexpr int64_t most_tiled_rows = 32;

class WeightProvider {
  public:
    /// Submits the slot, for models with a layer that is not stored ready.
    static void plan_slot(const LayerLayout& layout, at::ScalarType dtype, memory::Plan& plan);
    /// Submits a layer's adapters for each, so that a pass that reads tiles fills no slot with them.
    static void plan_staying_margins(const LayerLayout& layout, const std::vector<spec::LayerLora>& lora,
                                     at::Device device, at::ScalarType dtype, memory::Plan& plan);
    /// `adapters`: nullptr without; `masters`: fp32 values that ready groups are copies of, nullptr for a frozen base;
    /// `images`: brings the stored weights of layers that are elsewhere to where `layers` says, nullptr without such;
    /// `slices`: as DoraNorms'; `grid`: adapters are folded into the base on the way into the slot, which every group
    /// then takes, and GEMMs read no adapter tails.
    WeightProvider(ops::Context& ctx, const LayerLayout& layout, at::ScalarType dtype, std::vector<StoredLayer> layers,
                   const memory::Arena& arena, const Adapters* adapters, const Parameters* masters, TilePolicy tiles,
                   std::unique_ptr<LayerPrefetcher> images = nullptr, comm::Communicator* slices = nullptr,
                   spec::ServeGrid grid = spec::ServeGrid::none);

    /// Before a forward pass: brings what changed since the last one (adapters, trained masters) to where it is read.
    void refresh(ops::Context& ctx);
    /// Before each pass, and not recorded with it: the layers that it will ask for, in order.
    void begin(ops::Context& ctx, const std::vector<int>& pass);
    /// The layer's weights for GEMMs of `tokens` tokens, complete for work issued on the context's stream after this
    /// call, until the next layer's are asked for. `adapted`: for a pass with adapters; without, a folded base is as it
    /// is stored.
    const LayerWeights& ready(ops::Context& ctx, int layer, int64_t tokens, bool adapted = true);

    /// Gathers what `adapters` and `masters` give of a layer, whose unit is 1 + layer; entered with each layer. Not
    /// owned; nullptr: they have all.
    void set_values(LayerPrefetcher* values) { values_ = values; }

    /// DoRA's norms; nullptr without.
    const DoraNorms* dora() const { return dora_ ? &*dora_ : nullptr; }
    /// Brings the weights of layers that are elsewhere; nullptr: there are none.
    const LayerPrefetcher* images() const { return images_.get(); }

    /// What the slots hold. A captured CUDA graph leaves the same in them at each launch: `assume_held` says so. Before
    /// capture, `forget` says that no layer is dequantized.
    struct Held {
        int layer = -1;  ///< dequantized; -1: none, or there is no slot for it
        LayerPrefetcher::State images;
    };
    Held held() const;
    void assume_held(const Held& held);
    void forget() { assume_dequantized(-1); }

  private:
    /// A layer of which some group takes the slot.
    struct Paged {
        explicit Paged(const LayerLayout& layout) {
            for (const Group g : layout.all_groups()) groups[g], tiles[g], expert_tiles[g];
        }
        ByGroup<std::vector<StoredWeight>> groups;           ///< empty: ready as stored
        ByGroup<std::vector<ops::Nf4Tiles>> tiles;           ///< of groups that are in tiles alone
        ByGroup<std::vector<ops::Nf4Experts>> expert_tiles;  ///< the same of experts: ExpertTiles::parts
    };
    void take_slot(ops::Context& ctx, Paged& paged, Group g, Operand& operand);
    void choose_expert_tiles(const Paged& paged, Group g, int64_t tokens, Operand& operand) const;
    void expand_expert_tiles(ops::Context& ctx, const std::vector<ops::Nf4Experts>& parts,
                             const at::Tensor& w_NK) const;
    void choose_tiles(int layer, Group g, int64_t tokens, Operand& operand) const;
    void keep_margins(ops::Context& ctx, const Adapters& adapters, at::ScalarType dtype, const memory::Arena& arena);
    const LayerWeights& lay_out(ops::Context& ctx, int layer, std::optional<int64_t> tokens, bool adapted = true);
    void choose_fold(int layer, bool adapted);
    void dequantize_in_turn(ops::Context& ctx,
                            const std::function<void(int layer, const LayerWeights& weights)>& visit);
    void expand_into_slot(ops::Context& ctx, int layer);
    bool reads_tiles(const Paged& paged) const;
    void assume_dequantized(int layer);
    void copy_masters(ops::Context& ctx, int layer);
    void fill_ready_margins(ops::Context& ctx);
    void copy_biases(ops::Context& ctx, int layer);
    void begin_values(ops::Context& ctx, const std::vector<int>& layers);

    LayerLayout layout_;
    std::vector<LayerWeights> weights_;
    std::vector<std::optional<Paged>> paged_;  ///< one a layer; nullopt: all of it is ready
    ByGroup<Operand> slot_;                    ///< of the groups that some layer expands
    ByGroup<int> dequantized_;                 ///< layer whose base the slot holds, by group
    int held_ = -1;                            ///< layer whose margins the slot holds
    uint64_t held_version_ = 0;                ///< of the adapters there
    uint64_t ready_version_ = 0;               ///< of masters and adapters in the ready weights
    std::optional<AdapterMargins> margins_;
    std::vector<LayerMargins> staying_;  ///< of all layers, for products that read tiles; empty: the slot's serve
    std::optional<AdapterMargins> fills_staying_;
    std::optional<DoraNorms> dora_;
    std::optional<FoldedAdapters> folded_;
    bool slot_folded_ = false;     ///< whether what the slot holds has adapters folded in
    uint64_t folded_version_ = 0;  ///< of these
    const Parameters* masters_;
    TilePolicy policy_;
    std::unique_ptr<LayerPrefetcher> images_;  ///< nullptr: all layers are on the device
    LayerPrefetcher* values_ = nullptr;
};

}  // namespace unsloth::weights
