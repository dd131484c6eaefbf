// In which form and where the base's weights are stored, what that takes, and how they are loaded from the checkpoint.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "unsloth/formats/load_plan.h"
#include "unsloth/memory/common_memory.h"
#include "unsloth/spec/coded_products.h"
#include "unsloth/spec/run_plan.h"
#include "unsloth/weights/packed_layer.h"
#include "unsloth/weights/shared_loading.h"
#include "unsloth/weights/weight_provider.h"

namespace unsloth::weights {

/// The tensors outside of the layers. Frozen ones stay as loaded; trained ones are compute copies of fp32 masters.
struct EmbeddingAndHead {
    StoredWeight embed_VD;  ///< read by rows
    StoredWeight
        lm_head_VD;  ///< may be embed_VD itself (tied). A matrix not in the compute type is dequantized for each pass
    at::Tensor final_norm_D;  ///< fp32
    /// This rank's rows of lm_head as codes for logits, and their transpose for dx; empty: products read values.
    ops::CodedMatrix codes_VD, codes_DV;

    enum class HeadProduct : uint8_t { logits, dx };
    /// Dequantizes lm_head for a pass, where its GEMMs cannot read it as stored and `first` is the first of them that
    /// reads values. `dequantized_VD`: undefined where no GEMM needs it.
    void expand_head(ops::Context& ctx, HeadProduct first, const at::Tensor& dequantized_VD) const;
    /// These rows of lm_head as its products read it.
    Operand head(const at::Tensor& dequantized_VD, const spec::Range& rows) const;
};

struct BaseRequest {
    at::Device device = at::kCPU;
    at::ScalarType dtype = at::kFloat;          ///< compute type
    formats::HeldTypes held;                    ///< what frozen matrices become on the way in
    spec::CodedProducts coded{};                ///< for which linears are held as codes
    int64_t mantissa_bits = 0;                  ///< that layers keep which are ready in bf16 (round_mantissa); 0: all
    bool masters = false;                       ///< all of it is trained: compute copies of fp32 masters
    bool reads_values = false;                  ///< passes read trained parameters where Parameters::value is
    bool trains = false;                        ///< gradients pass through the products
    std::vector<bool> cached;                   ///< layers whose 4-bit linears are dequantized once, at loading (CUDA)
    std::optional<std::string> offload_folder;  ///< for layers on the disk that the checkpoint has in another form
    std::vector<spec::Place> layers_at;         ///< where each layer's frozen linears are stored
    Share peers;                     ///< with several, layers planned for the device are on the peers' devices, in turn
    bool embedding_on_host = false;  ///< the input embeddings of a CUDA run stay in pinned host memory
    bool unties_head = false;        ///< tied embeddings become two matrices, trained apart from each other
    bool trains_embedding = false, trains_head = false;  ///< compute copies of fp32 values, whatever the base has
    bool fp32_logits = false;                            ///< lm_head's products are not of codes
    ops::Nf4GemmChooser nf4_chooser;                     ///< products that read 4-bit tiles on this device; empty: none
    int64_t fewest_tokens = 0;                           ///< a GEMM has at least this many
    bool tails_may_stay = true;                          ///< adapters that do not change, next to tiles
    spec::ServeGrid grid = spec::ServeGrid::none;        ///< adapters are folded into the base (FoldedAdapters)
};

/// The arenas of what a BasePlan submits.
struct BaseMemory {
    const memory::Arena& resident;
    const memory::CommonMemory* common;  ///< filled by read_common; nullptr where nothing was submitted
    const memory::Arena* host;           ///< nullptr likewise
    std::vector<at::Tensor> peers = {};  ///< of submit_peer, by rank; of this one's own it is filled
};

class BasePlan {
  public:
    /// The layers are the layout's: of its stage, slices of the file's. `like`: another plan of the file, which saves
    /// time. usage Error where a requested quantized form is not possible, where layers that must be on the device are
    /// not, and where a weight's form cannot be cut so.
    BasePlan(std::shared_ptr<const formats::WeightFile> file, LayerLayout layout, std::vector<spec::LayerLora> lora,
             BaseRequest request, const BasePlan* like = nullptr);

