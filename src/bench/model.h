// What the benches of whole steps share: a model under a batch of random rows, and steps that are timed.
#pragma once

#include <memory>
#include <vector>

#include "unsloth/session/session.h"
#include "unsloth/spec/row_images.h"
#include "unsloth/train/step.h"

namespace unsloth::bench {

using spec::RowImages;  ///< of random pixels, that each row begins with

/// A model that is ready to train on micro-batches of rows of these lengths, as a run would plan and load it.
class BenchedModel {
  public:
    /// With a group its ranks load together, as those of a run do; `mesh`: of them, those that share a model. Input
    /// Error for images in a model that sees none, and in rows that are no longer than their images.
    BenchedModel(const config::LoadedConfig& loaded, at::Device device, const std::vector<int64_t>& lengths,
                 comm::Group* group = nullptr, int64_t micro_batches = 1, const comm::Mesh* mesh = nullptr,
                 const RowImages& images = {});

    const spec::ModelSpec& spec() const { return opened_.file->spec; }
    const model::LoadRequest& request() const { return plan_->request(); }
    const model::ModelPlan& plan() const { return *plan_; }
    ops::Context& ctx() { return *ctx_; }
    model::Model& model() { return *model_; }

  private:
    session::OpenedModel opened_;
    std::unique_ptr<model::ModelPlan> plan_;
    std::unique_ptr<ops::Context> ctx_;
    std::unique_ptr<model::Model> model_;
};

/// A step of micro-batches of random rows of these lengths, a rank's own, whose labels count those of all ranks.
data::StepBatch random_step(const spec::ModelSpec& spec, const std::vector<int64_t>& lengths, uint32_t rank,
                            int64_t ranks, int64_t micro_batches = 1, const RowImages& images = {});

struct StepTimes {
    double ms = 0;  ///< mean of the measured steps
    double loss = 0;
    bool skipped = false;
};

/// One step on the same random rows, every token but a row's first a target, as peers' step benchmarks use, again and
/// again.
class StepTimer {
  public:
    /// With a group each data-parallel rank (by default: each rank) has rows of its own, and gradients are shared.
    StepTimer(BenchedModel& benched, const config::Config& config, const std::vector<int64_t>& lengths,
              comm::Group* group = nullptr, int64_t micro_batches = 1, const comm::Mesh* mesh = nullptr,
              const RowImages& images = {});
    /// Whether the steps that follow share gradients, and a pipeline's stages their activations; at first they do where
    /// there is a group.
    void set_sharing(bool shares) {
        stepper_.set_sharing(shares);
        model_.connect(shares);
    }
    /// As in a run, the host issues a step while the one before computes. Between two results the host may wait in the
    /// issue of a long step, so that single intervals say little: the whole of them counts, from one moment with
    /// nothing in flight to another.
    StepTimes run(int64_t steps);

  private:
    model::Model& model_;
    double learning_rate_;
    data::StepBatch batch_;
    train::Stepper stepper_;
    int64_t step_ = 0;
};

}  // namespace unsloth::bench
