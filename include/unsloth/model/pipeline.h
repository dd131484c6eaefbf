// The ranks that pass a micro-batch's activations and their gradients on to each other, each with its stage of the
// network (spec/stage.h).
//
// Every rank has its own flat buffers of what it trains: gradients are summed over the ranks of one stage, the norm
// over all stages, and tied embeddings, which the first stage and the last one have, over these two.
#pragma once

#include <map>
#include <memory>
#include <utility>

#include "unsloth/comm/mesh.h"
#include "unsloth/model/pipeline_schedule.h"
#include "unsloth/ops/context.h"

namespace unsloth::model {

class Pipeline {
  public:
    Pipeline() = default;
    /// `mesh`, not owned: with links that make a ring where a rank has several chunks; nullptr: to plan with. `shape`:
    /// of a whole step.
    Pipeline(const comm::Mesh* mesh, spec::Stage stage, const PipelineShape& shape);

    const spec::Stage& stage() const { return stage_; }
    bool alone() const { return stage_.alone(); }
    const PipelineShape& shape() const { return shape_; }
    /// This rank's micro-batches in flight: how many have activations of their own.
    int places() const { return alone() ? 1 : places_[static_cast<std::size_t>(stage_.rank)]; }
    /// Of a step of this many micro-batches.
    ChunkPasses passes(int micro_batches) const;
    /// nullptr where the pipeline has one rank, or is planned alone.
    const comm::Mesh* mesh() const { return mesh_; }

  private:
    spec::Stage stage_;
    PipelineShape shape_;
    std::vector<int> places_;
    const comm::Mesh* mesh_ = nullptr;
};

/// What goes over the borders between this rank's layers and others'.
class Borders {
  public:
    Borders(ops::Context& ctx, const Pipeline& pipeline) : ctx_(ctx), pipeline_(pipeline) {}

    /// The input of the layer above a border, from the rank below (forward), or its gradient from the rank above.
    void receive(Direction direction, const at::Tensor& values_TD, int micro);
    /// Sends the same to the other rank, overlapped with later work; the values stay until release() of the place.
    void send(Direction direction, const at::Tensor& values_TD, int micro, int place);
    /// What was sent of the micro-batch in this place has arrived, for work issued afterwards.
    void release(int place);
    void release_all();
    /// For benches: whether anything is sent. What is not received keeps its old values.
    void connect(bool connects) { connects_ = connects; }

  private:
    ops::Context& ctx_;
    const Pipeline& pipeline_;
    std::map<int, std::vector<std::unique_ptr<comm::Message>>> sent_;  ///< by place
    bool connects_ = true;
};

}  // namespace unsloth::model
