// Where base weights live, and nobody else knows: make a layer's weights ready on the stream, use them, release them.
//
// Legend of a group's buffer in model/layout.h.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "unsloth/model/adapter_margins.h"
#include "unsloth/model/layout.h"
#include "unsloth/model/parameters.h"
#include "unsloth/ops/context.h"
#include "unsloth/ops/gemm_fp8.h"
#include "unsloth/ops/nf4_gemm.h"
#include "unsloth/ops/quant.h"

namespace unsloth::model {

/// A group's base in 8 bits: W quantised by its rows for the forward pass, its transpose by its own rows for dx.
struct Fp8Weights {
    ops::Fp8Matrix forward_NK, backward_KN;
};

/// A group's base as 4-bit tiles that the products read themselves, and the kernels that do.
struct PackedWeights {
    at::ArrayRef<ops::Nf4Tiles> weights;  ///< in the order of the group's slices
    ops::Nf4GemmChoice forward, backward;
};

/// One group's buffer [(N+R), (K+R)] in the compute dtype and the views that the products read; or the base in 8 bits
/// beside the adapters' margins.
struct GroupWeights {
    GroupWeights() = default;
    GroupWeights(const GroupLayout& layout, at::Tensor buffer, at::Tensor bias);
    /// a [R, K], a_transposed [K, R], b [N, R], all of the compute dtype.
    GroupWeights(Fp8Weights base, at::Tensor a, at::Tensor a_transposed, at::Tensor b, at::Tensor bias);
    at::Tensor buffer;
    std::optional<Fp8Weights> fp8;
    std::optional<PackedWeights> packed;  ///< the buffer then holds the adapters' margins alone
    at::Tensor a_KR;                      ///< A transposed; with fp8 only
    at::Tensor bias_N;                    ///< compute dtype; undefined: none
    at::Tensor w_NK;                      ///< the base alone
    at::Tensor forward_NKR;               ///< [W | sB]
    at::Tensor backward_NRK;              ///< [W ; A]
    at::Tensor a_RK;
    at::Tensor b_NR;  ///< s·B, block diagonal over the group's projections
};

struct LayerWeights {
    std::array<GroupWeights, group_count> groups;
    at::Tensor input_norm_D, post_norm_D, q_norm_d, k_norm_d;  ///< fp32; the last two undefined without qk_norm
    const GroupWeights& operator[](Group g) const { return groups[static_cast<std::size_t>(g)]; }
    LayerMargins margins() const;
};

/// The margins of all layers' buffers; nullopt without adapters.
std::optional<AdapterMargins> margins_of(ops::Context& ctx, const Adapters* adapters, const LayerLayout& layout,
                                         const std::vector<LayerWeights>& layers, const memory::Arena& arena);

class WeightSource {
  public:
    virtual ~WeightSource() = default;
    /// Before a forward pass: brings what changed since the last one (adapters, trained masters) to where `ready` will
    /// find it.
    virtual void refresh(ops::Context& ctx) = 0;
    /// The layer's weights for products of so many tokens, complete for work issued on the context's stream after this
    /// call, until release().
    virtual const LayerWeights& ready(ops::Context& ctx, int layer, int64_t tokens) = 0;
    virtual void release(int layer) = 0;
    /// The layer that is expanded now, -1: none, or all are. Work that was recorded leaves the same layer behind each
    /// time it is issued: `assume_held` says so, and before recording that there is none.
    virtual int held() const { return -1; }
    virtual void assume_held(int) {}
};

/// A projection as it lies in memory: 4-bit (in rows or in tiles), or a 16/32-bit matrix [N, K].
using StoredWeight = std::variant<ops::Quant4Tensor, ops::Nf4Tiles, at::Tensor>;

/// out_NK = the weight's values in out's type: 4-bit ones (on the context's device) are expanded, matrices (on any
/// device) copied.
void expand(ops::Context& ctx, const StoredWeight& weight, const at::Tensor& out_NK);

struct StoredLayer {
    std::array<StoredWeight, spec::projection_count> projections;
    std::array<at::Tensor, group_count> biases;  ///< compute dtype, joined over a group; undefined: none
    at::Tensor input_norm_D, post_norm_D, q_norm_d, k_norm_d;
};

/// Lets `weights` read the stored layer's norms where they lie.
void lend_norms(const StoredLayer& stored, LayerWeights& weights);

/// Layers stored compactly (4-bit on a device or in the file's map; 16-bit in the map on a CPU); one layer at a time
/// is expanded into scratch buffers that all layers share, except for groups in tiles whose products of so many tokens
/// are faster from the tiles.
class ScratchSource final : public WeightSource {
  public:
    static void plan(const LayerLayout& layout, at::ScalarType dtype, memory::Plan& plan);
    /// `chooser` says which products read tiles; `trains`: the gradients' products must read them too.
    ScratchSource(ops::Context& ctx, const LayerLayout& layout, at::ScalarType dtype, std::vector<StoredLayer> layers,
                  const memory::Arena& arena, const Adapters* adapters, ops::Nf4GemmChooser chooser = {},
                  bool trains = false);
    void refresh(ops::Context&) override {}
    const LayerWeights& ready(ops::Context& ctx, int layer, int64_t tokens) override;
    void release(int) override {}
    int held() const override;
    void assume_held(int layer) override;

