// From a checkpoint to a model: plan first, then allocate and load, a layer at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "unsloth/comm/communicator.h"
#include "unsloth/config/config.h"
#include "unsloth/formats/load_plan.h"
#include "unsloth/formats/peft.h"
#include "unsloth/model/model.h"
#include "unsloth/model/pipeline.h"
#include "unsloth/weights/base_plan.h"
#include "unsloth/weights/multi_lora_adapters.h"

namespace unsloth::model {

/// How a model is to be loaded.
struct LoadRequest {
    at::Device device = at::kCPU;
    at::ScalarType dtype = at::kFloat;  ///< compute type
    bool load_in_4bit = true;           ///< quantise 16/32-bit linears to NF4 (double quantisation) on the way in
    bool load_in_8bit = false;          ///< or to INT8
    spec::PrecisionMap precision;       ///< or each matrix to a type of its own
    config::FinetuningType finetuning_type = config::FinetuningType::lora;
    std::optional<spec::LoraSpec> lora;           ///< adapters to train; nullopt: none
    std::optional<std::string> adapter;           ///< PEFT folder: gives `lora` and the adapters' values
    bool ignore_serve_grid = false;               ///< of `adapter`: passes add it to the base as it is
    std::vector<weights::NamedAdapter> adapters;  ///< PEFT folders that generation's tokens choose among, instead
    weights::AdapterSlots adapter_slots;          ///< or empty places for those that come later
    bool trains = false;                          ///< gradients and optimizer states too
    bool saves = false;  ///< with trains: checkpoints are written during training (ModelParts::copies)
    config::Optimizer optim = config::Optimizer::adamw_8bit;
    weights::ShardingPolicy sharding;  ///< of the trained parameters
    weights::Share peers;  ///< ranks of one machine that hold the frozen layers among them; one: each holds all
    /// The ranks of `peers` and of the sharding policy's share; nullptr: one (or load() is not called).
    comm::Communicator *peer_ranks = nullptr, *data_parallel = nullptr;
    uint64_t seed = 0;                          ///< of the adapters' initialisation
    double noise_alpha = 0;                     ///< NEFTune's; 0: none
    double router_aux = 0;                      ///< of each micro-batch's balance of experts; 0: none
    spec::CodedProducts coded{};                ///< of the frozen linears (bf16 runs)
    int64_t mantissa_bits = 0;                  ///< that frozen linears keep which are stored ready (bf16 runs); 0: all
    bool offload_embedding = false;             ///< the input embeddings of a CUDA run stay in pinned host memory
    std::optional<std::string> offload_folder;  ///< for weights on the disk that the checkpoint has in another form
    bool records = false;                       ///< passes are recorded where shapes repeat (ModelParts::records)
    std::shared_ptr<const spec::KernelTable>
        kernels;                      ///< of the context that the model is loaded with; nullptr: its own
    ops::Nf4GemmChooser nf4_chooser;  ///< products that read 4-bit tiles on this device; empty: none
    TensorParallel tp;                ///< whose slices of the layers are planned and loaded
    ContextParallel cp;               ///< its ranks have parts of the rows, as `sizes` say
    int processes = 1;                ///< of this machine that plan alike: they take its host memory together
    int writers = 1;                  ///< of these, that write a part of each checkpoint
    /// The base's parts that processes have in host memory, until it is loaded; nullptr: no process is asked, as where
    /// the plan is for another machine.
    std::shared_ptr<memory::HeldMemory> held;
    /// Where features of images are kept, within this many bytes of host memory (0: none are kept, but images are seen
    /// one after another all the same); nullptr: nowhere.
    std::shared_ptr<KeptFeatures> kept;
    int64_t kept_bytes = 0;
    Pipeline pp;  ///< whose stage is; its micro-batches in flight are the least of a plan
    ActivationSizes sizes;
    spec::RunPlan run;
    int64_t fewest_tokens = 0;  ///< a pass has at least this many (generation: one); 0: about as many as `sizes` says
    /// Adapters of generation stay permanently next to 4-bit tiles, where GEMMs read these; else each pass copies them
    /// there.
    bool tails_may_stay = true;
};

/// A model that is planned but not in memory yet.
class ModelPlan {
  public:
    /// Input Error where the adapter does not fit the model, usage Error where the request makes no sense (full
    /// fine-tuning of a 4-bit checkpoint, rows with images where ranks share a model, …).
    ModelPlan(std::shared_ptr<const formats::WeightFile> file, LoadRequest request);
    /// A plan of the same model with the same parameters to train, for another request: saves time.
    ModelPlan with(LoadRequest request) const;

