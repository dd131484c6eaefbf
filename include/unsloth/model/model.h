// A network with the micro-batches that may be in flight in it: training passes, scores, generation.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "unsloth/model/head_objective.h"
#include "unsloth/model/network.h"
#include "unsloth/model/recorded_passes.h"
#include "unsloth/ops/copy_places.h"

namespace unsloth::model {

/// Everything a model is made of, built by model/loader.h. Owns all of it; members in order of dependence.
struct ModelParts {
    std::unique_ptr<memory::Arena> resident_memory, step_memory;
    std::unique_ptr<memory::Arena> host_memory;           ///< nullptr without need
    std::unique_ptr<memory::CommonMemory> common_memory;  ///< likewise
    Network network;
    std::vector<std::unique_ptr<Activations>> activations;  ///< one for each micro-batch in flight
    std::optional<ops::AdamwState> copies;  ///< of what a checkpoint holds, in host_memory; where the run saves some
    bool records = false;  ///< passes over micro-batches of a shape that repeats are recorded (CUDA graphs)
};

/// Rows of generation: first those that resume from the cache (of them first those of one token), then new ones.
struct CachedPass {
    data::Batch batch;               ///< ids, positions, segments, longest; target_index: where logits are wanted
    std::vector<int32_t> slots_T;    ///< the place in the cache of each token's keys and values
    std::vector<int32_t> adapter_T;  ///< which of the plan's adapters each token has, -1: none; empty where it has one
    ops::PagedRows rows;             ///< what the host knows of those that resume
    /// Of a model with gated delta nets, of each row: which place has its states; no_state: they are made in vain.
    std::vector<int32_t> states;
    static constexpr int32_t no_state = -1;
    /// Copies of places, in all layers: before the pass, of snapshots that rows begin from, and after it, of states
    /// that become one.
    std::vector<ops::PlaceCopy> resumed, kept;
    /// Of a model whose layers cross: what these rows see; nullptr: none has images. Those that the tower sees now,
    /// whose keys layers keep.
    std::shared_ptr<const ImageSight> sight;
    std::vector<data::Image> seen_now;
    at::Tensor ids;  ///< int32, on the device: the first tokens' ids, instead of the batch's; may be undefined
};

/// Which adapters are on.
enum class PolicyScope : uint8_t {
    policy,  ///< those that are trained
    base,    ///< none: the frozen base, which preferences are measured against
};

class Model {
  public:
    Model(ops::Context& ctx, ModelParts parts);
    Model(const Model&) = delete;
    Model& operator=(const Model&) = delete;

    const spec::ModelSpec& spec() const { return parts_.network.spec; }
    const TensorParallel& tensor_parallel() const { return parts_.network.tp; }
    at::ScalarType dtype() const { return parts_.network.dtype; }
    weights::Parameters* parameters() { return parts_.network.parameters.get(); }
    /// What all ranks of a pipeline train: alone, what parameters() are.
    const weights::ParameterTable& trained_by_all() const { return parts_.network.trained_by_all; }
    const ModelParts& parts() const { return parts_; }

    /// The ranks that have the layers in turn. Of what all ranks that share the model know, one speaks: the first of
    /// those that have the loss.
    const Pipeline& pipeline() const { return parts_.network.pp; }
    bool speaks() const { return pipeline().stage().last() && tensor_parallel().first(); }
    /// For benches: whether what other stages send is waited for, and anything sent (Borders).
    void connect(bool connects) { borders_.connect(connects); }

    /// How many of a step's micro-batches train() takes at a time.
    std::size_t at_a_time(std::size_t of_step) const { return pipeline().alone() ? micro_batches_.size() : of_step; }
    /// Forward and backward of up to at_a_time() micro-batches: adds their gradients to the flat buffer and their loss
    /// (the objective's, with the step's divisor, from ctx.scalars) to ctx.outcome; of a pipeline the last rank has the
    /// loss. Nothing synchronises. A batch without tokens or targets adds nothing.
    void train(std::span<const data::Batch> batches, HeadObjective& objective);

    /// -log p of every target of the batch, in order: fp32 [labels] on the CPU (synchronises); of a pipeline on the
    /// last rank, elsewhere zeros. `on_logits` (may be empty) sees each chunk: first row's index among the targets, and
    /// the logits [C, V] in the compute dtype, or fp32 (ObjectiveNeeds::fp32_logits).
    using OnLogits = std::function<void(int64_t first, const at::Tensor& logits_CV)>;
    at::Tensor score(const data::Batch& batch, const OnLogits& on_logits = {}, PolicyScope scope = PolicyScope::policy);

