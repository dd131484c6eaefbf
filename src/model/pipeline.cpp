#include "unsloth/model/pipeline.h"

#include "unsloth/core/error.h"
#include "unsloth/ops/profiler.h"

namespace unsloth::model {
namespace {

std::string name_of(Direction direction, int micro) {
    return cat(direction == Direction::forward ? "the activations of micro-batch " : "the gradients of micro-batch ",
               micro + 1);
}

/// Of the two ranks of a link.
int other(const comm::Communicator& link) {
    return 1 - link.rank();
}

}  // namespace

Pipeline::Pipeline(const comm::Mesh* mesh, spec::Stage stage, const PipelineShape& shape)
    : stage_(std::move(stage)), shape_(shape) {
    if (alone()) return;
    places_ = pipeline_schedule(shape).places;
    mesh_ = mesh;
}

ChunkPasses Pipeline::passes(int micro_batches) const {
    PipelineShape shape = shape_;
    shape.micro_batches = micro_batches;
    return pipeline_schedule(shape, places_).passes.at(static_cast<std::size_t>(stage_.rank));
}

void Borders::receive(Direction direction, const at::Tensor& values_TD, int micro) {
    const ops::Region region(ctx_, "pipeline");
    const comm::PipelineLinks& links = pipeline_.mesh()->links();
    comm::Communicator* const link = direction == Direction::forward ? links.from_below : links.from_above;
    if (connects_) link->receive(values_TD, other(*link), name_of(direction, micro));
}

void Borders::send(Direction direction, const at::Tensor& values_TD, int micro, int place) {
    const ops::Region region(ctx_, "pipeline");
    const comm::PipelineLinks& links = pipeline_.mesh()->links();
    comm::Communicator* const link = direction == Direction::forward ? links.to_above : links.to_below;
    if (connects_) sent_[place].push_back(link->send_async(values_TD, other(*link), name_of(direction, micro)));
}

void Borders::release(int place) {
    std::vector<std::unique_ptr<comm::Message>>& sent = sent_[place];
    for (const std::unique_ptr<comm::Message>& message : sent) message->wait();
    sent.clear();
}

void Borders::release_all() {
    for (const auto& [place, sent] : sent_) release(place);
}

}  // namespace unsloth::model
