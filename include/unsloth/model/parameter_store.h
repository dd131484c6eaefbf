// The trained parameters in a step, wherever this rank keeps them: values come to the passes that read them, gradients
// leave the passes that make them, ranks sum these, and the optimizer changes what this rank keeps.
//
// The order of a step: begin_step; for each pass begin_pass, then acquire, gradients and release unit by unit
// (weights/unit.h); end_passes; reduce and finish_reduce; norm; update. All ranks of a step call them alike. On CUDA
// nothing synchronises, except for states in host memory.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "unsloth/comm/group.h"
#include "unsloth/model/gradient_buckets.h"
#include "unsloth/model/pipeline.h"
#include "unsloth/ops/copy_stream.h"
#include "unsloth/ops/event.h"
#include "unsloth/ops/optimizer.h"
#include "unsloth/weights/layer_prefetcher.h"
#include "unsloth/weights/parameters.h"

namespace unsloth::model {

class ParameterStore {
  public:
    /// `data_parallel`: the data-parallel group of the parameters' share, nullptr where it is one's. `tied`: the
    /// embeddings that another stage of the pipeline trains too, as lm_head; nullptr: none. All outlive this.
    ParameterStore(ops::Context& ctx, weights::Parameters& parameters, comm::Communicator* data_parallel,
                   Pipeline pipeline, const weights::Parameter* tied);

    /// Before the first pass: gradients are summed over these ranks from now on, in buckets of up to `bucket_bytes`
    /// while the backward pass runs; 0: all together, after it. Of a step of several micro-batches the last one counts.
    void join(comm::Group& group, int64_t bucket_bytes);
    /// For benches: whether ranks exchange gradients, norms and values. At first they do.
    void set_sharing(bool shares) { shares_ = shares; }
    bool shares() const { return shares_; }

    weights::Parameters& parameters() const { return parameters_; }
    const weights::Parameter* tied() const { return tied_; }
    /// This rank's embeddings are lm_head of another stage, which counts them.
    bool repeats_tied() const { return tied_ != nullptr && !pipeline_.stage().first(); }
    /// The ranks that keep other parameters or slices: sums over all parameters are summed over each of these.
    std::vector<comm::Communicator*> others() const;

    // Values
    /// Gathers units' values by their numbers; nullptr: each rank has them all.
    weights::LayerPrefetcher* values() const { return values_.get(); }
    /// The fp32 values changed: passes find them from now on. All ranks together.
    void publish(const std::string& what);

    // A step's passes
    void begin_step(int64_t step);
    /// A pass reads these units and, if it trains, adds to gradients of `trained`, in this order. A unit keeps its
    /// gradient slot until the pass has another one take it.
    void begin_pass(const std::vector<int>& read, const std::vector<int>& trained, bool trains);
    /// Work issued from now on finds the unit's values.
    void acquire(int unit);
    /// Work issued from now on adds to the gradients of the pass's next unit. In a slot they start from zero.
    /// CheckError where begin_pass said otherwise.
    void gradients(int unit);
    /// The pass is done with the unit's gradients.
    void release(int unit);
    /// All passes of the step are issued; `any`: there was one.
    void end_passes(bool any);

    // Its end
    /// Issues the sums over the ranks that joined. Ranks that shard gradients or states have those of their slice.
    void reduce(int64_t step);
    /// Later work sees the sums. Other sums over ranks may be issued between the two.
    void finish_reduce(int64_t step);
    /// Into the context's outcome: the norm, the factor that clips, whether the step is skipped. Sums of squares are
    /// added in the same order by ranks that have slices as by one that has all.
    void norm(int64_t step);
    /// The optimizer's step of this rank's slice, unless the outcome says that it is skipped, and the values' way to
    /// the passes of all ranks. `scalars`: those of the context, in host memory. With states in host memory the host
    /// waits for the device's outcome, and later work of the device for the host's.
    void update(const ops::AdamwSettings& settings, const at::Tensor& device_outcome, const spec::StepScalars& scalars,
                int64_t step);

  private:
    bool far() const { return parameters_.sharding().on_host() && parameters_.sharding().host_is_far; }
    bool splits_gradients() const { return parameters_.sharding().splits_gradients(); }
    int ranks() const { return parameters_.share().size; }
    /// The ranks of the share, in sums at the end of a step; nullptr: one, or nothing is exchanged.
    comm::Communicator* slices() const { return shares_ && ranks() > 1 ? replicas_ : nullptr; }
    std::string name_of(int unit) const;

    void gather(int unit);
    void publish_piece(weights::ParameterSlice piece);
    void finish_publishing(const std::string& what);
    void send_gradients(int unit);
    void keep(int unit, const at::Tensor& sums, weights::ParameterSlice part, bool first);
    void wait_for_gradients();
    void reduce_tied(int64_t step);
    at::Tensor squares(int64_t from = 0);
    void norm_of_stages(const std::string& what);
    void norm_of_far_sums(const std::string& what);
    void update_on_host(const ops::AdamwSettings& settings, const at::Tensor& device_outcome,
                        const spec::StepScalars& scalars);

    ops::Context& ctx_;
    weights::Parameters& parameters_;
    comm::Communicator* data_parallel_;
    Pipeline pipeline_;
    const weights::Parameter* tied_;
    comm::Communicator* replicas_ = nullptr;  ///< of the ranks with the same parameters; nullptr: this one alone
    bool shares_ = true;
    int64_t step_ = 0;

    std::unique_ptr<weights::LayerPrefetcher> values_;
    std::optional<ops::CopyStream> pieces_, gradients_;  ///< nothing: values and gradients stay where they are made
    std::array<bool, 2> staged_{};
    int next_stage_ = 0;

    std::vector<int> pass_;                                       ///< its units that have gradients
    std::size_t entered_ = 0;                                     ///< of the pass
    std::array<int, weights::ParameterTable::slots> in_slots_{};  ///< -1: none
    std::array<bool, weights::ParameterTable::slots> leaving_{};
    std::vector<bool> kept_;  ///< by unit: of this step's gradients some are among the sums
    std::vector<GradientStretch> buckets_;
    std::vector<ops::Event> complete_;          ///< one a bucket
    at::Tensor stage_squares_, slice_squares_;  ///< fp64: one a stage of a pipeline; one a rank of the group
    at::Tensor far_squares_;                    ///< fp64, one a rank of the group: with gradients in host memory

    ops::Context host_{at::kCPU};
    spec::StepOutcome host_outcome_{};
};

}  // namespace unsloth::model
