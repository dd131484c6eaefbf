// The whole model: embedding, decoder layers, final norm and lm_head with the loss, forward and backward.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>

#include "unsloth/core/most_used.h"
#include "unsloth/data/batch.h"
#include "unsloth/formats/load_plan.h"
#include "unsloth/model/activations.h"
#include "unsloth/model/decoder_layer.h"
#include "unsloth/model/gradient_buckets.h"
#include "unsloth/model/offload.h"
#include "unsloth/model/weight_source.h"
#include "unsloth/ops/recorded_work.h"

namespace unsloth::model {

/// Shapes of micro-batches whose passes are recorded at a time: those that come most often.
inline constexpr std::size_t recorded_shapes = 8;

/// The tensors outside of the layers. Frozen ones stay as loaded; trained ones are compute copies of fp32 masters.
struct OuterWeights {
    at::Tensor embed_VD;      ///< any floating dtype
    at::Tensor lm_head_VD;    ///< compute dtype; may be embed_VD itself (tied)
    at::Tensor final_norm_D;  ///< fp32
};

/// Everything a model is made of, built by model/loader.h. Owns all of it; members in order of dependence.
struct ModelParts {
    std::shared_ptr<const formats::WeightFile> file;  ///< its map may be what the weights are
    spec::ModelSpec spec;
    LayerLayout layout;
    at::ScalarType dtype = at::kFloat;
    std::vector<spec::LayerLora> lora;  ///< one a layer; empty: no adapters
    double lora_dropout = 0.0;
    bool full_finetuning = false;
    bool records = false;  ///< passes over micro-batches of a shape that repeats are recorded (CUDA graphs)
    std::optional<ops::AdamwState> copies;   ///< of what a checkpoint holds, in host_memory; where the run saves some
    std::unique_ptr<Parameters> parameters;  ///< nullptr in inference without adapters
    std::unique_ptr<Adapters> adapters;
    std::unique_ptr<WeightSource> source;
    std::unique_ptr<Activations> activations;
    OuterWeights outer;
    std::unique_ptr<memory::Arena> resident_memory, step_memory, host_memory;  ///< the last: nullptr without need
};

class Model {
  public:
    Model(ops::Context& ctx, ModelParts parts);

    const spec::ModelSpec& spec() const { return parts_.spec; }
    at::ScalarType dtype() const { return parts_.dtype; }
    Parameters* parameters() { return parts_.parameters.get(); }
    const ModelParts& parts() const { return parts_; }

    /// Forward and backward of one micro-batch: adds its gradients to the flat buffer and its loss (with the step's
    /// divisor, from ctx.scalars) to ctx.outcome. Nothing synchronises. A batch without tokens or targets adds nothing.
    void train(const data::Batch& batch);

    /// Before the first train(): cuts the gradients into buckets of up to `most_bytes`, which each train() reaches from
    /// then on (with several micro-batches to a step the last one counts).
    GradientBuckets& cut_gradients(int64_t most_bytes);

    /// -log p of every target of the batch, in order: fp32 [labels] on the CPU (synchronises). `on_logits` (may be
    /// empty) sees each chunk: first row's index among the targets, and the logits [C, V] in the compute dtype.
    using OnLogits = std::function<void(int64_t first, const at::Tensor& logits_CV)>;
    at::Tensor score(const data::Batch& batch, const OnLogits& on_logits = {});

    /// Caches for one sequence of up to `capacity` tokens, in the plan's memory: one sequence at a
    /// time.
    std::vector<KvCache> make_caches(int64_t capacity) const;
    /// Appends `ids` to the sequence in `caches` and returns the most likely next id (synchronises).
    int32_t next_token(const std::vector<int32_t>& ids, std::vector<KvCache>& caches);

    /// Which place of the network a site code names ("layer 3, input norm (forward)").
    std::string describe_site(uint32_t code) const;

    /// The flat parameters changed: compute copies are stale.
    void parameters_changed();

    /// Over all passes so far.
    const PassCounts& counts() const { return counts_; }

    ModuleObserver on_module;  ///< may be empty

  private:
    void upload(const data::Batch& batch);
    void make_rope_table(int64_t longest_position);
    void embed();
    enum class Pass { forward, backward };
    void forward_layers(std::vector<KvCache>* caches, bool training);
    void choose_recording();
    void issue_or_record(Pass pass, const std::function<void()>& work);
    void head_forward_backward(const data::Batch& batch);
    void head_chunk(int64_t first, int64_t rows, bool gradient);
    void gather_head_rows(int64_t rows);
    void backward_layers();
    void reached(int level);
    void embedding_gradient();
    LayerContext layer_context(int layer, const TokenInputs& inputs);
    at::Tensor layer_output(int64_t layer) const;
    const Parameter* outer_parameter(spec::TensorRole role) const;

    ops::Context& ctx_;
    ModelParts parts_;
    TokenInputs inputs_;
    double rope_scaling_ = 1.0;
    int64_t rope_length_ = -1;  ///< what the frequencies were computed for (dynamic RoPE)
    /// A pass over micro-batches of one shape.
    struct Recording {
        std::optional<ops::RecordedWork> work;
        int leaves_held = -1;  ///< the layer that the weight source holds afterwards
        PassCounts counts;     ///< what it repeats
    };
    using Recordings = std::array<Recording, 2>;  ///< by pass
    std::unique_ptr<GradientBuckets> buckets_;    ///< nullptr: nobody asks when gradients are complete
    MostUsed<std::vector<int64_t>, Recordings> recordings_{recorded_shapes};
    Recordings* recording_ = nullptr;  ///< of the micro-batch at hand; nullptr: its passes are issued as they come
    PassCounts counts_;
    std::unique_ptr<Offload> offload_;  ///< nullptr: what layers keep stays on the device
    int64_t tokens_ = 0;
    int64_t distinct_ids_ = 0;
    int lowest_trained_layer_ = 0;  ///< the backward pass ends here
    bool trains_embedding_ = false;
    uint64_t outer_version_ = 0;
};

}  // namespace unsloth::model
