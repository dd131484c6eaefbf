#include "unsloth/weights/base_plan.h"

#include <algorithm>
#include <map>

#include "unsloth/core/error.h"
#include "unsloth/ops/dtype.h"
#include "unsloth/ops/fp8.h"
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
        case spec::WeightType::int8:
            return "8 bit (int8)";
        default:
            return name_of(type);
    }
}

}  // namespace

BasePlan::BasePlan(std::shared_ptr<const formats::WeightFile> file, LayerLayout layout,
                   std::vector<spec::LayerLora> lora, BaseRequest request)
    : file_(std::move(file)), layout_(std::move(layout)), lora_(std::move(lora)), request_(std::move(request)) {
    require_precision();
    if (request_.fp8) require_fp8();
    request_.layers_at.resize(static_cast<std::size_t>(file_->spec.num_layers), spec::Place::device);
    for (spec::Place& at : request_.layers_at)
        if (at == spec::Place::device || at == spec::Place::peer)
            at = request_.peers.size > 1 ? spec::Place::peer : spec::Place::device;
    for (int layer = 0; layer < static_cast<int>(file_->spec.num_layers); ++layer)
        if (has(layer) && streams(layer)) streamed_.push_back(layer);
    if (!streamed_.empty()) require_resident();
    if (!layout_.tp.alone()) require_slices();
    for (int64_t layer = 0; layer < file_->spec.num_layers; ++layer) ready_.push_back(becomes_ready(layer));
    tiles_serve_ = tiles_serve();
    require_offload_folder();
}

void BasePlan::require_fp8() const {
    const auto refuse = [](const std::string& what, const char* advice) {
        throw usage_error("model.compute_dtype fp8 " + what, advice);
    };
    if (request_.masters)
        refuse("is for a frozen base", "Train adapters (lora.finetuning_type lora), or leave compute_dtype out.");
    if (!ops::fp8_available(request_.device))
        refuse(cat("needs compute capability 9.0 (H100, H200), as products with a scale for each row exist there "
                   "alone; ",
                   request_.device.str(), " has another"),
               "Leave compute_dtype out.");
    if (request_.device.is_cuda() && request_.dtype != at::kBFloat16)
        refuse("goes with dtype bfloat16 on a GPU", "Set model.dtype to bfloat16.");
    for (const Group g : all_groups)
        if (layout_[g].n % 16 != 0 || layout_[g].k % 16 != 0)
            refuse(cat("needs sizes that are multiples of 16; ", name_of(g), " is ", layout_[g].n, " x ", layout_[g].k),
                   "Leave compute_dtype out.");
    if (layout_.dora)
        refuse("holds the base as codes, whose rows have other norms than DoRA's magnitudes were made for",
               "Leave compute_dtype out, or take an adapter without use_dora.");
    const int64_t longest = ops::fp8_longest_row(request_.device);
    for (const Group g : all_groups)
        if (const int64_t row = std::max(layout_[g].n, layout_[g].k); row > longest)
            refuse(cat("takes rows of up to ", longest, " values; ", name_of(g), " has ", row),
                   "Leave compute_dtype out.");
}

void BasePlan::require_precision() const {
    const spec::PrecisionMap& precision = request_.held.precision;
    precision.check(file_->spec);
    if (request_.unties_head && (precision.names_embeddings() || precision.names_head()))
        throw usage_error(
            "model.precision names the embeddings or lm_head, which are one matrix in this model, and "
            "lora.modules_to_save trains a copy of it",
            "Leave them out of one of the two.");
}

/// 4-bit codes are cut where a block of them ends, and images are read from files in one piece.
void BasePlan::require_slices() const {
    const auto refuse = [&](const std::string& what, const std::string& advice) {
        throw usage_error(cat("distributed.tp_size ", layout_.tp.size, ": ", what), advice);
    };
    if (!recordable())
        refuse("layers on the disk (model.device_map) are read as whole matrices",
               "Keep them on the device or in host memory.");
    for (const formats::TensorSource& source : file_->tensors.all()) {
        if (source.rule.role != spec::TensorRole::linear || !spec::is_4bit(type_of(source))) continue;
        const spec::MatrixSlice part = part_of(source);
        for (const int64_t columns : {source.cols(), part.columns.begin, part.columns.size})
            if (columns % spec::quant4_block != 0)
                refuse(cat("a rank's columns ", part.columns.begin, " to ", part.columns.begin + part.columns.size,
                           " of ", source.rule.hf_name, ", which is held in 4 bit, do not end where its blocks of ",
                           spec::quant4_block, " do"),
                       "Take a smaller tp_size, or hold that matrix in bf16 or int8 (model.precision).");
    }
}

