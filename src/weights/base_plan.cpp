#include "unsloth/weights/base_plan.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "unsloth/core/error.h"
#include "unsloth/core/hash.h"
#include "unsloth/ops/dtype.h"
#include "weights/base_buffers.h"

namespace unsloth::weights {
namespace {

int bits_of(spec::WeightType type) {
    return spec::is_4bit(type) ? 4 : type == spec::WeightType::int8 ? 8 : type == spec::WeightType::f32 ? 32 : 16;
}

}  // namespace

BasePlan::BasePlan(std::shared_ptr<const formats::WeightFile> file, LayerLayout layout,
                   std::vector<spec::LayerLora> lora, BaseRequest request, const BasePlan* like)
    : file_(std::move(file)), layout_(std::move(layout)), lora_(std::move(lora)), request_(std::move(request)) {
    require_precision();
    const bool same = like != nullptr && like->file_ == file_ && like->forms_->asked == request_.held &&
                      like->forms_->dtype == request_.dtype;
    forms_ = same ? like->forms_ : forms_of(*file_, request_);
    require_quantised_once();
    if (any(request_.coded)) require_coded();
    asked_at_ = request_.layers_at;
    request_.layers_at.resize(static_cast<std::size_t>(file_->spec.num_layers), spec::Place::device);
    for (spec::Place& at : request_.layers_at)
        if (at == spec::Place::device || at == spec::Place::peer)
            at = request_.peers.size > 1 ? spec::Place::peer : spec::Place::device;
    for (int layer = 0, place = 0; layer < static_cast<int>(file_->spec.num_layers); ++layer) {
        owners_.push_back(place % request_.peers.size);
        place += has(layer) ? 1 : 0;
    }
    for (int layer = 0; layer < static_cast<int>(file_->spec.num_layers); ++layer)
        if (has(layer) && streams(layer)) streamed_.push_back(layer);
    if (!streamed_.empty()) require_resident();
    if (request_.grid != spec::ServeGrid::none) require_grid();
    if (!layout_.tp.alone()) require_slices();
    for (int64_t layer = 0; layer < file_->spec.num_layers; ++layer) ready_.push_back(becomes_ready(layer));
    tiles_serve_ = tiles_serve();
    require_offload_folder();
    measure_images();
}

/// Outside of the layers 16 and 32-bit matrices are in the compute type, unless they are named.
std::shared_ptr<const BasePlan::Forms> BasePlan::forms_of(const formats::WeightFile& file, const BaseRequest& request) {
    Forms forms{request.held, request.dtype, {}, {}};
    for (const formats::TensorSource& source : file.tensors.all()) {
        const spec::WeightType type = request.held.of(source, file.spec);
        const bool named = request.held.precision.of(source.rule, file.spec) != spec::WeightType::automatic,
                   stays = named || source.rule.role == spec::TensorRole::linear || spec::is_quantised(type);
        forms.types.push_back(stays ? type : weight_type_of(request.dtype));
    }
    const auto form = [&](const spec::LinearId& id) {
        const formats::TensorSource& source = file.tensors.linear(id);
        return std::tuple(forms.types[static_cast<std::size_t>(&source - file.tensors.all().data())],
                          stored_type(source), source.quant4() != nullptr && source.quant4()->view.nested());
    };
    for (int layer = 0; layer < static_cast<int>(file.spec.num_layers); ++layer) {
        const std::vector<spec::LinearId> own = file.spec.linears_of(layer);
        const auto same = [&](int other) {
            return file.spec.has_experts(layer) == file.spec.has_experts(other) &&
                   file.spec.has_delta(layer) == file.spec.has_delta(other) &&
                   std::ranges::all_of(own, [&](const spec::LinearId& id) {
                       return form(id) == form({other, id.projection, id.expert});
                   });
        };
        int first = 0;
        while (first < layer && (forms.like[static_cast<std::size_t>(first)] != first || !same(first))) ++first;
        forms.like.push_back(first);
    }
    return std::make_shared<const Forms>(std::move(forms));
}

/// Layers of the same form in the same place have the same size.
void BasePlan::measure_images() {
    std::map<std::pair<int, spec::Place>, ImageSize> sizes;
    for (int layer = 0; layer < static_cast<int>(file_->spec.num_layers); ++layer) {
        const auto [at, fresh] =
            sizes.try_emplace({forms_->like[static_cast<std::size_t>(layer)], place_of(layer)}, ImageSize{});
        if (fresh) {
            const PackedLayer image = image_of(layer);
            at->second = {image.bytes(), image.rest()};
        }
        images_.push_back(at->second);
    }
}

bool BasePlan::recordable() const {
    return std::none_of(streamed_.begin(), streamed_.end(), [&](int layer) { return on_disk(layer); });
}

/// Two: while a layer is read from one, the next is copied into the other. Peers have equal ones, whichever layers are
/// their own.
int BasePlan::slots() const {
    const auto elsewhere = std::count_if(request_.layers_at.begin(), request_.layers_at.end(),
                                         [](spec::Place at) { return at != spec::Place::device; });
    return static_cast<int>(std::min<std::ptrdiff_t>(2, elsewhere));
}

int64_t BasePlan::largest_image() const {
    int64_t bytes = 0;
    for (int layer = 0; layer < static_cast<int>(file_->spec.num_layers); ++layer)
        if (place_of(layer) != spec::Place::device) bytes = std::max(bytes, image_bytes(layer));
    return bytes;
}

/// The type that a frozen matrix is held in.
spec::WeightType BasePlan::type_of(const formats::TensorSource& source) const {
    return forms_->types.at(static_cast<std::size_t>(&source - file_->tensors.all().data()));
}

bool BasePlan::held_as_stored(const formats::TensorSource& source) const {
    return type_of(source) == stored_type(source) && source.strided() == nullptr;
}

/// Whether what is held of it are the file's bytes. MXFP4's codes are held in the order of the other 4-bit ones.
bool BasePlan::read_in_place(const formats::TensorSource& source) const {
    return held_as_stored(source) && !in_mxfp4(source);
}

bool BasePlan::in_mxfp4(const formats::TensorSource& source) const {
    return type_of(source) == spec::WeightType::mxfp4;
}

/// Elements of a 4-bit weight with one scale.
int64_t BasePlan::block_of(const formats::TensorSource& source) const {
    return in_mxfp4(source) ? spec::mxfp4_block : spec::quant4_block;
}

at::ScalarType BasePlan::matrix_type(const formats::TensorSource& source) const {
    return scalar_type_of(type_of(source));
}

bool BasePlan::expands_head() const {
    const spec::WeightType type = type_of(file_->tensors.head());
    return !request_.masters && !request_.unties_head && !request_.trains_head &&
           type != weight_type_of(request_.dtype);
}

bool BasePlan::reads_checkpoint_in_place() const {
    const auto& all = file_->tensors.all();
    return std::all_of(all.begin(), all.end(), [&](const formats::TensorSource& source) {
        return source.rule.role != spec::TensorRole::linear || read_in_place(source);
    });
}

int BasePlan::widest_bits() const {
    int bits = 4;
    for (const formats::TensorSource& source : file_->tensors.all())
        if (source.rule.role == spec::TensorRole::linear) bits = std::max(bits, bits_of(type_of(source)));
    return bits;
}

/// What of a tensor this rank has: all of it, but of the layers' matrices.
spec::MatrixSlice BasePlan::part_of(const formats::TensorSource& source) const {
    if (source.rule.role == spec::TensorRole::linear)
        for (const Slice& slice : layout_[layout_.group_of(source.rule.id)].slices)
            if (slice.projection == source.rule.id.projection) return slice.part;  // experts' are alike
    return {{0, source.rows()}, {0, source.cols()}};
}

bool BasePlan::is_cut(const formats::TensorSource& source) const {
    return part_of(source) != spec::MatrixSlice{{0, source.rows()}, {0, source.cols()}};
}

/// Whether a 4-bit weight is held with nested block maxima.
bool BasePlan::nested(const formats::TensorSource& source) const {
    if (!spec::is_4bit(type_of(source)) || in_mxfp4(source)) return false;
    const bool whole = !held_as_stored(source) || source.quant4()->view.nested();
    return whole && (!is_cut(source) || keeps_nested_maxima(part_of(source), source.cols()));
}

/// Codes and masters' copies always are, but for values that go through the slot; on a GPU 16-bit layers, and quantised
/// ones that are dequantized while loading.
bool BasePlan::becomes_ready(int64_t layer) const {
    if (forward_coded(request_.coded) || !has(layer)) return true;
    if (request_.masters) return !request_.reads_values;
    if (request_.grid != spec::ServeGrid::none) return false;  // the slot takes the adapters with the base
    if (!request_.device.is_cuda() || streams(layer) || at_peer(layer)) return false;
    if (request_.cached.at(static_cast<std::size_t>(layer))) return true;
    const Sources sources = linears(static_cast<int>(layer));
    return std::none_of(sources.begin(), sources.end(),
                        [&](const formats::TensorSource* source) { return spec::is_quantised(type_of(*source)); });
}

/// Whether products of the fewest tokens that the run has (generation: one) read tiles in every group: expanding tiles
/// is slower than expanding rows, so that a layer must not need both.
bool BasePlan::tiles_serve() const {
    if (!request_.nf4_chooser || request_.grid != spec::ServeGrid::none) return false;
    const auto reads_tiles = [&](const MatrixGroup& group, bool transposed) {
        return request_.nf4_chooser(request_.fewest_tokens, group.n, group.k, transposed).kernel !=
               ops::Nf4GemmChoice::Kernel::dequantize;
    };
    return std::ranges::all_of(layout_.groups, [&](const MatrixGroup& group) {
        return is_of_experts(group.group) ||
               (reads_tiles(group, false) && (!request_.trains || reads_tiles(group, true)));
    });
}

/// Whether adapters are stored next to tiles for good: those of generation, which change seldom and are read in each
/// pass of a token.
bool BasePlan::margins_stay() const {
    if (!request_.tails_may_stay || request_.trains || lora_.empty() || layout_.dora || !tiles_serve_) return false;
    if (file_->spec.experts) return false;  // their adapters are many
    const std::vector<int> layers = layout_.stage.layers(file_->spec.num_layers);
    return std::all_of(layers.begin(), layers.end(), [&](int layer) {
        const Sources sources = linears(layer);
        return !is_ready(layer) &&
               std::all_of(sources.begin(), sources.end(),
                           [&](const formats::TensorSource* source) { return held_in_tiles(*source); });
    });
}

bool BasePlan::held_in_tiles(const formats::TensorSource& source) const {
    const bool in_layer = source.rule.role == spec::TensorRole::linear;
    if (!tiles_serve_ || !in_layer || on_disk(source.rule.id.layer) || !spec::is_4bit(type_of(source))) return false;
    if (source.rule.id.expert >= 0 && request_.trains) return false;  // no product gives dx from experts' tiles
    if (in_mxfp4(source) && source.rule.id.expert < 0) return false;  // products of experts alone read its tiles
    const spec::MatrixSlice part = part_of(source);
    return (nested(source) || in_mxfp4(source)) && part.row_count() % spec::nf4_tile == 0 &&
           part.columns.size % spec::nf4_tile == 0;
}

/// The form of a matrix of a layer that is not ready, and of embeddings and lm_head.
BasePlan::Held BasePlan::held(const formats::TensorSource& source) const {
    const bool in_place = read_in_place(source), in_layer = source.rule.role == spec::TensorRole::linear;
    if (held_in_tiles(source)) return Held::tiles;
    if (in_place && in_layer && request_.device.is_cpu() && place_of(source.rule.id.layer) == spec::Place::device &&
        !is_cut(source))
        return Held::file_map;
    if (type_of(source) == spec::WeightType::int8) return Held::int8;
    if (!spec::is_4bit(type_of(source))) return Held::matrix;
    return in_place && !is_cut(source) ? Held::packed : Held::quantised_here;
}

int64_t BasePlan::dequantized_linears() const {
    if (!request_.device.is_cuda()) return 0;
    const auto& all = file_->tensors.all();
    return std::count_if(all.begin(), all.end(), [&](const formats::TensorSource& source) {
        return source.rule.role == spec::TensorRole::linear && has(source.rule.id.layer) &&
               !is_ready(source.rule.id.layer) && spec::is_quantised(type_of(source)) && !held_in_tiles(source);
    });
}

bool BasePlan::has_bias(Group g) const {
    return std::any_of(layout_[g].slices.begin(), layout_[g].slices.end(),
                       [&](const Slice& s) { return file_->spec.has_bias(s.projection); });
}

}  // namespace unsloth::weights
