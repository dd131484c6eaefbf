// In which order a pipeline's ranks pass micro-batches through their layers: one forward, one backward
// (PipeDream-Flush, arXiv 2006.09503), and the same with several chunks of layers a rank (arXiv 2104.04473).
#pragma once

#include <vector>

#include "unsloth/model/pass_schedule.h"
#include "unsloth/spec/stage.h"

namespace unsloth::model {

struct PipelineShape {
    int ranks = 1;
    int chunks = 1;  ///< of layers, a rank's
    int micro_batches = 1;
    int in_flight = 0;  ///< most micro-batches between their passes at once, from 1 on; 0: as many as keep all busy
    bool operator==(const PipelineShape&) const = default;
};

/// A micro-batch's pass through one of the rank's chunks, numbered from 0.
struct ChunkPass {
    Direction direction = Direction::forward;
    int micro = 0, chunk = 0;
    bool operator==(const ChunkPass&) const = default;
};
using ChunkPasses = std::vector<ChunkPass>;

struct PipelineSchedule {
    std::vector<ChunkPasses> passes;  ///< of each rank, in order
    /// Micro-batches that each rank has in flight at most: number m takes place m mod that.
    std::vector<int> places;
    int64_t time = 0;  ///< of the step, where a chunk's forward pass takes one and its backward pass two
};

/// The order follows from a simulation, so that no rank waits for what another does later: a micro-batch takes a place
/// when the gradient of the one before has been received. The first micro-batches go first, both ways; several chunks
/// take them in groups of as many as there are ranks. `places`: of a step with more micro-batches, to be kept to.
PipelineSchedule pipeline_schedule(const PipelineShape& shape, const std::vector<int>& places = {});

/// The share of a step in which a rank waits, where all chunks take alike and sending takes no time:
/// (ranks - 1) / (chunks x micro-batches + ranks - 1).
double pipeline_bubble(const PipelineShape& shape);

/// What a rank does of them: micro-batches come in, their activations arrive from the rank that has the layers below,
/// or are sent on; gradients likewise the other way. A gradient goes no lower than `route` says.
PassSchedule pipeline_pass_schedule(const spec::Stage& stage, const ChunkPasses& passes, const TrainingRoute& route);
/// A forward pass of the first micro-batch through a rank's chunks.
PassSchedule pipeline_forward(const spec::Stage& stage);

}  // namespace unsloth::model
