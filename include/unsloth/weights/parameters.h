// All trainable parameters: one flat fp32 buffer with named views, and the same for gradients and optimizer states, of
// which a rank may hold a slice.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "unsloth/config/config.h"
#include "unsloth/memory/plan.h"
#include "unsloth/ops/optimizer.h"
#include "unsloth/weights/parameter_table.h"
#include "unsloth/weights/sharding.h"

namespace unsloth::weights {

/// The plan's group of what the optimizer keeps.
inline constexpr const char* optimizer_group = "optimizer state";
inline constexpr const char* copies_group = "checkpoints";

/// A parameter's values as files have them (Parameter::stored_shape), and from these; on the CPU.
at::Tensor to_stored(const Parameter& p, const at::Tensor& values);
at::Tensor from_stored(const Parameter& p, const at::Tensor& stored);

/// The flat buffers, from the plan.
class Parameters {
  public:
    /// Submits what is on the device: fp32 values and gradients, of the share's slice moments as `optimizer` asks
    /// (8-bit blocks for tensors of at least 4096 elements that are no embedding; the others 32-bit); where they are
    /// sharded slices and slots. Without `trains` only the values.
    static void plan(const ParameterTable& table, config::Optimizer optimizer, bool trains,
                     const ShardingPolicy& sharding, memory::Plan& device);
    /// And what is in host memory.
    static void plan_host(const ParameterTable& table, config::Optimizer optimizer, bool trains,
                          const ShardingPolicy& sharding, memory::Plan& host);
    /// `host`: nullptr where plan_host submitted nothing.
    Parameters(ParameterTable table, config::Optimizer optimizer, bool trains, const ShardingPolicy& sharding,
               const memory::Arena& device, const memory::Arena* host = nullptr);
    /// Host memory for copies of saved(), which checkpoints are written from. None where saved() is there itself.
    static void plan_copies(const ParameterTable& table, config::Optimizer optimizer, const ShardingPolicy& sharding,
                            memory::Plan& host);
    /// Those of the plan; the other tensors are undefined. `host`: nullptr where plan_copies submitted nothing.
    static ops::AdamwState copies(const ParameterTable& table, config::Optimizer optimizer,
                                  const ShardingPolicy& sharding, const memory::Arena* host);
    /// The position of the elements of one of the state's saved tensors among those of all ranks'.
    static ParameterSlice state_slice(const ParameterTable& table, config::Optimizer optimizer, Share share,
                                      at::Tensor ops::AdamwState::* member);
    /// The elements of one of the state's saved tensors that two tables share, with their positions in both: in order,
    /// each as long as it is contiguous in both.
    static std::vector<CommonStretch> common(const ParameterTable& all, const ParameterTable& own,
                                             config::Optimizer optimizer, at::Tensor ops::AdamwState::* member);

    const ParameterTable& table() const { return table_; }
    const ShardingPolicy& sharding() const { return sharding_; }
    Share share() const { return sharding_.share; }
    ParameterSlice own() const { return table_.slice(share()); }
    /// What passes read. In a slot it is the parameter while the slot has its unit.
    at::Tensor value(const Parameter& p) const;
    /// What passes add to.
    at::Tensor gradient(const Parameter& p) const;

    /// The fp32 values of held(), padded where that is all.
    at::Tensor values_P;
    ParameterSlice held() const;
    bool holds_all() const { return sharding_.holds_all(); }
    /// Sets this rank's part of the parameter from its values: fp32, all of the parameter's.
    void assign(const Parameter& p, const at::Tensor& values) const;
    /// Whole and padded; undefined where they are split.
    at::Tensor gradients_P;
    /// Of the padded slice: sums over micro-batches, with split gradients over ranks.
    at::Tensor own_gradients_P;

    /// Bytes by `working`: this rank's (of its slice with split values, else of all); undefined: there are none.
    at::Tensor copies_b;
    const WorkingLayout& working() const { return working_; }
    ParameterSlice copied() const {
        return sharding_.splits_values() ? own() : ParameterSlice{0, table_.flat_elements()};
    }
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
    ShardingPolicy sharding_;
    WorkingLayout working_;
    ops::AdamwState state_;
    std::array<at::Tensor, ParameterTable::slots> value_slots_, gradient_slots_;
};

}  // namespace unsloth::weights
