// Several adapters on one base, of which each token of a pass has one or none.
//
// Concatenated they are one adapter, whose rank is the sum of theirs: u = x · [A₁; A₂; …]ᵀ, and a token keeps the
// columns of u that its own adapter has (ops::zero_others). So GEMMs and kernels are those of one adapter.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "unsloth/formats/peft.h"
#include "unsloth/memory/plan.h"
#include "unsloth/weights/layout.h"
#include "unsloth/weights/parameters.h"

namespace unsloth::weights {

struct NamedAdapter {
    std::string name;
    std::string folder;  ///< PEFT's
};

/// Places for adapters that come and go while the model is loaded.
struct AdapterSlots {
    int64_t count = 0;
    int64_t rank = 0;      ///< of each place, in every projection: the largest of an adapter that it can take
    bool experts = false;  ///< a place has adapters of experts, too: of each expert one
};

/// input Error, with the adapter's name, where it does not fit the model, has DoRA (which scales what the base gives,
/// too) or modules_to_save.
formats::Adapter read_for_batches(const NamedAdapter& named, const spec::ModelSpec& model);
bool adapts_experts(const formats::Adapter& adapter);
/// Of any module.
int64_t largest_rank(const formats::Adapter& adapter);
/// Gives a slot these values, or zeros (nullptr). The parameters are those of MultiLoraAdapters(slots, …); no pass that
/// reads the slot may be issued meanwhile, and model::Model::parameters_changed() follows.
void write_slot(const Parameters& parameters, const AdapterSlots& slots, int64_t slot, const formats::Adapter* adapter);

class MultiLoraAdapters {
  public:
    /// Errors as read_for_batches().
    MultiLoraAdapters(const std::vector<NamedAdapter>& adapters, const spec::ModelSpec& model);
    /// Slots, all of them empty.
    MultiLoraAdapters(const AdapterSlots& slots, const spec::ModelSpec& model);

    /// The modules of all of them as one adapter's; s is in the values of B.
    const std::vector<spec::LayerLora>& layers() const { return layers_; }
    /// fp32 on the CPU, zeros where an adapter has not the parameter's module.
    at::Tensor values(const Parameter& p) const;

    /// What owners() cuts its tensors from.
    void plan(const LayerLayout& layout, memory::Plan& plan) const;
    /// Of each column of a group's tail the number of the adapter that has it, -2: none. int32 [R] on the arena's
    /// device, the same in all layers.
    ByGroup<at::Tensor> owners(const LayerLayout& layout, const memory::Arena& arena) const;

  private:
    std::vector<formats::Adapter> adapters_;
    std::vector<std::map<spec::Projection, int64_t>> ranks_;  ///< of each adapter, the largest of any layer
    std::vector<spec::LayerLora> layers_;
};

}  // namespace unsloth::weights