/// Some forms are made on the device, or change there.
void BasePlan::require_resident() const {
    if (!request_.fp8 && !request_.masters) return;
    throw usage_error(cat("model.device_map: ", streamed_.size(), " layers do not lie on the device, but ",
                          request_.fp8 ? "model.compute_dtype fp8 holds all of them there in 8 bit"
                                       : "lora.finetuning_type full trains all of them there"),
                      request_.fp8 ? "Leave compute_dtype out: layers that lie elsewhere are multiplied in model.dtype."
                                   : "Train adapters (lora.finetuning_type lora), or leave device_map out.");
}

/// What is made while loading has no place on the disk yet.
void BasePlan::require_offload_folder() const {
    if (request_.offload_folder) return;
    for (const int layer : streamed_)
        for (int p = 0; on_disk(layer) && p < spec::projection_count; ++p) {
            const formats::TensorSource& source = file_->tensors.linear(layer, static_cast<spec::Projection>(p));
            if (as_it_lies(source)) continue;
            throw usage_error(
                cat("model.device_map leaves layers on the disk, but ", source.rule.hf_name,
                    spec::is_quantised(type_of(source)) ? " is quantised" : cat(" becomes ", name_of(type_of(source))),
                    " while loading: it does not lie there as it is used"),
                "Set model.offload_folder to a folder for it, or use a checkpoint in these types "
                "(unsloth-train quantize makes one), which is read in place.");
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
        if (place_of(layer) != spec::Place::device) bytes = std::max(bytes, image_of(layer).bytes());
    return bytes;
}

/// The type that a frozen matrix is held in. Outside of the layers 16 and 32-bit ones are in the compute type, unless
/// they are named.
spec::WeightType BasePlan::type_of(const formats::TensorSource& source) const {
    const spec::WeightType type = request_.held.of(source, file_->spec);
    const bool named = request_.held.precision.of(source.rule, file_->spec) != spec::WeightType::automatic;
    if (named || source.rule.role == spec::TensorRole::linear || spec::is_quantised(type)) return type;
    return weight_type_of(request_.dtype);
}

bool BasePlan::as_it_lies(const formats::TensorSource& source) const {
    return type_of(source) == stored_type(source);
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
        return source.rule.role != spec::TensorRole::linear || as_it_lies(source);
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
        for (const Slice& slice : layout_[group_of(source.rule.projection)].slices)
            if (slice.projection == source.rule.projection) return slice.part;
    return {{0, source.rows()}, {0, source.cols()}};
}

bool BasePlan::is_cut(const formats::TensorSource& source) const {
    return part_of(source) != spec::MatrixSlice{{0, source.rows()}, {0, source.cols()}};
}

/// Whether a 4-bit weight is held with nested block maxima.
bool BasePlan::nested(const formats::TensorSource& source) const {
    const bool whole = !as_it_lies(source) || source.quant4->view.nested();
    return whole && (!is_cut(source) || keeps_nested_maxima(part_of(source), source.cols()));
}

/// Codes and masters' copies always are, but for values that go through the slot; on a GPU 16-bit layers, and quantised
/// ones that are expanded while loading.
bool BasePlan::becomes_ready(int64_t layer) const {
    if (request_.fp8 || !has(layer)) return true;
    if (request_.masters) return !request_.reads_values;
    if (!request_.device.is_cuda() || streams(layer) || at_peer(layer)) return false;
    if (request_.cached.at(static_cast<std::size_t>(layer))) return true;
    for (int p = 0; p < spec::projection_count; ++p) {
        const formats::TensorSource& linear =
            file_->tensors.linear(static_cast<int>(layer), static_cast<spec::Projection>(p));
        if (spec::is_quantised(type_of(linear))) return false;
    }
    return true;
}

/// Whether products of the fewest tokens that the run has (generation: one) read tiles in every group: expanding tiles
/// is slower than expanding rows, so that a layer must not need both.
bool BasePlan::tiles_serve() const {
    if (!request_.nf4_chooser) return false;
    const auto serves = [&](const GroupLayout& group, bool transposed) {
        return request_.nf4_chooser(request_.fewest_tokens, group.n, group.k, transposed).kernel !=
               ops::Nf4GemmChoice::Kernel::dequantize;
    };
    return std::all_of(std::begin(all_groups), std::end(all_groups), [&](Group g) {
        return serves(layout_[g], false) && (!request_.trains || serves(layout_[g], true));
    });
}

bool BasePlan::lies_in_tiles(const formats::TensorSource& source) const {
    const bool in_layer = source.rule.role == spec::TensorRole::linear;
    if (!tiles_serve_ || !in_layer || on_disk(source.rule.layer) || !spec::is_4bit(type_of(source))) return false;
    const spec::MatrixSlice part = part_of(source);
    return nested(source) && part.rows.size % spec::nf4_tile == 0 && part.columns.size % spec::nf4_tile == 0;
}

/// Of a layer that does not lie ready, and of embeddings and lm_head.
BasePlan::Held BasePlan::held(const formats::TensorSource& source) const {
    const bool lies = as_it_lies(source), in_layer = source.rule.role == spec::TensorRole::linear;
    if (lies_in_tiles(source)) return Held::tiles;
    if (lies && in_layer && request_.device.is_cpu() && place_of(source.rule.layer) == spec::Place::device &&
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
        return source.rule.role == spec::TensorRole::linear && has(source.rule.layer) &&
               !lies_ready(source.rule.layer) && spec::is_quantised(type_of(source)) && !lies_in_tiles(source);
    });
}