    /// Submits what is on the device for the whole run, the adapter tail rows and columns with it.
    void submit(memory::Plan& resident) const;
    /// Submits what that peer rank's device stores for all peers.
    void submit_peer(int rank, memory::Plan& plan) const;
    /// Submits what is in pinned host memory and is the same for every process that reads the base so: layers, and the
    /// embeddings, if asked for. An entry's content says which tensors it holds, and in which form.
    void submit_common(memory::Plan& common) const;
    /// Reads the piece of that name, which was submitted so, into `memory`: uint8, of the entry's bytes.
    void read_common(ops::Context& ctx, const std::string& name, const at::Tensor& memory, SharedLoading& shared) const;
    /// Submits what each process has there for itself: what layers on the disk take.
    void submit_host(memory::Plan& host) const;
    /// Whether the plan has these layers dequantized once, and stored at these places.
    bool is_planned_as(const std::vector<bool>& cached, const std::vector<spec::Place>& layers_at) const {
        return cached == request_.cached && layers_at == asked_at_;
    }
    /// Whether passes can be recorded: the host takes part in reading from the disk.
    bool recordable() const;
    /// Whether lm_head is not stored as its GEMMs read it.
    bool expands_head() const;
    /// Whether the layers are held in the form that the checkpoint stores.
    bool reads_checkpoint_in_place() const;
    /// Of the layers' weights: the most that one takes.
    int widest_bits() const;
    /// On a GPU: how many of the layers' quantised matrices each pass of the fewest tokens dequantizes to the compute
    /// type, because no GEMM reads them as stored.
    int64_t dequantized_linears() const;
    /// The products that read 8-bit codes of their inputs.
    spec::CodedProducts coded() const { return request_.coded; }
    /// Those of them by lm_head: none in runs that train nothing, by one that is trained, or whose rows do not fill a
    /// product's operands.
    spec::CodedProducts head_coded() const;
    /// usage Error where mantissas are to be rounded of layers that are not stored dequantized, in the chosen plan.
    void require_dequantized() const;
    /// "nf4 (double quantised)", "bf16", … as the run will hold the linears.
    std::string description() const;
    /// How a layer's linears are held: "nf4", "int8", "bf16", "fp8", …; several with "+" between, and fp8 for dx alone;
    /// "int8 codes".
    std::string form_of(int layer) const;

    /// Loads the layers: a share of it, where there are others. Frozen linears go by layer; small vectors are read by
    /// everyone. `masters`: of a base that is trained, else nullptr; `slices`: as DoraNorms'.
    std::unique_ptr<WeightProvider> load_layers(ops::Context& ctx, const BaseMemory& memory, const Adapters* adapters,
                                                const Parameters* masters, SharedLoading& shared,
                                                comm::Communicator* slices = nullptr) const;
    /// Loads the rest, matrices by rows. To be called after load_layers.
    EmbeddingAndHead load_embedding_and_head(ops::Context& ctx, const BaseMemory& memory, const Parameters* masters,
                                             SharedLoading& shared) const;

  private:
    enum class Held { file_map, packed, quantised_here, tiles, int8, matrix };
    Held held(const formats::TensorSource& source) const;
    spec::WeightType type_of(const formats::TensorSource& source) const;
    spec::MatrixSlice part_of(const formats::TensorSource& source) const;
    bool is_cut(const formats::TensorSource& source) const;
    bool nested(const formats::TensorSource& source) const;
    bool held_as_stored(const formats::TensorSource& source) const;
    bool read_in_place(const formats::TensorSource& source) const;
    bool in_mxfp4(const formats::TensorSource& source) const;
    int64_t block_of(const formats::TensorSource& source) const;
    void require_precision() const;
    void require_quantised_once() const;
    void require_grid() const;
    void require_slices() const;
    bool trains(spec::TensorRole role) const {
        return role == spec::TensorRole::embed_tokens ? request_.trains_embedding : request_.trains_head;
    }
    bool has(int64_t layer) const { return layout_.stage.has(layer); }
    bool reads_embedding_as_head() const { return file_->spec.tie_word_embeddings && !request_.unties_head; }
    bool is_ready(int64_t layer) const { return ready_.at(static_cast<std::size_t>(layer)); }
    bool becomes_ready(int64_t layer) const;
    bool tiles_serve() const;
    bool margins_stay() const;
    bool held_in_tiles(const formats::TensorSource& source) const;
    at::ScalarType matrix_type(const formats::TensorSource& source) const;
    bool has_bias(Group g) const;
    void require_coded() const;
    void require_resident() const;
    void require_offload_folder() const;
    spec::Place place_of(int64_t layer) const { return request_.layers_at.at(static_cast<std::size_t>(layer)); }
    bool at_peer(int64_t layer) const { return place_of(layer) == spec::Place::peer; }
    int owner_of(int64_t layer) const { return owners_.at(static_cast<std::size_t>(layer)); }
    bool owns(int64_t layer) const { return at_peer(layer) && owner_of(layer) == request_.peers.rank; }
    /// It is copied into a slot for each pass.
    bool streams(int64_t layer) const { return place_of(layer) != spec::Place::device && !owns(layer); }
    bool on_disk(int64_t layer) const {
        return layer >= 0 && request_.layers_at.at(static_cast<std::size_t>(layer)) == spec::Place::disk;
    }
    int slots() const;
    int64_t largest_image() const;
    void submit_ready(int64_t layer, memory::Plan& resident) const;
    void measure_images();
    int64_t image_bytes(int layer) const { return image_at(layer).bytes; }
    using Sources = std::vector<const formats::TensorSource*>;
    Sources linears(int layer) const;
    std::string content_of(const Sources& sources) const;
    PackedLayer image_of(const Sources& sources) const;
    PackedLayer image_of(int layer) const { return image_of(linears(layer)); }
    void add_parts(const formats::TensorSource& source, bool large, PackedLayer& image) const;

