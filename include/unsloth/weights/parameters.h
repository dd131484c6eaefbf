// All trainable parameters: one flat fp32 buffer with named views, and the same for gradients and optimizer states, of
// which a rank may hold a slice.
#pragma once

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
};

/// Elements [begin, end) of a flat buffer.
struct ParameterSlice {
    int64_t begin = 0, end = 0;
    int64_t elements() const { return end - begin; }
};

/// Elements that two layouts have in common, and where they begin in each.
struct CommonStretch {
    int64_t all = 0, own = 0, elements = 0;
};

/// What is trained, before any memory exists: the list and the flat layout.
class ParameterTable {
  public:
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

  private:
    void add(Parameter parameter);
    std::vector<Parameter> parameters_;
    int64_t flat_ = 0;
};

/// The flat buffers on a device, from the plan.
class Parameters {
  public:
    /// Submits the flat buffers: fp32 values and gradients, of the share's slice moments as `optimizer` asks (8-bit
    /// blocks for tensors of at least 4096 elements that are no embedding; the others 32-bit). Without `trains` only
    /// the values.
    static void plan(const ParameterTable& table, config::Optimizer optimizer, bool trains, Share share,
                     memory::Plan& plan);
    Parameters(ParameterTable table, config::Optimizer optimizer, bool trains, Share share, const memory::Arena& arena);
    /// Host memory for copies of saved(), which checkpoints are written from.
    static void plan_copies(const ParameterTable& table, config::Optimizer optimizer, Share share, memory::Plan& host);
    /// Those of the plan; the other tensors are undefined.
    static ops::AdamwState copies(const ParameterTable& table, config::Optimizer optimizer, Share share,
                                  const memory::Arena& host);
    /// Where the elements of one of the state's saved tensors lie among those of all ranks'.
    static ParameterSlice state_slice(const ParameterTable& table, config::Optimizer optimizer, Share share,
                                      at::Tensor ops::AdamwState::* member);
    /// Where the elements of one of the state's saved tensors lie that a table has of another's, in both: in order, as
    /// long as they lie together in both.
    static std::vector<CommonStretch> common(const ParameterTable& all, const ParameterTable& own,
                                             config::Optimizer optimizer, at::Tensor ops::AdamwState::* member);
    /// Sizes and types of saved() for a table's parameters, on no device.
    static ops::AdamwState saved_shapes(const ParameterTable& table, config::Optimizer optimizer);

    const ParameterTable& table() const { return table_; }
    at::Tensor value(const Parameter& p) const { return view(values_P, p); }
    at::Tensor gradient(const Parameter& p) const { return view(gradients_P, p); }
    Share share() const { return share_; }
    /// All of them, padded.
    at::Tensor values_P, gradients_P;
    /// What the optimizer changes: of the share's slice.
    ops::AdamwState& state() { return state_; }
    const ops::AdamwState& state() const { return state_; }
    /// What a checkpoint is made of: state(), on the first rank of the share with all values.
    ops::AdamwState saved() const;
    at::Tensor norm_scratch;
    /// Increases whenever values change; compute copies compare it to know that they are stale.
    uint64_t version = 1;

  private:
    static at::Tensor view(const at::Tensor& flat, const Parameter& p);
    ParameterTable table_;
    Share share_;
    ops::AdamwState state_;
};

}  // namespace unsloth::weights
