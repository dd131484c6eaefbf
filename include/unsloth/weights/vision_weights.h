// The weights of a tower over images, which are frozen, and its adapters: whole, on every rank. Linears that the folder
// has in 4 bit stay so, all else is in the compute type.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "unsloth/formats/load_plan.h"
#include "unsloth/memory/plan.h"
#include "unsloth/ops/quant.h"
#include "unsloth/spec/vision_spec.h"
#include "unsloth/weights/parameters.h"

namespace unsloth::weights {

struct VisionNorm {
    at::Tensor weight, bias;  ///< fp32; no bias: RMSNorm
};
/// Of a linear, or of one of several whose rows a VisionLinear has: A, and scale times B, of R = 8, 16, … ranks of
/// which those beyond the adapter's own are zeros. Copies in the compute type; masters and gradients are Parameters'.
struct VisionAdapter {
    const Parameter *a = nullptr, *b = nullptr;  ///< [r, k], [n, r]
    double scale = 0;
    int64_t n_begin = 0;  ///< its first row
    at::Tensor a_RK, b_NR;
    int64_t chosen = 0;  ///< of the projector, whose columns have another order here: layers of ProjectorColumns
};
/// Rows of a linear that stay in 4 bit, and where they are in VisionLinear::weight_NK.
struct VisionPart {
    ops::Quant4Tensor weight;
    at::Tensor out_NK;
};
struct VisionLinear {
    at::Tensor weight_NK;  ///< in 4 bit: memory that all such linears share
    at::Tensor bias_N;
    std::vector<VisionPart> parts = {};        ///< empty: weight_NK has the values
    std::vector<VisionAdapter> adapters = {};  ///< empty: frozen
    float gate = 1;                            ///< tanh, which is multiplied into weight and bias

    /// The weight's values, until another linear is asked for its own. Work of ctx's stream.
    const at::Tensor& values(ops::Context& ctx) const;
};
struct VisionBlock {
    VisionNorm norm1;
    VisionLinear qkv, proj;
    VisionNorm norm2;
    VisionLinear in, out;  ///< of the MLP; gated: gate's rows, then up's
};
/// Makes one token of a square of patches.
struct VisionMerger {
    VisionNorm norm;  ///< of a patch, or of all that become the token
    VisionLinear in, out;
};

struct VisionWeights {
    at::Tensor patch_CK, patch_bias_C;  ///< the second undefined without
    at::Tensor positions_NC;            ///< learned; undefined without
    std::vector<VisionBlock> blocks;
    VisionMerger merger;
    std::vector<VisionMerger> deepstack;
    // Of a tower over tiles (spec::TilesSpec), which has no merger:
    /// Learned values, [N, C]: a tile's positions; the same of each tile of each arrangement; the class embedding; and
    /// one row for each tile of each arrangement before the layers, and one after them. Arrangements from 0 on.
    at::Tensor places_NC;
    VisionNorm norm_pre, norm_post;
    std::vector<VisionBlock> global_blocks;                  ///< gates are multiplied into proj and out
    VisionLinear projector;                                  ///< columns: the last layer's, then each chosen one's
    float place_gate = 0, before_gate = 0, behind_gate = 0;  ///< tanh, of the second, fourth and fifth part above
    at::Tensor value_CB;                                     ///< fp32 [3, 256]: the value of a channel's byte
    at::Tensor inv_freq_p, axis_p;  ///< fp32 and int32 [d / 2]: of the rotation by row and column

    /// Submits its buffers, for the whole run.
    /// `sources`: the folder's tensors (ModelTensors::vision), of which no values are read; empty: none is quantised.
    using Sources = std::vector<formats::TensorSource>;
    static void plan(const spec::VisionSpec& spec, at::ScalarType dtype, const Sources& sources,
                     memory::Plan& resident);
    /// Reads them. Of quantised ones 8-bit linears, and mllama's projector, are dequantized here.
    static VisionWeights load(const spec::VisionSpec& spec, at::ScalarType dtype, const Sources& sources,
                              const memory::Arena& arena);

    /// Submits the adapters' copies, for the whole run.
    static void plan_adapters(const std::vector<spec::TowerLora>& lora, at::ScalarType dtype, memory::Plan& resident);
    /// Gives the linears their adapters, whose values `parameters`, which must live as long, has by name. refresh()
    /// fills them.
    void adapt(const spec::VisionSpec& spec, const std::vector<spec::TowerLora>& lora, const Parameters& parameters,
               const memory::Arena& arena);
    bool adapted() const { return adapted_; }
    /// Copies the adapters' values, where they are not those of the time before.
    void refresh(const Parameters& parameters);

  private:
    bool adapted_ = false;
    uint64_t version_ = 0;  ///< of the parameters
};

/// The projector's columns as views: the last layer's [N, C], and those of the chosen layers [N, layers, C]. In the
/// folder a feature of the chosen layers is next to the same of the others: column j of number i is C + j layers + i.
struct ProjectorColumns {
    at::Tensor last_NC, chosen_NLC;
};
ProjectorColumns folder_columns(const at::Tensor& x_NK, int64_t layers);
/// As VisionWeights has them: each layer's together.
ProjectorColumns layer_columns(const at::Tensor& x_NK, int64_t layers);

/// Columns that an adapter of such a rank has in buffers.
constexpr int64_t padded_tower_rank(int64_t r) {
    return (r + 7) / 8 * 8;
}
/// Of the widest adapter; 0: there is none.
int64_t widest_tower_rank(const std::vector<spec::TowerLora>& lora);

}  // namespace unsloth::weights
