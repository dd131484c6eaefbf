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

const char* words_for(spec::WeightType type) {
    switch (type) {
        case spec::WeightType::nf4:
            return "4 bit (nf4)";
        case spec::WeightType::fp4:
            return "4 bit (fp4)";
        case spec::WeightType::mxfp4:
            return "4 bit (mxfp4)";
        case spec::WeightType::int8:
            return "8 bit (int8)";
        default:
            return name_of(type);
    }
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

/// Those of layers that are alike, and lie alike, have the same size.
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

bool BasePlan::as_it_lies(const formats::TensorSource& source) const {
    return type_of(source) == stored_type(source) && source.strided() == nullptr;
}

/// Whether what is held of it are the file's bytes. MXFP4's codes are held in the order of the other 4-bit ones.
bool BasePlan::read_in_place(const formats::TensorSource& source) const {
    return as_it_lies(source) && !in_mxfp4(source);
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

bool BasePlan::lies_in_checkpoint() const {
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
        for (const Slice& slice : layout_[group_of(source.rule.id)].slices)
            if (slice.projection == source.rule.id.projection) return slice.part;  // experts' are alike
    return {{0, source.rows()}, {0, source.cols()}};
}

bool BasePlan::is_cut(const formats::TensorSource& source) const {
    return part_of(source) != spec::MatrixSlice{{0, source.rows()}, {0, source.cols()}};
}

/// Whether a 4-bit weight is held with nested block maxima.
bool BasePlan::nested(const formats::TensorSource& source) const {
    if (!spec::is_4bit(type_of(source)) || in_mxfp4(source)) return false;
    const bool whole = !as_it_lies(source) || source.quant4()->view.nested();
    return whole && (!is_cut(source) || keeps_nested_maxima(part_of(source), source.cols()));
}

/// Codes and masters' copies always are, but for values that go through the slot; on a GPU 16-bit layers, and quantised
/// ones that are expanded while loading.
bool BasePlan::becomes_ready(int64_t layer) const {
    if (forward_coded(request_.coded) || !has(layer)) return true;
    if (request_.masters) return !request_.reads_values;
    if (!request_.device.is_cuda() || streams(layer) || at_peer(layer)) return false;
    if (request_.cached.at(static_cast<std::size_t>(layer))) return true;
    const Sources sources = linears(static_cast<int>(layer));
    return std::none_of(sources.begin(), sources.end(),
                        [&](const formats::TensorSource* source) { return spec::is_quantised(type_of(*source)); });
}

/// Whether products of the fewest tokens that the run has (generation: one) read tiles in every group: expanding tiles
/// is slower than expanding rows, so that a layer must not need both.
bool BasePlan::tiles_serve() const {
    if (!request_.nf4_chooser) return false;
    const auto serves = [&](const MatrixGroup& group, bool transposed) {
        return request_.nf4_chooser(request_.fewest_tokens, group.n, group.k, transposed).kernel !=
               ops::Nf4GemmChoice::Kernel::dequantize;
    };
    return std::ranges::all_of(layout_.groups, [&](const MatrixGroup& group) {
        return is_of_experts(group.group) || (serves(group, false) && (!request_.trains || serves(group, true)));
    });
}

/// Whether adapters lie beside tiles for good: those of answers, which change seldom and are read in each pass of a
/// token.
bool BasePlan::margins_stay() const {
    if (!request_.tails_may_stay || request_.trains || lora_.empty() || layout_.dora || !tiles_serve_) return false;
    if (file_->spec.experts) return false;  // their adapters are many
    const std::vector<int> layers = layout_.stage.layers(file_->spec.num_layers);
    return std::all_of(layers.begin(), layers.end(), [&](int layer) {
        const Sources sources = linears(layer);
        return !lies_ready(layer) &&
               std::all_of(sources.begin(), sources.end(),
                           [&](const formats::TensorSource* source) { return lies_in_tiles(*source); });
    });
}

bool BasePlan::lies_in_tiles(const formats::TensorSource& source) const {
    const bool in_layer = source.rule.role == spec::TensorRole::linear;
    if (!tiles_serve_ || !in_layer || on_disk(source.rule.id.layer) || !spec::is_4bit(type_of(source))) return false;
    if (source.rule.id.expert >= 0 && request_.trains) return false;  // no product gives dx from experts' tiles
    if (in_mxfp4(source) && source.rule.id.expert < 0) return false;  // products of experts alone read its tiles
    const spec::MatrixSlice part = part_of(source);
    return (nested(source) || in_mxfp4(source)) && part.rows.size % spec::nf4_tile == 0 &&
           part.columns.size % spec::nf4_tile == 0;
}

/// Of a layer that does not lie ready, and of embeddings and lm_head.
BasePlan::Held BasePlan::held(const formats::TensorSource& source) const {
    const bool lies = read_in_place(source), in_layer = source.rule.role == spec::TensorRole::linear;
    if (lies_in_tiles(source)) return Held::tiles;
    if (lies && in_layer && request_.device.is_cpu() && place_of(source.rule.id.layer) == spec::Place::device &&
        !is_cut(source))
        return Held::file_map;
    if (type_of(source) == spec::WeightType::int8) return Held::int8;
    if (!spec::is_4bit(type_of(source))) return Held::matrix;
    return lies && !is_cut(source) ? Held::packed : Held::quantised_here;
}

int64_t BasePlan::expanded_linears() const {
    if (!request_.device.is_cuda()) return 0;
    const auto& all = file_->tensors.all();
    return std::count_if(all.begin(), all.end(), [&](const formats::TensorSource& source) {
        return source.rule.role == spec::TensorRole::linear && has(source.rule.id.layer) &&
               !lies_ready(source.rule.id.layer) && spec::is_quantised(type_of(source)) && !lies_in_tiles(source);
    });
}

bool BasePlan::has_bias(Group g) const {
    return std::any_of(layout_[g].slices.begin(), layout_[g].slices.end(),
                       [&](const Slice& s) { return file_->spec.has_bias(s.projection); });
}

void BasePlan::submit_ready(int64_t layer, memory::Plan& resident) const {
    const auto add = [&](const BaseBuffer& buffer) {
        resident.add("layer weights", [&] { return buffer.name(); }, buffer.bytes());
    };
    for (const Group g : layout_.groups_of(layer)) {
        if (forward_coded(request_.coded)) {
            for (const BaseBuffer& buffer :
                 coded_buffers(layout_[g], layer, g, request_.dtype, forward_codes(request_.coded)))
                add(buffer);
        } else {
            add(dense_buffer(layout_[g], layer, g, request_.dtype));
        }
    }
}

BasePlan::Sources BasePlan::linears(int layer) const {
    Sources sources;
    for (const spec::LinearId& id : file_->spec.linears_of(layer)) sources.push_back(&file_->tensors.linear(id));
    return sources;
}

PackedLayer BasePlan::image_of(const Sources& sources) const {
    PackedLayer image;
    for (const formats::TensorSource* source : sources) add_parts(*source, /*large=*/true, image);
    image.begin_rest();
    for (const formats::TensorSource* source : sources) add_parts(*source, /*large=*/false, image);
    return image;
}

/// Which tensors an image holds, and in which form: images with one content, of one base, are equal byte for byte.
std::string BasePlan::content_of(const Sources& sources) const {
    ContentHash hash;
    for (const formats::TensorSource* source : sources) {
        const spec::MatrixSlice part = part_of(*source);
        hash.add_field(cat(source->rule.hf_name, " ", name_of(type_of(*source)), " ", static_cast<int>(held(*source)),
                           " ", part.rows.begin, " ", part.rows.size, " ", part.columns.begin, " ", part.columns.size));
    }
    return hash.hex();
}

/// The parts of a stored weight: one for each parameter, or block of them, or what many blocks share.
void BasePlan::add_parts(const formats::TensorSource& source, bool large, PackedLayer& image) const {
    const Held how = held(source);
    if (how == Held::file_map) return;
    const spec::MatrixSlice part = part_of(source);
    const int64_t elements = part.rows.size * part.columns.size,
                  blocks = (elements + block_of(source) - 1) / block_of(source);
    const auto add = [&](const char* what, at::ScalarType type, int64_t count, bool is_large = true) {
        if (is_large == large) image.add(part_name(source.rule.hf_name, what), type, count);
    };
    if (how == Held::matrix) return add("matrix", matrix_type(source), elements);
    if (how == Held::int8) {
        add("codes", at::kChar, elements);
        return add("maxima", at::kFloat, part.rows.size, /*is_large=*/false);
    }
    const bool in_8bit = nested(source);
    if (how == Held::tiles) {
        add("tiles", at::kByte,
            spec::nf4_tiles_bytes(part.rows.size, part.columns.size,
                                  in_mxfp4(source) ? spec::mxfp4_tile_bytes : spec::nf4_tile_bytes));
    } else {
        add("packed", at::kByte, (elements + 1) / 2);
        add("absmax", in_8bit || in_mxfp4(source) ? at::kByte : at::kFloat, blocks);
    }
    if (in_8bit)
        add("nested absmax", at::kFloat, (blocks + spec::quant4_nested_block - 1) / spec::quant4_nested_block,
            /*is_large=*/false);
    if (in_8bit && how != Held::packed) add(nested_offset_part, at::kFloat, 1, /*is_large=*/false);
    add("tables", at::kFloat, 16 + 256, /*is_large=*/false);
}

void BasePlan::submit(memory::Plan& resident) const {
    const auto item = static_cast<int64_t>(c10::elementSize(request_.dtype));
    for (int layer = 0; layer < static_cast<int>(file_->spec.num_layers); ++layer) {
        if (!has(layer) || streams(layer) || at_peer(layer)) continue;
        if (lies_ready(layer)) {
            submit_ready(layer, resident);
        } else if (request_.masters) {
            continue;  // the parameters' buffers have them
        } else if (const int64_t bytes = image_bytes(layer); bytes > 0) {
            resident.add("base weights", [&] { return image_name(layer); }, bytes);
        }
    }
    if (dx_coded(request_.coded))
        for (const int layer : layout_.stage.layers(file_->spec.num_layers))
            for (const Group g : layout_.groups_of(layer))
                for (const BaseBuffer& buffer :
                     transpose_buffers(layout_[g], layer, g, request_.dtype, dx_codes(request_.coded)))
                    resident.add("layer weights", [&] { return buffer.name(); }, buffer.bytes());
    for (int slot = 0; slot < slots(); ++slot) resident.add("layers' slots", image_slot_name(slot), largest_image());
    for (const formats::TensorSource& source : file_->tensors.all()) {
        const spec::TensorRule& rule = source.rule;
        const int64_t elements = source.rows() * source.cols();
        if (!layout_.stage.holds(rule.role, rule.id.layer, reads_embedding_as_head())) continue;
        switch (rule.role) {
            case spec::TensorRole::linear:  // in the layers above
            case spec::TensorRole::bias:    // joined by group below
                break;
            case spec::TensorRole::embed_tokens:
            case spec::TensorRole::lm_head:
                // Masters that are in the compute type are read in place; everything else needs a copy in the compute
                // type on the device.
                if (request_.masters && (request_.reads_values || request_.dtype == at::kFloat)) break;
                if (rule.role == spec::TensorRole::embed_tokens && request_.embedding_on_host) break;
                resident.add(
                    "embeddings", [&] { return rule.hf_name; },
                    request_.masters || trains(rule.role) ? elements * item : image_of({&source}).bytes());
                break;
            case spec::TensorRole::router:
                resident.add("routers", [&] { return rule.hf_name; }, elements * item);
                break;
            default:
                if (!request_.masters) resident.add("norms", [&] { return rule.hf_name; }, elements * 4);
        }
    }
    for (const int layer : layout_.stage.layers(file_->spec.num_layers))
        for (const Group g : layout_.groups_of(layer))
            if (has_bias(g)) resident.add("biases", [&] { return bias_name(layer, g); }, layout_[g].n * item);
    if (request_.unties_head && layout_.stage.last())
        resident.add("embeddings", untied_head_name, file_->spec.vocab_size * file_->spec.hidden_size * item);
    submit_head_codes(resident);
    if (!lora_.empty()) AdapterMargins::plan(layout_, lora_, request_.device, dx_coded(request_.coded), resident);
    if (layout_.dora) DoraNorms::plan(layout_, file_->spec.num_layers, resident);
    if (std::find(ready_.begin(), ready_.end(), false) != ready_.end())
        WeightProvider::plan_slot(layout_, request_.dtype, resident);
    if (margins_stay()) WeightProvider::plan_staying_margins(layout_, lora_, request_.device, request_.dtype, resident);
}

void BasePlan::submit_peer(int rank, memory::Plan& plan) const {
    for (int layer = 0; layer < static_cast<int>(file_->spec.num_layers); ++layer)
        if (has(layer) && at_peer(layer) && owner_of(layer) == rank)
            plan.add("base weights", [&] { return image_name(layer); }, image_bytes(layer));
}

void BasePlan::submit_common(memory::Plan& common) const {
    for (const int layer : streamed_)
        if (place_of(layer) == spec::Place::host)
            common.named() ? void(common.add("base weights", image_name(layer), image_bytes(layer), memory::always,
                                             content_of(linears(layer))))
                           : common.add_sizes(image_bytes(layer), memory::always, 1);
    if (!request_.embedding_on_host || !layout_.stage.first()) return;
    const Sources embed{&file_->tensors.of(spec::TensorRole::embed_tokens)};
    common.add("embeddings", embed[0]->rule.hf_name, image_of(embed).bytes(), memory::always, content_of(embed));
}

void BasePlan::submit_host(memory::Plan& host) const {
    for (const int layer : streamed_)
        if (const ImageSize& image = image_at(layer); on_disk(layer))
            host.add("base weights", [&] { return image_name(layer); }, image.bytes - image.rest);
    if (!recordable()) host.add("disk buffers", disk_buffers_name, DiskStream::memory_bytes);
}

std::string BasePlan::description() const {
    if (request_.masters) return cat("fp32 masters, compute ", c10::toString(request_.dtype));
    std::map<spec::WeightType, int64_t> linears;
    std::string outside;
    bool made = false;
    for (const formats::TensorSource& source : file_->tensors.all()) {
        const spec::WeightType type = type_of(source);
        if (source.rule.role == spec::TensorRole::linear) {
            ++linears[type];
            made = made || !as_it_lies(source);
        } else if (spec::is_quantised(type)) {
            outside += cat(", ", source.rule.role == spec::TensorRole::lm_head ? "lm_head" : "embeddings", " in ",
                           name_of(type));
        }
    }
    std::string text;
    for (const auto& [type, count] : linears)
        text += cat(text.empty() ? "" : ", ", count, " linears in ", words_for(type));
    const auto cached = std::count(request_.cached.begin(), request_.cached.end(), true);
    const char* const when = made ? " while loading" : " as they lie";
    const char* const coded = dx_codes(request_.coded) == spec::Codes::int8
                                  ? "; held in int8 (a scale for each row)"
                                  : "; held in fp8 (e4m3, a scale for each row)";
    const std::string stays = why_head_stays(),
                      head = !layout_.stage.last() ? ""
                             : stays.empty()       ? head_dx_codes(request_.coded) == spec::Codes::none
                                                         ? ", lm_head's logits too"
                                                         : ", lm_head too"
                                                   : cat(", lm_head in ", c10::toString(request_.dtype), " as ", stays);
    if (forward_coded(request_.coded)) return cat(text, when, outside, coded, head);
    return cat(text, when, outside,
               request_.device.is_cuda() && cached > 0
                   ? cat("; ", cached < static_cast<int64_t>(ready_.size()) ? cat(cached, " layers") : "all layers",
                         " expanded to ", c10::toString(request_.dtype), " once")
                   : "",
               dx_coded(request_.coded) ? cat(coded, " for dx, too", head) : "");
}

std::string BasePlan::form_of(int layer) const {
    if (forward_codes(request_.coded) == spec::Codes::int8) return "int8 codes";
    if (forward_coded(request_.coded)) return "fp8";
    const bool expanded = lies_ready(layer);
    std::set<std::string> forms;
    for (const formats::TensorSource* source : linears(layer))
        forms.insert(expanded || request_.masters ? request_.dtype == at::kBFloat16 ? "bf16"
                                                    : request_.dtype == at::kHalf   ? "fp16"
                                                                                    : "fp32"
                                                  : name_of(type_of(*source)));
    std::string text;
    for (const std::string& form : forms) text += cat(text.empty() ? "" : "+", form);
    if (dx_coded(request_.coded)) text += "+fp8";
    return text;
}

}  // namespace unsloth::weights
