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
using LayerMargins = ByGroup<GroupMargins>;

/// The adapters' parameters by linear.
class Adapters {
  public:
    Adapters(const Parameters& parameters, const std::vector<spec::LayerLora>& lora);
    uint64_t version() const { return parameters_.version; }
    at::Tensor value(const Parameter& p) const { return parameters_.value(p); }
    const std::vector<spec::LayerLora>& layers() const { return lora_; }
    const spec::LayerLora& lora(int layer) const { return lora_.at(static_cast<std::size_t>(layer)); }
    /// A linear's parameters; nullptr where it has no adapter.
    const Parameter* a(spec::LinearId id) const { return of(id).a; }
    const Parameter* b(spec::LinearId id) const { return of(id).b; }
    /// DoRA's; nullptr without.
    const Parameter* magnitude(spec::LinearId id) const { return of(id).magnitude; }

  private:
    struct Trained {
        const Parameter *a = nullptr, *b = nullptr, *magnitude = nullptr;
    };
    const Trained& of(spec::LinearId id) const;
    const Parameters& parameters_;
    std::vector<spec::LayerLora> lora_;
    std::map<spec::LinearId, Trained> trained_;
};

class AdapterMargins {
  public:
    static constexpr const char* usual_table = "adapters' table";
    /// Submits the table of that name, which one launch works from. `transposed`: the margins have an a_KR.
    static void plan(const LayerLayout& layout, const std::vector<spec::LayerLora>& lora, at::Device device,
                     bool transposed, memory::Plan& plan, const char* table = usual_table);
    /// `margins`: one a layer (the same ones for layers that are dequantized in turn).
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