    const spec::ModelSpec& spec() const { return file_->spec; }
    const std::shared_ptr<const formats::WeightFile>& file() const { return file_; }
    /// With this rank's slices of the layers.
    const spec::ModelSpec& own_spec() const { return own_; }
    const formats::ModelTensors& tensors() const { return file_->tensors; }
    const LoadRequest& request() const { return request_; }
    const std::optional<spec::LoraSpec>& lora() const { return request_.lora; }
    /// What the base and its adapters are rounded to together.
    spec::ServeGrid grid() const { return request_.lora ? request_.lora->serve_grid : spec::ServeGrid::none; }
    const weights::LayerLayout& layout() const { return layout_; }
    /// The trained parameters; of a pipeline by all ranks, and by this one.
    const weights::ParameterTable* table() const { return table_.get(); }
    const weights::ParameterTable* own_table() const { return own_table_.get(); }
    /// Adapters of a tower over images are trained: its features are those of one step, and cannot be kept.
    bool trains_tower() const { return request_.trains && !tower_lora_.empty(); }
    /// The layers that this rank has.
    std::vector<int> own_layers() const { return request_.pp.stage().layers(spec().num_layers); }
    /// What stays for the whole run, and what the step takes, buffer by buffer: lists that are made by each call.
    memory::Plan resident() const;
    memory::Plan step() const;
    /// The part of the base that this rank holds for all peers.
    memory::Plan peer() const;
    /// Pinned host memory of a CUDA run: what layers keep there, and copies for checkpoints.
    memory::Plan host() const;
    /// The same of what all processes with this base share on the machine: its layers and embeddings.
    memory::Plan common() const;
    /// Of all of the run's processes on the machine.
    int64_t host_bytes() const { return need().host; }
    /// How many parts of the base, each for some of the run's processes here, are in host memory.
    int base_copies() const {
        return static_cast<int>(std::min<int64_t>(request_.processes, request_.tp.place().size));
    }
    /// `sizes` may be changed before load().
    void set_sizes(const ActivationSizes& sizes);
    /// `run` may be changed before load(), too. CheckError for a number of layers that the model has not, and where a
    /// layer offloads above one that does not.
    void set_run(spec::RunPlan run);
    /// What load() takes, and what it would take with this plan instead: from the lists of buffers that it cuts tensors
    /// from.
    spec::MemoryNeed need() const { return need(parts_, request_.run); }
    spec::MemoryNeed estimate(const spec::RunPlan& run) const;
    /// Bytes on the request's device, never less than the allocator's peak; the CPU's are the host's too.
    int64_t total_bytes() const { return need().device; }
    /// Device memory that the driver takes for CUDA graphs, estimated from the number of layers. On a GPU, memory that
    /// is in no plan: scalars, what the allocator rounds up, and what a library takes for its calls.
    int64_t outside_arenas() const;
    int64_t recorded_bytes() const { return recorded_bytes(parts_, request_.run); }
    /// The plans as one table.
    std::string table_text() const;
    /// "nf4 (double quantised)", "bf16", … as the run will hold the linears.
    std::string base_description() const { return parts_.base->description(); }
    std::string form_of(int64_t layer) const { return parts_.base->form_of(static_cast<int>(layer)); }
    /// Bytes of each line of the table: of the device's plans (on the CPU the host's too) and of CUDA graphs.
    std::map<std::string, int64_t> groups() const;

    /// As BasePlan's of these names.
    int64_t dequantized_linears() const { return parts_.base->dequantized_linears(); }
    bool reads_checkpoint_in_place() const { return parts_.base->reads_checkpoint_in_place(); }
    int widest_bits() const { return parts_.base->widest_bits(); }
    void require_dequantized() const { parts_.base->require_dequantized(); }