    /// Puts a part of a stored weight into its packed layer and returns its memory there.
    using PlacePart = std::function<at::Tensor(const char* what, const at::Tensor& values)>;
    StoredWeight load_stored(ops::Context& ctx, const formats::TensorSource& source, bool reads,
                             const PlacePart& place) const;
    /// Where a layer's image is read by its products, and what takes the values of its parts while loading.
    struct ImageMemory {
        at::Tensor read;
        std::function<void(const PackedLayer& image, const std::string& part, const formats::TensorSource& source,
                           const at::Tensor& values)>
            fill;
    };
    static ImageMemory memory_at(const at::Tensor& read, const at::Tensor& filled);
    StoredLayer load_image(ops::Context& ctx, const ImageMemory& memory, int layer, bool reads) const;
    void read_offsets(const at::Tensor& memory, int layer, StoredLayer& stored) const;
    void read_offset(const PackedLayer& image, const at::Tensor& memory, const formats::TensorSource& source,
                     StoredWeight& stored) const;
    StoredWeight load_matrix(ops::Context& ctx, const at::Tensor& memory, const formats::TensorSource& source,
                             bool reads) const;
    std::optional<StreamedImage> streamed_image(const BaseMemory& memory, int layer) const;
    at::Tensor peer_image(const std::vector<at::Tensor>& peers, int layer) const;
    StoredWeight frozen_weight(ops::Context& ctx, const formats::TensorSource& linear) const;
    Operand load_dense(ops::Context& ctx, const memory::Arena& arena, int layer, Group g, SharedLoading& shared) const;
    void load_codes(ops::Context& ctx, const memory::Arena& arena, int layer, Group g, SharedLoading& shared,
                    StoredLayer& stored) const;
    void make_transposes(ops::Context& ctx, const memory::Arena& arena, std::vector<StoredLayer>& layers) const;
    std::string why_head_stays() const;
    void submit_head_codes(memory::Plan& resident) const;
    void make_head_codes(ops::Context& ctx, const memory::Arena& arena, EmbeddingAndHead& outer) const;
    CodedTranspose transpose_at(const memory::Arena& arena, int layer, Group g) const;
    at::Tensor load_vector(const memory::Arena& arena, const formats::TensorSource* source) const;
    at::Tensor load_bias(const memory::Arena& arena, int layer, Group g) const;
    at::Tensor norm(const memory::Arena& arena, spec::TensorRole role, int layer, const Parameters* masters) const;

    std::shared_ptr<const formats::WeightFile> file_;
    LayerLayout layout_;
    std::vector<spec::LayerLora> lora_;
    BaseRequest request_;
    /// What the file's tensors are held as.
    struct Forms {
        formats::HeldTypes asked;
        at::ScalarType dtype;
        std::vector<spec::WeightType> types;  ///< in the order of the file's tensors
        std::vector<int> like;                ///< of each layer the first one that is the same
    };
    static std::shared_ptr<const Forms> forms_of(const formats::WeightFile& file, const BaseRequest& request);
    struct ImageSize {
        int64_t bytes = 0, rest = 0;
    };
    const ImageSize& image_at(int layer) const { return images_.at(static_cast<std::size_t>(layer)); }

    std::shared_ptr<const Forms> forms_;
    std::vector<ImageSize> images_;  ///< of each layer
    std::vector<int> owners_;        ///< of each layer the peer: in turn, among those that these ranks have
    std::vector<spec::Place> asked_at_;
    std::vector<bool> ready_;    ///< layers that are stored as their GEMMs read them
    std::vector<int> streamed_;  ///< layers that are not on the device
    bool tiles_serve_ = false;
};

}  // namespace unsloth::weights