bool BasePlan::has_bias(Group g) const {
    return std::any_of(layout_[g].slices.begin(), layout_[g].slices.end(),
                       [&](const Slice& s) { return file_->spec.has_bias(s.projection); });
}

void BasePlan::submit_ready(int64_t layer, memory::Plan& resident) const {
    const auto add = [&](const BaseBuffer& buffer) { resident.add("layer weights", buffer.name, buffer.bytes()); };
    for (const Group g : all_groups) {
        if (request_.fp8) {
            for (const BaseBuffer& buffer : coded_buffers(layout_[g], layer, g, request_.dtype)) add(buffer);
        } else {
            add(dense_buffer(layout_[g], layer, g, request_.dtype));
        }
    }
}

BasePlan::Sources BasePlan::linears(int layer) const {
    Sources sources;
    for (int p = 0; p < spec::projection_count; ++p)
        sources.push_back(&file_->tensors.linear(layer, static_cast<spec::Projection>(p)));
    return sources;
}

LayerImage BasePlan::image_of(const Sources& sources) const {
    LayerImage image;
    for (const formats::TensorSource* source : sources) add_parts(*source, /*large=*/true, image);
    image.begin_rest();
    for (const formats::TensorSource* source : sources) add_parts(*source, /*large=*/false, image);
    return image;
}

