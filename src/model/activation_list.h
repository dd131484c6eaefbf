// The list of a micro-batch's buffers, which plan, memory and cuts follow from.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "unsloth/core/error.h"
#include "unsloth/model/activations.h"

namespace unsloth::model {

/// What a buffer's rows are: it is cut to those at hand.
enum class Rows : uint8_t {
    fixed,   ///< not cut
    tokens,  ///< tokens, or a tile's
    slice,   ///< this rank's slices of the tokens (model/row_range.h)
};

/// "h", "qkv 7" of layer 7, "x slot 1" of layers that take turns, "cos 1" of the model's second rope.
struct Name {
    enum class Of : uint8_t { all, layer, slot, rope };
    Name(const char* what, Of whose = Of::all, int64_t which = 0) : text(what), of(whose), number(which) {}
    const char* text;
    Of of;
    int64_t number;
    bool operator==(const Name& other) const {
        return of == other.of && number == other.number && std::string_view(text) == other.text;
    }
    std::string str() const { return of == Of::all ? text : cat(text, of == Of::slot ? " slot " : " ", number); }
};

/// One buffer: how it is planned, and the tensors that are (views of) it.
struct Buffer {
    const char* group;
    Name name;
    c10::SmallVector<int64_t, 2> sizes;
    at::ScalarType dtype;
    uint8_t phases = memory::always;
    Rows rows = Rows::fixed;
    bool host = false;
    bool own = false;   ///< each micro-batch has one
    int64_t alike = 1;  ///< layers that have one each
    c10::SmallVector<at::Tensor*, 2> tensors = {};
    int64_t bytes() const { return c10::multiply_integers(sizes) * static_cast<int64_t>(c10::elementSize(dtype)); }
    std::string name_of(int64_t micro) const {
        return own && micro > 0 ? cat(name.str(), " of micro-batch ", micro) : name.str();
    }
};

/// A layer, and how many there are whose buffers are the same but for their numbers.
struct Alike {
    int64_t layer, count = 1;
};

/// Every buffer of a micro-batch by name, each once: what is planned, cut to the tokens at hand and moved to the host
/// follows from this list.
class ActivationList {
  public:
    ActivationList(const spec::ModelSpec& spec, const weights::LayerLayout& layout, const ActivationSizes& sizes,
                   const spec::RunPlan& run, at::ScalarType dtype, int64_t lse_elements)
        : spec_(spec),
          layout_(layout),
          sizes_(sizes),
          run_(run),
          dtype_(dtype),
          lse_elements_(lse_elements),
          slice_(sizes.tokens / layout.tp.size) {}

    /// `to` has a place for each of `layers`.
    std::vector<Buffer> buffers(const std::vector<Alike>& layers, ActivationTensors& to);

    std::vector<Alike> all_layers() const {
        std::vector<Alike> all;
        for (int64_t layer = 0; layer < spec_.num_layers; ++layer) all.push_back({layer});
        return all;
    }
    /// In the same order, but of layers in a row one, where all that they would list is listed or is numbered.
    std::vector<Alike> kinds_of_layers() const;

  private:
    /// Whether the layer below is on this rank, and this one is not.
    bool receives(int64_t layer) const {
        const spec::Stage& stage = layout_.stage;
        return stage.is_border(layer) && !stage.has(layer) && stage.has(layer - 1);
    }

    /// A buffer that all micro-batches in flight share. Layers share those of one name.
    void add(Buffer buffer, at::Tensor& tensor);
    /// A buffer of each micro-batch alone.
    void own(Buffer buffer, at::Tensor& tensor);

    void saved(int64_t i, LayerSaved& a, MovedLayer& moved);
    template <class Statistic, class Matrix>
    void cross(int64_t layer, LayerSaved& a, const Statistic& statistic, const Matrix& matrix, bool kept);
    template <class Statistic, class Matrix>
    void experts(LayerSaved& a, const Statistic& statistic, const Matrix& matrix, spec::Keep keeps);
    template <class Statistic, class Matrix>
    void mixer(int64_t layer, LayerSaved& a, const Statistic& statistic, const Matrix& matrix, spec::Keep keeps);
    template <class Statistic, class Matrix>
    void branches(int64_t layer, LayerSaved& a, const Statistic& statistic, const Matrix& matrix, bool rest);

    /// The most columns of a dense MLP's activation, with its adapters'; 0: every layer has experts.
    int64_t mlp_columns() const {
        return layout_.has(Group::down) ? spec_.intermediate_size + layout_[Group::down].r : 0;
    }

    /// Of rows that pass an MLP at a time every rank has an equal slice.
    int64_t tile() const {
        if (spec_.experts) return sizes_.tokens;  // rows of experts are of all tokens
        const int64_t ranks = layout_.tp.size;
        return (run_.tile_of(sizes_.tokens) + ranks - 1) / ranks * ranks;
    }

    /// What is sent to the rank that has this layer, and its gradient that comes back.
    void border(int64_t i, at::Tensor& x_tD);

    void scratch(Scratch& s);

    /// Of the products that read the residual stream first; with the columns of their adapters, or without.
    int64_t most_columns(bool adapters) const;
    void delta_scratch(const spec::DeltaSpec& delta, Scratch& s);
    void passed_states(const spec::DeltaSpec& delta, DeltaPassed& p);

    void experts_scratch(const spec::ExpertsSpec& experts, Scratch& s);

    void of_objective(ObjectiveBuffer::Life life, std::vector<at::Tensor>& tensors);

    void head(HeadBuffers& h, std::vector<at::Tensor>& objective);

    void tokens(TokenBuffers& b, std::vector<at::Tensor>& objective);

    void sight(TokenBuffers& b);
    void vision(const spec::VisionSpec& tower, VisionBuffers& b);
    /// Rows that a tower's backward pass has at a time, that it keeps of a micro-batch in `slots` slots, and the values
    /// of a row's narrow buffers.
    struct TowerRows {
        int64_t rows = 0, kept = 0, slots = 0, narrow = 0;
    };
    void tower_backward(const spec::VisionSpec& tower, const TowerRows& of, VisionBuffers& b);
    void tiles(const spec::VisionSpec& tower, const spec::TilesSpec& tiles, VisionBuffers& b);

    void states(int64_t layer, DeltaKept& kept);

    void cache(int64_t layer, ops::KvCache& of);

    const spec::ModelSpec& spec_;
    const weights::LayerLayout& layout_;
    const ActivationSizes& sizes_;
    const spec::RunPlan& run_;
    at::ScalarType dtype_;
    int64_t lse_elements_;
    int64_t slice_;      ///< this rank's of the tokens
    int64_t alike_ = 1;  ///< the number of layers that the current one represents
    std::vector<Buffer> buffers_;
    std::vector<std::size_t> shared_;  ///< those that may be named again
};

}  // namespace unsloth::model
