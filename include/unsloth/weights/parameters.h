// All trainable parameters: one flat fp32 buffer with named views, and the same for gradients and optimizer states, of
// which a rank may hold a slice.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "unsloth/config/config.h"
#include "unsloth/memory/plan.h"
#include "unsloth/ops/optimizer.h"
#include "unsloth/spec/lora_spec.h"
#include "unsloth/spec/stage.h"
#include "unsloth/spec/tensor_table.h"

namespace unsloth::weights {

/// One trainable tensor.
struct Parameter {
    enum class Kind : uint8_t { lora_a, lora_b, magnitude, base };
    Kind kind = Kind::base;
    std::string name;  ///< as it is saved: PEFT's key for adapters, the HF name for a full model
    spec::TensorRole role = spec::TensorRole::linear;
    int layer = -1;
    spec::Projection projection = spec::Projection::q;
    std::vector<int64_t> shape;
    int64_t offset = 0;  ///< in elements, a multiple of 256
    bool decays = true;  ///< weight decay applies
    int64_t elements() const;
    /// Which of the optimizer's learning rates it has: LoRA+ gives those of B (and of DoRA's magnitudes, as PEFT does)
    /// and of the embeddings factors of their own.
    enum RateGroup : uint8_t { usual_rate, lora_b_rate, embedding_rate };
    RateGroup rate_group() const;
};

/// The plan's group of what the optimizer keeps.
inline constexpr const char* optimizer_group = "optimizer state";
inline constexpr const char* copies_group = "checkpoints";

/// Which of the equal slices of the flat layout a rank's optimizer has.
struct Share {
    int rank = 0, size = 1;
    bool operator==(const Share&) const = default;
};

/// What of the buffers of training this rank has, and where. The slice is the share's; with on_host or splits_values
/// the passes read working copies (compute type for matrices of the model, fp32 for the rest) instead of the fp32
/// values.
struct Holding {
    Share share;
    bool splits_gradients = false;      ///< of the gradients it keeps the slice's sums; a unit's are made in a slot
    bool splits_values = false;         ///< of the values it keeps the slice; a unit's are gathered into a slot
    bool on_host = false;               ///< the slice's fp32 values, moments and sums of gradients are in host memory
    bool host_is_far = false;           ///< the device is none of the host's
    at::ScalarType dtype = at::kFloat;  ///< compute type
    bool has_copies() const { return splits_values || on_host; }
    bool has_streams() const { return splits_gradients || has_copies(); }
    bool operator==(const Holding&) const = default;
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

/// Elements that two layouts have in common, and where they begin in each.
struct CommonStretch {
    int64_t all = 0, own = 0, elements = 0;
};

/// What is trained, before any memory exists: the list and the flat layout.
class ParameterTable {
  public:
    ParameterTable() : ParameterTable(0) {}
    /// Adapters (A [r, K], B [N, r] per module, with DoRA m [N]) in layer order, then modules_to_save under PEFT's
    /// names. Decay on all, as torch.optim.AdamW over PEFT's parameters.
    static ParameterTable lora(const spec::ModelSpec& spec, const std::vector<spec::LayerLora>& lora,
                               const std::vector<std::string>& modules_to_save);
    /// Every tensor of the model; decay on 2-D tensors only.
    static ParameterTable full(const spec::ModelSpec& spec);

    /// What a rank of a pipeline trains of these, laid out anew; `tied`: the embeddings are lm_head, too.
    ParameterTable of(const spec::Stage& stage, bool tied) const;

    const std::vector<Parameter>& parameters() const { return parameters_; }
    int64_t flat_elements() const { return flat_; }  ///< with the padding to 256
    int64_t trainable_elements() const;              ///< without
    /// Where the next parameter may lie.
    int64_t end_of(const Parameter& p) const;
    /// Of flat buffers that so many ranks share: flat_elements(), for several with what equal slices need more at the
    /// end. A slice begins where a chunk of the gradients' norm does, so that the norm has the same bits.
    int64_t padded_elements(int size) const;
    /// The rank's slice of the padded buffer, and what of it holds parameters.
    ParameterSlice padded_slice(Share share) const;
    ParameterSlice slice(Share share) const;
    const Parameter* find(spec::TensorRole role, int layer, spec::Projection projection, Parameter::Kind kind) const;

    /// What a pass takes at a time: 0 the input embeddings, 1 + i the layer i, units() - 1 what the head is made of.
    /// Each is one piece of the flat layout, which may be empty.
    int units() const { return layers_ + 2; }
    int unit_of(const Parameter& p) const;
    ParameterSlice unit(int number) const { return units_.at(static_cast<std::size_t>(number)); }
    /// Neighbours take different ones, and embeddings that are lm_head too one of their own.
    static constexpr int slots = 3;
    int slot_of(int unit) const { return unit == 0 && embeddings_are_head_ ? 2 : unit % 2; }
    bool embeddings_are_head() const { return embeddings_are_head_; }  ///< and are trained