    /// A forward pass, for logits(). CheckError for a batch without targets.
    void forward(const data::Batch& batch, PolicyScope scope = PolicyScope::policy);
    /// After forward(): logits [rows, V] of its targets [first, first + rows), at most LoadRequest's head_tile; valid
    /// until the next call.
    at::Tensor logits(int64_t first, int64_t rows);

    /// One layer of a scoring pass: the residual stream [T, D] after it, on the device and valid until the next pass.
    /// `x_TD`: the stream before it, in the compute dtype on any device; of layer 0 undefined, which means the
    /// embeddings of the batch. CheckError where ranks share the model.
    at::Tensor forward_layer(const data::Batch& batch, int layer, const at::Tensor& x_TD);

    /// A forward pass of generation: `on_logits` sees those of the batch's targets, as score() gives them; `pass` says
    /// which rows resume from the plan's cache and where each token's keys and values are put. Nothing synchronises.
    void forward_with_kv_cache(const CachedPass& pass, const OnLogits& on_logits);

    /// Claim the cache before filling it, and again when cache_claim() is another caller's: its keys are overwritten.
    uint64_t claim_cache() { return ++cache_claim_; }
    uint64_t cache_claim() const { return cache_claim_; }

    /// What passes were planned for.
    const ActivationSizes& sizes() const { return micro_batches_.front()->activations().sizes(); }

    /// Which place of the network a site code names ("layer 3, input norm (forward)").
    std::string describe_site(uint32_t code) const;
    /// The site's layer; nothing for a site in none.
    std::optional<int64_t> layer_of_site(uint32_t code) const;

    /// The flat parameters changed: compute copies are stale. All ranks of a share together.
    void parameters_changed();
    /// Another number after each such change; 0: nothing is trained or adapted.
    uint64_t policy_version() const {
        return parts_.network.parameters == nullptr ? 0 : parts_.network.parameters->version;
    }
    /// Of the parameters; nullptr without.
    ParameterStore* store() const { return parts_.network.store.get(); }

    /// Network::router_ends_LE: how often tokens chose each expert is the difference of neighbours.
    const at::Tensor& router_ends() const { return parts_.network.router_ends_LE; }

    /// Over all passes so far.
    const PassCounts& counts() const { return counts_; }

    ModuleObserver on_module;    ///< may be empty
    std::vector<bool> left_out;  ///< layers that score() and forward() pass by; empty: none
    ExpertsProbe experts_probe;  ///< of passes that are not recorded: score(), forward() and forward_layer()

  private:
    struct Pass {
        enum class For : uint8_t { training, scoring, generation } purpose;
        std::size_t present = 1;  ///< this rank has no rows for micro-batches from this number on
        PolicyScope scope = PolicyScope::policy;
        // Of training:
        HeadObjective* objective = nullptr;
        std::vector<const data::Batch*> batches = {};
        bool trains() const { return purpose == For::training; }
        bool has(const Action& action) const { return static_cast<std::size_t>(action.micro) < present; }
    };
    void walk(const PassSchedule& actions, const Pass& pass);
    void act(const Action& action, const Pass& pass);
    const data::Batch& require_slice(const data::Batch& batch) const;
    void take_in(int micro, const Pass& pass);
    data::TokenOrder own_token_order(const data::Batch& batch, const MicroBatch& micro) const;
    void cross_border(const Action& action);
    std::size_t place_of(int micro) const { return static_cast<std::size_t>(micro) % micro_batches_.size(); }
    void choose_recording(const PassSchedule& actions, std::size_t first, std::size_t end, const Pass& pass);
    PassSchedule forward_pass() const;
    void walk_forward(const Pass& pass);
    void copy_states(std::span<const ops::PlaceCopy> copies);
    void begin_walk(const PassSchedule& actions, const Pass& pass);
    void pass_over(const Action& action, const Pass& pass);
    Units units() const {
        return {route_.layers, parts_.network.parameters && parts_.network.parameters->table().embeddings_are_head()};
    }
    void before(const Action& action, bool trains);
    void after(const Action& action, bool trains);
    LayerContext layer_context(int layer, const MicroBatch& micro, PolicyScope scope);
    bool records(const Pass& pass) const;  ///< whether it may be recorded now
    /// Where its recordings are: those of rollouts and of training do not drive each other out.
    RecordedPasses& recordings(const Pass& pass) {
        return pass.purpose == Pass::For::generation ? recorded_decoding_ : recorded_;
    }

    ops::Context& ctx_;
    ModelParts parts_;
    TrainingRoute route_;
    PassCounts counts_;
    uint64_t cache_claim_ = 1;                                ///< 0: unclaimed
    std::vector<std::unique_ptr<MicroBatch>> micro_batches_;  ///< of places: number m of a walk takes m mod their count
    Borders borders_;
    RecordedPasses recorded_, recorded_decoding_;  ///< of work that knows those above by address
};

}  // namespace unsloth::model
