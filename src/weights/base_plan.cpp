#include "unsloth/weights/base_plan.h"

#include <algorithm>

#include "unsloth/core/error.h"
#include "unsloth/ops/dtype.h"
#include "unsloth/ops/fp8.h"
#include "weights/base_buffers.h"

namespace unsloth::weights {

BasePlan::BasePlan(std::shared_ptr<const formats::WeightFile> file, LayerLayout layout,
                   std::vector<spec::LayerLora> lora, BaseRequest request)
    : file_(std::move(file)), layout_(std::move(layout)), lora_(std::move(lora)), request_(std::move(request)) {
    if (request_.fp8) require_fp8();
    request_.layers_at.resize(static_cast<std::size_t>(file_->spec.num_layers), spec::Place::device);
    for (int layer = 0; layer < static_cast<int>(file_->spec.num_layers); ++layer)
        if (streams(layer)) streamed_.push_back(layer);
    if (!streamed_.empty()) require_resident();
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
            if (held(source) != Held::quantised_here && !source.int8) continue;
            throw usage_error(
                cat("model.device_map leaves layers on the disk, but ", source.rule.hf_name, " is ",
                    source.int8 ? "dequantised" : "quantised", " while loading: it does not lie there as it is used"),
                "Set model.offload_folder to a folder for it, or use a checkpoint in 4 bit "
                "(unsloth-train quantize makes one), which is read in place.");
        }
}

bool BasePlan::recordable() const {
    return std::none_of(streamed_.begin(), streamed_.end(), [&](int layer) { return on_disk(layer); });
}

/// Two: while a layer is read from one, the next is copied into the other.
int BasePlan::slots() const {
    return static_cast<int>(std::min<std::size_t>(2, streamed_.size()));
}

int64_t BasePlan::largest_image() const {
    int64_t bytes = 0;
    for (const int layer : streamed_) bytes = std::max(bytes, image_of(layer).bytes());
    return bytes;
}

/// Weights of 8 bit stay what they are: to quantise them a second time would lose twice.
bool BasePlan::quantises(const formats::TensorSource& source) const {
    return request_.load_in_4bit && !source.quantised() && !source.int8;
}

at::ScalarType BasePlan::matrix_type(const formats::TensorSource& source) const {
    return source.int8 ? request_.dtype : ops::scalar_type(source.tensor->dtype);
}