/// The parts of a stored weight: one for each parameter, or block of them, or what many blocks share.
void BasePlan::add_parts(const formats::TensorSource& source, bool large, LayerImage& image) const {
    const Held how = held(source);
    if (how == Held::file_map) return;
    const spec::MatrixSlice part = part_of(source);
    const int64_t elements = part.rows.size * part.columns.size,
                  blocks = (elements + spec::quant4_block - 1) / spec::quant4_block;
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
        add("tiles", at::kByte, spec::nf4_tiles_bytes(part.rows.size, part.columns.size));
    } else {
        add("packed", at::kByte, (elements + 1) / 2);
        add("absmax", in_8bit ? at::kByte : at::kFloat, blocks);
    }
    if (in_8bit)
        add("nested absmax", at::kFloat, (blocks + spec::quant4_nested_block - 1) / spec::quant4_nested_block,
            /*is_large=*/false);
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
        } else if (const int64_t bytes = image_of(layer).bytes(); bytes > 0) {
            resident.add("base weights", image_name(layer), bytes);
        }
    }
    for (int slot = 0; slot < slots(); ++slot) resident.add("layers' slots", image_slot_name(slot), largest_image());
    for (const formats::TensorSource& source : file_->tensors.all()) {
        const spec::TensorRule& rule = source.rule;
        const int64_t elements = source.rows() * source.cols();
        if (!layout_.stage.holds(rule.role, rule.layer, reads_embedding_as_head())) continue;
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
                resident.add("embeddings", rule.hf_name,
                             request_.masters || trains(rule.role) ? elements * item : image_of({&source}).bytes());
                break;
            default:
                if (!request_.masters) resident.add("norms", rule.hf_name, elements * 4);
        }
    }
    for (const int layer : layout_.stage.layers(file_->spec.num_layers))
        for (const Group g : all_groups)
            if (has_bias(g)) resident.add("biases", bias_name(layer, g), layout_[g].n * item);
    if (request_.unties_head && layout_.stage.last())
        resident.add("embeddings", untied_head_name, file_->spec.vocab_size * file_->spec.hidden_size * item);
    if (!lora_.empty()) AdapterMargins::plan(layout_, lora_, request_.device, request_.fp8, resident);
    if (layout_.dora) DoraNorms::plan(layout_, file_->spec.num_layers, resident);
    if (std::find(ready_.begin(), ready_.end(), false) != ready_.end())
        Pager::plan_slot(layout_, request_.dtype, resident);
}

/// In turn, among the layers that these ranks have.
int BasePlan::owner_of(int64_t layer) const {
    int64_t place = 0;
    for (int64_t below = 0; below < layer; ++below) place += has(below) ? 1 : 0;
    return static_cast<int>(place % request_.peers.size);
}

void BasePlan::submit_peer(int rank, memory::Plan& plan) const {
    for (int layer = 0; layer < static_cast<int>(file_->spec.num_layers); ++layer)
        if (has(layer) && at_peer(layer) && owner_of(layer) == rank)
            plan.add("base weights", image_name(layer), image_of(layer).bytes());
}

void BasePlan::submit_common(memory::Plan& common) const {
    for (const int layer : streamed_)
        if (place_of(layer) == spec::Place::host)
            common.add("base weights", image_name(layer), image_of(layer).bytes());
    if (request_.embedding_on_host && embedding_is_common() && layout_.stage.first()) add_embedding(common);
}

void BasePlan::submit_host(memory::Plan& host) const {
    for (const int layer : streamed_)
        if (const LayerImage image = image_of(layer); on_disk(layer))
            host.add("base weights", image_name(layer), image.bytes() - image.rest());
    if (!recordable()) host.add("disk buffers", disk_buffers_name, DiskStream::memory_bytes);
    if (request_.embedding_on_host && !embedding_is_common() && layout_.stage.first()) add_embedding(host);
}

void BasePlan::add_embedding(memory::Plan& host) const {
    const formats::TensorSource& embed = file_->tensors.of(spec::TensorRole::embed_tokens);
    host.add("embeddings", embed.rule.hf_name, image_of({&embed}).bytes());
}

/// Whether processes can read rows of it each: codes' offsets lie with the process that made them.
bool BasePlan::embedding_is_common() const {
    return type_of(file_->tensors.of(spec::TensorRole::embed_tokens)) == weight_type_of(request_.dtype);
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
    return cat(text, when, outside,
               request_.fp8 ? "; held in fp8 (e4m3, a scale for each row)"
               : request_.device.is_cuda() && cached > 0
                   ? cat("; ", cached < static_cast<int64_t>(ready_.size()) ? cat(cached, " layers") : "all layers",
                         " expanded to ", c10::toString(request_.dtype), " once")
                   : "");
}

std::string BasePlan::form_of(int layer) const {
    if (request_.fp8) return "fp8";
    const bool expanded = lies_ready(layer);
    std::set<std::string> forms;
    for (const formats::TensorSource* source : linears(layer))
        forms.insert(expanded || request_.masters ? request_.dtype == at::kBFloat16 ? "bf16"
                                                    : request_.dtype == at::kHalf   ? "fp16"
                                                                                    : "fp32"
                                                  : name_of(type_of(*source)));
    std::string text;
    for (const std::string& form : forms) text += cat(text.empty() ? "" : "+", form);
    return text;
}

}  // namespace unsloth::weights
