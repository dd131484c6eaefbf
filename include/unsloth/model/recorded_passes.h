// Forward and backward passes over the layers as CUDA graphs, for the shapes that come most often.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <vector>

#include "unsloth/core/most_used.h"
#include "unsloth/model/micro_batch.h"
#include "unsloth/model/pass_schedule.h"
#include "unsloth/ops/cuda_graph.h"
#include "unsloth/weights/weight_provider.h"

namespace unsloth::model {

/// Shapes of micro-batches whose passes are recorded at a time.
inline constexpr std::size_t recorded_shapes = 8;
/// Likewise of a training run's decode passes: the rows of a rollout end one by one, through many shapes.
inline constexpr std::size_t recorded_decode_shapes = 24;
/// Likewise where nothing is trained: clients come and go, with several lengths.
inline constexpr std::size_t recorded_answer_shapes = 64;

class RecordedPasses {
  public:
    explicit RecordedPasses(std::size_t shapes) : by_shape_(shapes) {}

    /// Before the forward pass of these micro-batches in flight: takes their recordings, if rows of equal length make
    /// them a shape that comes often. Passes are issued as they come the first time that a shape is met (libraries
    /// choose algorithms then), recorded afterwards.
    void choose(const ops::Context& ctx, const std::vector<const MicroBatch*>& in_flight);
    /// The passes that follow are issued as they come.
    void choose_none() { chosen_ = nullptr; }
    /// Issues one direction's work over all layers, recording it first where choose() took a recording without it.
    /// What it does must depend on the shapes alone; what changes from step to step is read from device memory.
    void issue(ops::Context& ctx, Direction direction, weights::WeightProvider& weight_provider, PassCounts& counts,
               const std::function<void()>& work);
    bool empty() const { return by_shape_.size() == 0; }

  private:
    struct Recording {
        std::optional<ops::CudaGraph> work;
        weights::WeightProvider::Held leaves_held;  ///< what the pager's slots hold afterwards
        PassCounts counts;                          ///< what it repeats
    };
    using CudaGraphs = std::array<Recording, 2>;  ///< by direction
    MostUsed<std::vector<int64_t>, CudaGraphs> by_shape_;
    CudaGraphs* chosen_ = nullptr;  ///< of the micro-batches in flight
};

}  // namespace unsloth::model