  private:
    void lend(const StoredLayer& stored);
    std::optional<PackedWeights> packed(int layer, Group g, int64_t tokens) const;
    void expand_layer(ops::Context& ctx, int layer);
    LayerLayout layout_;
    std::vector<StoredLayer> layers_;
    std::vector<std::array<std::vector<ops::Nf4Tiles>, group_count>>
        tiles_;  ///< empty for groups that do not lie in tiles
    ops::Nf4GemmChooser chooser_;
    bool trains_;
    LayerWeights scratch_;
    std::optional<AdapterMargins> adapters_;
    int current_ = -1;                       ///< layer whose margins, norms and biases the scratch holds
    std::array<int, group_count> expanded_;  ///< layer whose base each group's buffer holds
    uint64_t adapter_version_ = 0;
};

/// Layers that stay in the compute dtype: a 16-bit base on a GPU, 4-bit weights that were expanded once, or compute
/// copies of trained fp32 masters.
class ResidentSource final : public WeightSource {
  public:
    static void plan(const spec::ModelSpec& spec, const LayerLayout& layout, at::ScalarType dtype, memory::Plan& plan);
    /// `layers` hold norms and biases, and matrices that are copied in by `load` (frozen base) or none (trained
    /// masters).
    ResidentSource(ops::Context& ctx, const spec::ModelSpec& spec, const LayerLayout& layout, at::ScalarType dtype,
                   std::vector<StoredLayer> layers, const memory::Arena& arena, const Adapters* adapters,
                   const Parameters* masters);
    /// Puts a frozen projection into its place: [N, K] of any floating dtype, on any device, or a 4-bit one, which is
    /// expanded.
    void load(ops::Context& ctx, int layer, spec::Projection p, const StoredWeight& weight);
    /// All that load() writes of a group, and the adapters' margins beside it: contiguous.
    const at::Tensor& base(int layer, Group g) const { return layers_.at(static_cast<std::size_t>(layer))[g].buffer; }
    void refresh(ops::Context& ctx) override;
    const LayerWeights& ready(ops::Context&, int layer, int64_t) override {
        return layers_.at(static_cast<std::size_t>(layer));
    }
    void release(int) override {}

  private:
    void refresh_from_masters(ops::Context& ctx, int layer);
    LayerLayout layout_;
    std::vector<LayerWeights> layers_;
    std::optional<AdapterMargins> adapters_;
    const Parameters* masters_;
    uint64_t version_ = 0;  ///< of what the buffers hold
};

}  // namespace unsloth::model
