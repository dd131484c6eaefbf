// All trainable parameters: one flat fp32 buffer with named views, and the same for gradients and optimizer states.
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

/// What is trained, before any memory exists: the list and the flat layout.
class ParameterTable {
  public:
    /// Adapters (A [r, K], B [N, r] per module, with DoRA m [N]) in layer order, then modules_to_save under PEFT's
    /// names. Decay on all, as torch.optim.AdamW over PEFT's parameters.
    static ParameterTable lora(const spec::ModelSpec& spec, const std::vector<spec::LayerLora>& lora,
                               const std::vector<std::string>& modules_to_save);
    /// Every tensor of the model; decay on 2-D tensors only.
    static ParameterTable full(const spec::ModelSpec& spec);

    const std::vector<Parameter>& parameters() const { return parameters_; }
    int64_t flat_elements() const { return flat_; }  ///< with the padding to 256
    int64_t trainable_elements() const;              ///< without
    const Parameter* find(spec::TensorRole role, int layer, spec::Projection projection, Parameter::Kind kind) const;

  private:
    void add(Parameter parameter);
    std::vector<Parameter> parameters_;
    int64_t flat_ = 0;
};

/// The flat buffers on a device, from the plan.
class Parameters {
  public:
    /// Submits the flat buffers: fp32 values and gradients, moments as `optimizer` asks (8-bit blocks for tensors of at
    /// least 4096 elements that are no embedding; the others 32-bit). Without `trains` only the values.
    static void plan(const ParameterTable& table, config::Optimizer optimizer, bool trains, memory::Plan& plan);
    Parameters(ParameterTable table, config::Optimizer optimizer, bool trains, const memory::Arena& arena);
    /// Host memory for copies of what training changes, which checkpoints are written from: values and moments.
    static void plan_copies(const ParameterTable& table, config::Optimizer optimizer, memory::Plan& host);
    /// Those of the plan; the other tensors are undefined.
    static ops::AdamwState copies(const ParameterTable& table, config::Optimizer optimizer, const memory::Arena& host);

    const ParameterTable& table() const { return table_; }
    at::Tensor value(const Parameter& p) const { return view(state_.params_P, p); }
    at::Tensor gradient(const Parameter& p) const { return view(state_.grads_P, p); }
    ops::AdamwState& state() { return state_; }
    const ops::AdamwState& state() const { return state_; }
    at::Tensor norm_scratch;
    /// Increases whenever values change; compute copies compare it to know that they are stale.
    uint64_t version = 1;

  private:
    static at::Tensor view(const at::Tensor& flat, const Parameter& p);
    ParameterTable table_;
    ops::AdamwState state_;
};

}  // namespace unsloth::weights