    /// What must be equal in all processes of a LoadShare: every buffer on the device that they fill together, its name
    /// and size, as a hash.
    std::string resident_fingerprint() const;
    /// Allocates and loads: a share of it, where there are others (weights/base_plan.h); adapters are read by everyone.
    /// Their values come from the PEFT folder, or A Kaiming-uniform(a = sqrt 5) and B zero.
    ModelParts load(ops::Context& ctx, const weights::LoadShare& share = {}) const;

  private:
    bool trains_all() const { return request_.finetuning_type == config::FinetuningType::full && request_.trains; }
    bool trains(spec::TensorRole role) const;  ///< outside of the layers
    bool sees_images() const { return request_.sizes.patches > 0; }
    void require_grid() const;
    void require_images() const;
    void require_delta() const;
    void require_tower() const;
    int64_t tower_library_bytes() const;
    void read_trained();
    void plan_rank();
    void choose_own(const spec::Stage& stage);
    /// Whether passes may be recorded: what ranks do between layers is not.
    bool records() const {
        return request_.records && request_.tp.alone() && request_.cp.alone() && request_.pp.alone() &&
               !request_.sharding.splits_gradients();
    }
    at::Tensor base_norms(ops::Context& ctx, const weights::DoraNorms& measured, const weights::Parameter& p) const;
    weights::BaseRequest base_request(const spec::RunPlan& run) const;

    /// Bytes of what a run takes, by what decides on them. The buffers of all but a step are of all phases, so that
    /// their bytes add up.
    struct TrainedBytes {
        int64_t resident = 0, host = 0;
        int64_t saved = 0;  ///< of host: copies that those have which write checkpoints
    };
    struct BaseBytes {
        int64_t resident = 0, peer = 0, host = 0, common = 0;
        int64_t there = 0;  ///< of common: what other processes have already
    };
    struct Parts {
        std::shared_ptr<const weights::BasePlan> base;
        BaseBytes of_base;
        spec::MemoryNeed of_step;
    };
    Parts parts(const spec::RunPlan& run) const;
    BaseBytes bytes_of(const weights::BasePlan& base) const;
    spec::MemoryNeed need(const Parts& parts, const spec::RunPlan& run) const;
    int64_t recorded_bytes(const Parts& parts, const spec::RunPlan& run) const;
    /// With what the model's number of layers and the pipeline ask for.
    spec::RunPlan complete(spec::RunPlan run) const;
    void complete_sizes();
    void submit_trained(memory::Plan& resident) const;
    void submit_trained_host(memory::Plan& host) const;
    void submit_step(const spec::RunPlan& run, memory::Plan& step, memory::Plan& host) const;
    void load_common(ops::Context& ctx, const weights::LoadShare& share, ModelParts& parts,
                     weights::SharedLoading& shared) const;
    void describe(Network& network, const memory::Arena& arena) const;
    void initialise(weights::Parameters& parameters, weights::SharedLoading& shared) const;
    void initialise_base(const weights::Parameter& p, weights::Parameters& parameters,
                         weights::SharedLoading& shared) const;

    std::shared_ptr<const formats::WeightFile> file_;
    LoadRequest request_;
    spec::ModelSpec own_;
    std::shared_ptr<const formats::Adapter> adapter_;
    std::shared_ptr<const weights::MultiLoraAdapters> stack_;  ///< nullptr: there are not several
    std::shared_ptr<const std::vector<spec::LayerLora>> all_lora_;
    std::vector<spec::TowerLora> tower_lora_;
    std::vector<spec::LayerLora> lora_layers_;  ///< of this rank's layers; the others' have none
    std::shared_ptr<const weights::ParameterTable> table_, own_table_;
    bool trains_embedding_ = false, trains_head_ = false;
    int lowest_trained_layer_ = 0;  ///< of all ranks'
    weights::LayerLayout layout_;
    TrainedBytes of_trained_;
    Parts parts_;
};

}  // namespace unsloth::model