/// Codes and masters' copies always are; on a GPU 16-bit layers, and 4-bit ones that are expanded while loading.
bool BasePlan::becomes_ready(int64_t layer) const {
    if (request_.fp8 || request_.masters) return true;
    if (!request_.device.is_cuda() || streams(layer)) return false;
    if (request_.cached.at(static_cast<std::size_t>(layer))) return true;
    for (int p = 0; p < spec::projection_count; ++p) {
        const formats::TensorSource& linear =
            file_->tensors.linear(static_cast<int>(layer), static_cast<spec::Projection>(p));
        if (linear.quantised() || quantises(linear)) return false;
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
    if (!tiles_serve_ || on_disk(source.rule.layer)) return false;
    if (source.quantised()) return spec::nf4_tiles_supported(source.quant4->view);
    return quantises(source) && source.rows() % spec::nf4_tile == 0 && source.cols() % spec::nf4_tile == 0;
}

/// Of a layer that does not lie ready.
BasePlan::Held BasePlan::held(const formats::TensorSource& source) const {
    const bool mapped = request_.device.is_cpu() && !streams(source.rule.layer);
    if (lies_in_tiles(source)) return Held::tiles;
    if (source.quantised()) return mapped ? Held::file_map : Held::packed;
    if (quantises(source)) return Held::quantised_here;
    if (source.int8) return Held::matrix;
    return mapped ? Held::file_map : Held::matrix;
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

LayerImage BasePlan::image_of(int layer) const {
    LayerImage image;
    add_parts(layer, /*large=*/true, image);
    image.begin_rest();
    add_parts(layer, /*large=*/false, image);
    return image;
}

/// The parts of a stored layer: one for each parameter, or block of them, or what many blocks share.
void BasePlan::add_parts(int layer, bool large, LayerImage& image) const {
    for (int p = 0; p < spec::projection_count; ++p) {
        const formats::TensorSource& source = file_->tensors.linear(layer, static_cast<spec::Projection>(p));
        const Held how = held(source);
        if (how == Held::file_map) continue;
        const int64_t elements = source.rows() * source.cols(),
                      blocks = (elements + spec::quant4_block - 1) / spec::quant4_block;
        const auto add = [&](const char* what, at::ScalarType type, int64_t count, bool is_large = true) {
            if (is_large == large) image.add(part_name(source.rule.hf_name, what), type, count);
        };
        if (how == Held::matrix) {
            add("matrix", matrix_type(source), elements);
            continue;
        }
        const bool nested = how != Held::packed || source.quant4->view.nested();
        if (how == Held::tiles) {
            add("tiles", at::kByte, spec::nf4_tiles_bytes(source.rows(), source.cols()));
        } else {
            add("packed", at::kByte, (elements + 1) / 2);
            add("absmax", nested ? at::kByte : at::kFloat, blocks);
        }
        if (nested)
            add("nested absmax", at::kFloat, (blocks + spec::quant4_nested_block - 1) / spec::quant4_nested_block,
                /*is_large=*/false);
        add("tables", at::kFloat, 16 + 256, /*is_large=*/false);
    }
}

void BasePlan::submit(memory::Plan& resident) const {
    const auto item = static_cast<int64_t>(c10::elementSize(request_.dtype));
    for (int layer = 0; layer < static_cast<int>(file_->spec.num_layers); ++layer) {
        if (streams(layer)) continue;
        if (lies_ready(layer)) {
            submit_ready(layer, resident);
        } else if (const int64_t bytes = image_of(layer).bytes(); bytes > 0) {
            resident.add("base weights", image_name(layer), bytes);
        }
    }
    for (int slot = 0; slot < slots(); ++slot) resident.add("layers' slots", image_slot_name(slot), largest_image());
    for (const formats::TensorSource& source : file_->tensors.all()) {
        const spec::TensorRule& rule = source.rule;
        const int64_t elements = source.rows() * source.cols();
        switch (rule.role) {
            case spec::TensorRole::linear:  // in the layers above
            case spec::TensorRole::bias:    // joined by group below
                break;
            case spec::TensorRole::embed_tokens:
            case spec::TensorRole::lm_head:
                // fp32 masters are read in place; everything else needs a copy in the compute type on the device.
                if (request_.masters && request_.dtype == at::kFloat) break;
                if (rule.role == spec::TensorRole::embed_tokens && request_.embedding_on_host) break;
                resident.add("embeddings", rule.hf_name, elements * item);
                break;
            default:
                if (!request_.masters) resident.add("norms", rule.hf_name, elements * 4);
        }
    }
    for (int64_t layer = 0; layer < file_->spec.num_layers; ++layer)
        for (const Group g : all_groups)
            if (has_bias(g)) resident.add("biases", bias_name(layer, g), layout_[g].n * item);
    if (request_.unties_head)
        resident.add("embeddings", untied_head_name, file_->spec.vocab_size * file_->spec.hidden_size * item);
    if (!lora_.empty()) AdapterMargins::plan(layout_, lora_, request_.device, request_.fp8, resident);
    if (layout_.dora) DoraNorms::plan(layout_, file_->spec.num_layers, resident);
    if (std::find(ready_.begin(), ready_.end(), false) != ready_.end())
        Pager::plan_slot(layout_, request_.dtype, resident);
}

void BasePlan::submit_host(memory::Plan& host) const {
    for (const int layer : streamed_) {
        const LayerImage image = image_of(layer);
        host.add("base weights", image_name(layer), image.bytes() - (on_disk(layer) ? image.rest() : 0));
    }
    if (!recordable()) host.add("disk buffers", disk_buffers_name, DiskStream::memory_bytes);
    if (!request_.embedding_on_host) return;
    const formats::TensorSource& embed = file_->tensors.of(spec::TensorRole::embed_tokens);
    host.add("embeddings", embed.rule.hf_name,
             embed.rows() * embed.cols() * static_cast<int64_t>(c10::elementSize(request_.dtype)));
}

std::string BasePlan::description() const {
    const int64_t quantised = file_->tensors.quantised_linears();
    const auto cached = std::count(request_.cached.begin(), request_.cached.end(), true);
    const std::string expanded =
        request_.fp8 ? ", held in fp8 (e4m3, a scale for each row)"
        : request_.device.is_cuda() && cached > 0
            ? cat(cached < static_cast<int64_t>(ready_.size()) ? cat(", ", cached, " layers of them") : ",",
                  " expanded to ", c10::toString(request_.dtype), " while loading")
            : "";
    if (quantised > 0) return cat(quantised, " linears in 4 bit as they lie", expanded);
    if (const int64_t int8 = file_->tensors.int8_linears(); int8 > 0)
        return cat(int8, " linears in 8 bit, dequantised to ",
                   request_.fp8 ? "fp8 (e4m3, a scale for each row)" : c10::toString(request_.dtype), " while loading");
    if (request_.masters) return cat("fp32 masters, compute ", c10::toString(request_.dtype));
    return request_.load_in_4bit ? cat("NF4 (double quantised), quantised while loading", expanded)
                                 : cat("kept in 16/32 bit", expanded);
}

}  // namespace unsloth::weights
