// The trained parameters, and where each of their tensors is in the flat layout.
#pragma once

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "unsloth/spec/stage.h"
#include "unsloth/spec/tensor_table.h"
#include "unsloth/spec/tower_lora.h"
#include "unsloth/weights/unit.h"

namespace unsloth::weights {

/// One trainable tensor.
struct Parameter {
    enum class Kind : uint8_t { lora_a, lora_b, magnitude, base };
    Kind kind = Kind::base;
    std::string name;  ///< as it is saved: PEFT's key for adapters, the HF name for a full model
    spec::TensorRole role = spec::TensorRole::linear;
    spec::LinearId id;  ///< as TensorRule's
    std::vector<int64_t> shape;
    int64_t offset = 0;     ///< in elements, a multiple of 256
    bool decays = true;     ///< weight decay applies
    float shift = 0;        ///< its values are the model's of that name and this (TensorRule::offset)
    bool of_tower = false;  ///< of the embeddings' unit, whose rows its tower makes
    int64_t experts = 0;    ///< E of an adapter of experts, whose rows are theirs in turn; 0: of none
    /// A B whose file has a row of gate and one of up in turn; here each expert has gate's rows, then up's.
    bool by_turns = false;
    /// As a file has it: PEFT stores the B of experts, here [E N, r], as [N, r E] with the experts innermost.
    std::vector<int64_t> stored_shape() const;
    int64_t elements() const;
    int64_t blocks() const;  ///< of the optimizer's, that it takes
    /// Which of the optimizer's learning rates it has: LoRA+ gives those of B (and of DoRA's magnitudes, as PEFT does)
    /// and of the embeddings factors of their own.
    enum RateGroup : uint8_t { usual_rate, lora_b_rate, embedding_rate };
    RateGroup rate_group() const;
};

/// Which of the equal slices of the flat layout a rank's optimizer has.
struct Share {
    int rank = 0, size = 1;
    bool operator==(const Share&) const = default;
};

/// Elements [begin, end) of a flat buffer.
struct ParameterSlice {
    int64_t begin = 0, end = 0;
    int64_t elements() const { return end - begin; }
    ParameterSlice with(ParameterSlice other) const {
        const int64_t first = std::max(begin, other.begin);
        return {first, std::max(first, std::min(end, other.end))};
    }
};

/// Elements that two layouts share, and where they begin in each.
struct CommonStretch {
    int64_t all = 0, own = 0, elements = 0;
};

/// The trained parameters, before any memory exists: the list and the flat layout.
class ParameterTable {
  public:
    ParameterTable() : ParameterTable(0) {}
    /// Adapters (A [r, K], B [N, r] per module, with DoRA m [N]) in layer order, then the tower's and modules_to_save,
    /// under PEFT's names. Decay on all, as torch.optim.AdamW over PEFT's parameters.
    static ParameterTable lora(const spec::ModelSpec& spec, const std::vector<spec::LayerLora>& lora,
                               const std::vector<std::string>& modules_to_save,
                               const std::vector<spec::TowerLora>& tower = {});
    /// Every tensor of the model; decay on 2-D tensors only.
    static ParameterTable full(const spec::ModelSpec& spec);

    /// What a rank of a pipeline trains of these, in a new layout; `tied`: the embeddings are lm_head, too.
    ParameterTable of(const spec::Stage& stage, bool tied) const;

    const std::vector<Parameter>& parameters() const { return parameters_; }
    int64_t flat_elements() const { return flat_; }  ///< with the padding to 256
    int64_t trainable_elements() const;              ///< without
    /// The first offset for the next parameter.
    int64_t end_of(const Parameter& p) const;
    /// Of flat buffers that `size` ranks share: flat_elements(), for several with what equal slices need more at the
    /// end. A slice begins where a chunk of the gradients' norm does, so that the norm has the same bits.
    int64_t padded_elements(int size) const;
    /// The rank's slice of the padded buffer, and what of it holds parameters.
    ParameterSlice padded_slice(Share share) const;
    ParameterSlice slice(Share share) const;
    const Parameter* find(spec::TensorRole role, spec::LinearId id, Parameter::Kind kind) const;

    /// Each unit (weights/unit.h) is one piece of the flat layout, which may be empty.
    int units() const { return head() + 1; }
    int head() const { return head_unit(layers_); }
    int unit_of(const Parameter& p) const;
    ParameterSlice unit(int number) const { return units_.at(static_cast<std::size_t>(number)); }
    /// Neighbours take different ones, and embeddings that are lm_head too one of their own.
    static constexpr int slots = 3;
    int slot_of(int unit) const { return unit == embedding_unit && embeddings_are_head_ ? 2 : unit % 2; }
    bool embeddings_are_head() const { return embeddings_are_head_; }  ///< and are trained

  private:
    explicit ParameterTable(int layers) : layers_(layers), units_(static_cast<std::size_t>(units())) {}
    void add(Parameter parameter);
    std::vector<Parameter> parameters_;
    std::map<std::tuple<spec::TensorRole, spec::LinearId, Parameter::Kind>, std::size_t> index_;  ///< of parameters_
    int64_t flat_ = 0;
    int layers_;
    std::vector<ParameterSlice> units_;
    bool embeddings_are_head_ = false;
};

/// Byte positions of the flat layout's elements, when each parameter has the type that passes read.
class WorkingLayout {
  public:
    WorkingLayout(const ParameterTable& table, at::ScalarType dtype);
    int64_t byte_of(int64_t element) const;  ///< ascending; up to the table's flat_elements()
    int64_t bytes(ParameterSlice slice) const { return byte_of(slice.end) - byte_of(slice.begin); }
    at::ScalarType type_of(const Parameter& p) const;
    bool all_fp32() const { return byte_of(flat_) == flat_ * static_cast<int64_t>(sizeof(float)); }

  private:
    at::ScalarType dtype_;
    int64_t flat_;
    std::vector<int64_t> first_, byte_, item_;  ///< of each parameter: element, byte, bytes of an element
};

}  // namespace unsloth::weights
