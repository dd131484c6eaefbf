// The layout of the base in memory: its buffers in each plan, and the words for them.
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
        for (const spec::Range& more : part.more_rows) hash.add_field(cat(more.begin, " ", more.size));
    }
    return hash.hex();
}

/// The parts of a stored weight: one for each parameter, or block of them, or what many blocks share.
void BasePlan::add_parts(const formats::TensorSource& source, bool large, PackedLayer& image) const {
    const Held how = held(source);
    if (how == Held::file_map) return;
    const spec::MatrixSlice part = part_of(source);
    const int64_t elements = part.row_count() * part.columns.size,
                  blocks = (elements + block_of(source) - 1) / block_of(source);
    const auto add = [&](const char* what, at::ScalarType type, int64_t count, bool is_large = true) {
        if (is_large == large) image.add(part_name(source.rule.hf_name, what), type, count);
    };
    if (how == Held::matrix) return add("matrix", matrix_type(source), elements);
    if (how == Held::int8) {
        add("codes", at::kChar, elements);
        return add("maxima", at::kFloat, part.row_count(), /*is_large=*/false);
    }
    const bool in_8bit = nested(source);
    if (how == Held::tiles) {
        add("tiles", at::kByte,
            spec::nf4_tiles_bytes(part.row_count(), part.columns.size,
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
        if (is_ready(layer)) {
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
    if (request_.grid != spec::ServeGrid::none) FoldedAdapters::plan(request_.grid, layout_, resident);
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
            made = made || !held_as_stored(source);
        } else if (spec::is_quantised(type)) {
            outside += cat(", ", source.rule.role == spec::TensorRole::lm_head ? "lm_head" : "embeddings", " in ",
                           name_of(type));
        }
    }
    std::string text;
    for (const auto& [type, count] : linears)
        text += cat(text.empty() ? "" : ", ", count, " linears in ", words_for(type));
    const auto cached = std::count(request_.cached.begin(), request_.cached.end(), true);
    const char* const when = made ? " while loading" : " as stored";
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
                         " dequantized to ", c10::toString(request_.dtype), " once")
                   : "",
               dx_coded(request_.coded) ? cat(coded, " for dx, too", head) : "");
}

std::string BasePlan::form_of(int layer) const {
    if (forward_codes(request_.coded) == spec::Codes::int8) return "int8 codes";
    if (forward_coded(request_.coded)) return "fp8";
    const bool dequantized = is_ready(layer);
    std::set<std::string> forms;
    for (const formats::TensorSource* source : linears(layer))
        forms.insert(dequantized || request_.masters ? request_.dtype == at::kBFloat16 ? "bf16"
                                                       : request_.dtype == at::kHalf   ? "fp16"
                                                                                       : "fp32"
                                                     : name_of(type_of(*source)));
    std::string text;
    for (const std::string& form : forms) text += cat(text.empty() ? "" : "+", form);
    if (dx_coded(request_.coded)) text += "+fp8";
    return text;
}

}  // namespace unsloth::weights
