// Warnings about likely errors in a run that can continue.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "unsloth/config/config.h"
#include "unsloth/spec/lora_spec.h"
#include "unsloth/spec/model_spec.h"

namespace unsloth::train {

/// What to say about a learning rate outside the range that is usual for LoRA, full training or preferences; nothing
/// otherwise. The rate must be settled.
std::optional<std::string> doubt_learning_rate(const config::Config& config, const spec::ModelSpec& spec);

/// What to say where no gated delta net has an adapter, which most layers have in the place of attention; else nothing.
std::optional<std::string> doubt_targets(const spec::LoraSpec& lora, const spec::ModelSpec& spec);

/// What to say where gated delta nets are quantized to 4 bits while loading, all of them; else nothing.
std::optional<std::string> doubt_quantization(const config::Config& config, const spec::ModelSpec& spec,
                                              bool quantized_folder);

/// What to say of a load-balancing loss that config.json asks of training and no option settles; else nothing.
std::optional<std::string> describe_router_loss(const config::Config& config, const spec::ModelSpec& spec);

/// Warnings about options that were given and have no effect on such a device, or with this many ranks that share the
/// trained parameters.
std::vector<std::string> options_without_effect(const config::Config& config, bool on_gpu, int data_parallel_size);

/// What to say about a warm-up that takes more than half of the run's steps, or is not over when the run ends; nothing
/// otherwise. The rate must be settled.
std::optional<std::string> doubt_warmup(const config::TrainingOptions& training, int64_t total_steps);

/// What to say where a run that begins with an adapter holds the base, or writes rows, otherwise than the run that
/// trained it; nothing otherwise, and where that run is not known.
std::optional<std::string> doubt_adapter(const config::Config& config);

/// How long a run is: steps, rows of an epoch, rows of a step on all ranks, and steps of an epoch.
struct RunLength {
    int64_t steps = 0, rows = 0, rows_of_step = 0, epoch_steps = 0;
};
/// Warnings about options that count steps or rows and do not suit a run this short.
std::vector<std::string> doubt_lengths(const config::Config& config, const RunLength& run);

/// An optimizer in host memory that has one of several CPUs: torchrun sets OMP_NUM_THREADS to 1.
std::optional<std::string> doubt_host_threads(const config::DistributedOptions& distributed, int threads, int cpus);

/// Says once that the loss has risen to ten times its least value.
class LossWatch {
  public:
    /// `loss`: a step's, in nats a target; steps come in their order.
    std::optional<std::string> observe(int64_t step, double loss);

  private:
    double least_ = std::numeric_limits<double>::infinity();
    int64_t least_step_ = 0;
    bool warned_ = false;
};

}  // namespace unsloth::train
