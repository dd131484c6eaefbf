// The network's weights and adapters: what passes read, and what they add their gradients to. Activations and inputs
// are a micro-batch's.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "unsloth/formats/load_plan.h"
#include "unsloth/model/context_parallel.h"
#include "unsloth/model/kept_features.h"
#include "unsloth/model/parameter_store.h"
#include "unsloth/model/pipeline.h"
#include "unsloth/model/tensor_parallel.h"
#include "unsloth/weights/base_plan.h"
#include "unsloth/weights/vision_weights.h"

namespace unsloth::model {

/// Built by model/loader.h; owns what it holds. Members in order of dependence.
struct Network {
    std::shared_ptr<const formats::WeightFile> file;  ///< its map may be what the weights are
    spec::ModelSpec spec;
    TensorParallel tp;
    ContextParallel cp;
    Pipeline pp;
    spec::ModelSpec own;  ///< whose layers are this rank's slices
    weights::LayerLayout layout;
    at::ScalarType dtype = at::kFloat;
    double lora_dropout = 0.0, noise_alpha = 0.0;  ///< of passes that train
    double router_aux = 0.0;                       ///< the same: the weight of a micro-batch's load balancing
    /// int32 [layers, 1 + experts]: 0, then the sums of ExpertsSaved::ends_E over the training passes since someone
    /// cleared it. Undefined where nothing trains, or no layer has experts.
    at::Tensor router_ends_LE;
    static constexpr const char* router_ends_name = "tokens of experts";  ///< of the plan
    bool full_finetuning = false;
    bool trains_embedding = false;  ///< by the rank that has them
    bool trains_tower = false;      ///< its adapters: features of images are those of one step
    int lowest_trained_layer = 0;   ///< the lowest that a backward pass must reach, of all ranks' layers
    std::unique_ptr<weights::Parameters> parameters;  ///< nullptr in inference without adapters
    weights::ParameterTable trained_by_all;  ///< what all ranks of a pipeline train: alone, the parameters' table
    std::unique_ptr<ParameterStore> store;   ///< of the parameters; nullptr without
    std::unique_ptr<weights::Adapters> adapters;
    /// With several adapters (weights/multi_lora_adapters.h): of a group's R columns, whose each is. int32.
    weights::ByGroup<at::Tensor> owners;
    std::unique_ptr<weights::WeightProvider> weight_provider;
    weights::EmbeddingAndHead embedding_and_head;
    std::optional<weights::VisionWeights> vision;  ///< where images are planned for
    std::shared_ptr<KeptFeatures> kept;            ///< of the tower; nullptr: it sees each image in each pass
    uint64_t embedding_and_head_version = 0;       ///< of the parameters in `outer`

    spec::Range vocabulary() const { return spec::vocabulary_slice(spec.vocab_size, tp.place()); }
    int layers() const { return static_cast<int>(spec.num_layers); }
    /// Whether gradients go down to what the embedding made. Features of tiles enter the layers that cross instead.
    bool has_embedding_gradient() const { return trains_embedding || (trains_tower && !spec.vision->tiles); }
    /// The master of a tensor outside of the layers; nullptr where it is frozen.
    const weights::Parameter* trained(spec::TensorRole role) const;
    /// Before a forward pass: brings what the last update changed to where the pass reads it.
    void refresh(ops::Context& ctx);
};

}  // namespace unsloth::model