  private:
    explicit ParameterTable(int layers) : layers_(layers), units_(static_cast<std::size_t>(layers) + 2) {}
    void add(Parameter parameter);
    std::vector<Parameter> parameters_;
    int64_t flat_ = 0;
    int layers_;
    std::vector<ParameterSlice> units_;
    bool embeddings_are_head_ = false;
};

/// Where the elements of the flat layout lie, in bytes, when each parameter has the type that passes read.
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

/// The flat buffers, from the plan.
class Parameters {
  public:
    /// Submits what lies on the device: fp32 values and gradients, of the share's slice moments as `optimizer` asks
    /// (8-bit blocks for tensors of at least 4096 elements that are no embedding; the others 32-bit); with a holding
    /// that splits them slices and slots. Without `trains` only the values.
    static void plan(const ParameterTable& table, config::Optimizer optimizer, bool trains, const Holding& holding,
                     memory::Plan& device);
    /// And what lies in host memory.
    static void plan_host(const ParameterTable& table, config::Optimizer optimizer, bool trains, const Holding& holding,
                          memory::Plan& host);
    /// `host`: nullptr where plan_host submitted nothing.
    Parameters(ParameterTable table, config::Optimizer optimizer, bool trains, const Holding& holding,
               const memory::Arena& device, const memory::Arena* host = nullptr);
    /// Host memory for copies of saved(), which checkpoints are written from. None where saved() lies there itself.
    static void plan_copies(const ParameterTable& table, config::Optimizer optimizer, const Holding& holding,
                            memory::Plan& host);
    /// Those of the plan; the other tensors are undefined.
    static ops::AdamwState copies(const ParameterTable& table, config::Optimizer optimizer, const Holding& holding,
                                  const memory::Arena& host);
    /// Where the elements of one of the state's saved tensors lie among those of all ranks'.
    static ParameterSlice state_slice(const ParameterTable& table, config::Optimizer optimizer, Share share,
                                      at::Tensor ops::AdamwState::* member);
    /// Where the elements of one of the state's saved tensors lie that a table has of another's, in both: in order, as
    /// long as they lie together in both.
    static std::vector<CommonStretch> common(const ParameterTable& all, const ParameterTable& own,
                                             config::Optimizer optimizer, at::Tensor ops::AdamwState::* member);

    const ParameterTable& table() const { return table_; }
    const Holding& holding() const { return holding_; }
    Share share() const { return holding_.share; }
    ParameterSlice own() const { return table_.slice(share()); }
    /// What passes read. In a slot it is the parameter while the slot has its unit.
    at::Tensor value(const Parameter& p) const;
    /// What passes add to.
    at::Tensor gradient(const Parameter& p) const;

    /// The fp32 values of held(), padded where that is all.
    at::Tensor values_P;
    ParameterSlice held() const;
    bool holds_all() const { return !holding_.has_copies() || share().size == 1; }
    /// Gives what this rank holds of it its values: fp32, all of the parameter's.
    void assign(const Parameter& p, const at::Tensor& values) const;
    /// Whole and padded; undefined where they are split.
    at::Tensor gradients_P;
    /// Of the padded slice: sums over micro-batches, with split gradients over ranks.
    at::Tensor own_gradients_P;

    /// Bytes by `working`: this rank's (of its slice with split values, else of all); undefined: there are none.
    at::Tensor copies_b;
    const WorkingLayout& working() const { return working_; }
    ParameterSlice copied() const { return holding_.splits_values ? own() : ParameterSlice{0, table_.flat_elements()}; }
    /// A unit's bytes in its slot; its gradients.
    at::Tensor value_slot(int unit) const;
    at::Tensor gradient_slot(int unit) const;
    at::Tensor far_sums;  ///< fp32 on the device, of the largest unit: sums that come back from the host
    at::Tensor staging;   ///< in host memory: two pieces of staged_elements that are copied to the device
    static constexpr int64_t staged_elements = int64_t{4} << 20;
    at::Tensor far_squares;  ///< fp64 on the device: sums of squares of what leaves for the host, by unit
    static int64_t far_chunks(ParameterSlice part) {
        return (part.elements() + ops::gradient_norm_chunk - 1) / ops::gradient_norm_chunk;
    }

    /// What the optimizer changes: of the share's slice.
    ops::AdamwState& state() { return state_; }
    const ops::AdamwState& state() const { return state_; }
    /// What a checkpoint is made of: state(), where all values are held on the first rank of the share with all values.
    ops::AdamwState saved() const;
    at::Tensor norm_scratch;
    /// Increases whenever values change; compute copies compare it to know that they are stale.
    uint64_t version = 1;

  private:
    at::Tensor working_view(const at::Tensor& bytes, int64_t first_byte, const Parameter& p) const;
    void fill_flags(config::Optimizer optimizer);
    ParameterTable table_;
    Holding holding_;
    WorkingLayout working_;
    ops::AdamwState state_;
    std::array<at::Tensor, ParameterTable::slots> value_slots_, gradient_slots_;
};

}  // namespace unsloth::weights
