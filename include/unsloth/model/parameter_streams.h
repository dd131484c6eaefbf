// What of the trained parameters a rank does not keep, on its way: a unit's values (the embeddings, a layer, the head)
// are gathered into a slot ahead of the passes that read them, and its gradients leave their slot, summed over the
// ranks, while the backward pass goes on. What is kept may lie in host memory.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "unsloth/comm/communicator.h"
#include "unsloth/ops/copy_stream.h"
#include "unsloth/weights/layer_prefetcher.h"
#include "unsloth/weights/parameters.h"

namespace unsloth::model {

class ParameterStreams {
  public:
    /// `ranks`: those of the parameters' share, nullptr where it is one's. Both outlive this.
    ParameterStreams(ops::Context& ctx, weights::Parameters& parameters, comm::Communicator* ranks);

    /// Gathers units' values, by their numbers: all ranks begin and enter alike. nullptr: each rank has them all.
    weights::LayerPrefetcher* values() const { return values_.get(); }

    /// The fp32 values changed: passes find them from now on. All ranks together.
    void publish(const std::string& what);
    /// The same in two parts, for values that change a piece at a time (elements of the flat layout, of this rank's
    /// slice): any number of publish_piece, then the rest. With values in host memory the piece leaves while the host
    /// goes on.
    void publish_piece(weights::ParameterSlice piece);
    void finish_publishing(const std::string& what);

    bool splits_gradients() const { return parameters_.holding().splits_gradients; }
    /// The sums of step number `step` begin.
    void begin_step(int64_t step);
    /// Before a pass that adds to gradients of these units, in this order: all ranks pass alike. A unit keeps its slot
    /// until the pass has another one take it.
    void begin_pass(const std::vector<int>& units);
    /// What is issued from now on adds to the gradients of the pass's next unit, which start from zero where they come
    /// into their slot. CheckError where the pass said otherwise.
    void enter(int unit);
    /// What was issued has added to them: they leave if another unit takes the slot next, or none.
    void release(int unit);
    /// They are complete.
    void leave(int unit);
    /// Later work sees this rank's sums of all that left; where these lie in host memory the host does.
    void join();

  private:
    void gather(int unit);
    void keep(int unit, const at::Tensor& sums, weights::ParameterSlice part, bool first);
    bool far() const { return parameters_.holding().on_host && parameters_.holding().host_is_far; }
    int ranks() const { return parameters_.share().size; }
    std::string name_of(int unit) const;

    ops::Context& ctx_;
    weights::Parameters& parameters_;
    comm::Communicator* ranks_;
    ops::CopyStream gradients_, pieces_;
    std::unique_ptr<weights::LayerPrefetcher> values_;
    std::vector<int> pass_;                                       ///< its units that have gradients
    std::size_t entered_ = 0;                                     ///< of the pass
    std::array<int, weights::ParameterTable::slots> in_slots_{};  ///< -1: none
    std::array<bool, weights::ParameterTable::slots> leaving_{};
    std::vector<bool> kept_;  ///< by unit: of this step's gradients some are among the sums
    std::array<bool, 2> staged_{};
    int next_stage_ = 0;
    int64_t step_ = 0;
};

}  // namespace unsloth::model
