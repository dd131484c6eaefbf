// Keeps the adapters in the margins of the layers' weights: A into the last R rows of a group's buffer, s·B into the
// last R columns (weights/layout.h); what no module of a layer uses becomes 0.
#pragma once

#include "unsloth/ops/multi_tensor_copy.h"
#include "unsloth/weights/layout.h"
#include "unsloth/weights/parameters.h"

namespace unsloth::weights {

/// Where a layer's margins of one group are.
struct GroupMargins {
    at::Tensor a_RK, b_NR;
    at::Tensor a_KR;  ///< A transposed; undefined: not wanted
};
using LayerMargins = std::array<GroupMargins, group_count>;

/// The adapters' parameters by layer and projection.
class Adapters {
  public:
    Adapters(const Parameters& parameters, const std::vector<spec::LayerLora>& lora);
    uint64_t version() const { return parameters_.version; }
    at::Tensor value(const Parameter& p) const { return parameters_.value(p); }
    const std::vector<spec::LayerLora>& layers() const { return lora_; }
    const spec::LayerLora& lora(int layer) const { return lora_.at(static_cast<std::size_t>(layer)); }
    /// A projection's parameters in a layer; nullptr where it has no adapter.
    const Parameter* a(int layer, spec::Projection p) const { return at(a_, layer, p); }
    const Parameter* b(int layer, spec::Projection p) const { return at(b_, layer, p); }
    /// DoRA's; nullptr without.
    const Parameter* magnitude(int layer, spec::Projection p) const { return at(magnitude_, layer, p); }

  private:
    const Parameter* at(const std::vector<const Parameter*>& list, int layer, spec::Projection p) const {
        return list[static_cast<std::size_t>(layer * spec::projection_count + static_cast<int>(p))];
    }
    const Parameters& parameters_;
    std::vector<spec::LayerLora> lora_;
    std::vector<const Parameter*> a_, b_, magnitude_;
};

class AdapterMargins {
  public:
    static constexpr const char* usual_table = "adapters' table";
    /// Submits the table of that name, which one launch works from. `transposed`: the margins have an a_KR.
    static void plan(const LayerLayout& layout, const std::vector<spec::LayerLora>& lora, at::Device device,
                     bool transposed, memory::Plan& plan, const char* table = usual_table);
    /// `margins`: one a layer (the same ones for layers that are expanded in turn).
    AdapterMargins(ops::Context& ctx, const Adapters& adapters, const LayerLayout& layout,
                   const std::vector<LayerMargins>& margins, const memory::Arena& arena,
                   const char* table = usual_table);
    /// The margins of layers [first, first + count), with one launch; no two of them may be the same memory.
    void fill(ops::Context& ctx, int first, int count = 1) const { table_.run(ctx, first, count); }
    uint64_t version() const { return adapters_->version(); }

  private:
    const Adapters* adapters_;
    ops::MultiTensorCopy table_;
};

}  // namespace unsloth::weights
