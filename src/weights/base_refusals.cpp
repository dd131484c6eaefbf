// What a BasePlan refuses, before anything is loaded.
#include <algorithm>

#include "unsloth/core/error.h"
#include "unsloth/ops/coded_rows.h"
#include "unsloth/weights/base_plan.h"

namespace unsloth::weights {

void BasePlan::require_coded() const {
    const auto refuse = [&](const std::string& what, const char* advice) {
        throw Error("device.unsupported", cat("model.compute_dtype ", name_of(request_.coded), " ", what), advice);
    };
    UNSLOTH_CHECK(!request_.masters, "codes of weights that are trained");
    if (file_->spec.experts)
        refuse("does not support experts: their products have no form that reads codes", "Leave compute_dtype out.");
    if (!ops::coded_available(request_.device, dx_codes(request_.coded)))
        refuse(cat(dx_codes(request_.coded) == spec::Codes::int8
                       ? "needs compute capability 8.0 (A100, RTX 30) or later; "
                       : "needs compute capability 9.0 (H100, H200), as products with a scale for each row exist there "
                         "alone; ",
                   request_.device.str(), " has another"),
               "Leave compute_dtype out.");
    if (request_.device.is_cuda() && request_.dtype != at::kBFloat16)
        refuse("needs dtype bfloat16 on a GPU", "Set model.dtype to bfloat16.");
    for (const Group g : layout_.all_groups())
        if (layout_[g].n % 16 != 0 || layout_[g].k % 16 != 0)
            refuse(cat("needs sizes that are multiples of 16; ", name_of(g), " is ", layout_[g].n, " x ", layout_[g].k),
                   "Leave compute_dtype out.");
    if (layout_.dora)
        refuse(why_not_dora(request_.coded), "Leave compute_dtype out, or take an adapter without use_dora.");
    const int64_t longest = ops::coded_longest_row(request_.device);
    for (const Group g : layout_.all_groups())
        if (const int64_t row = std::max(layout_[g].n, layout_[g].k); row > longest)
            refuse(cat("takes rows of up to ", longest, " values; ", name_of(g), " has ", row),
                   "Leave compute_dtype out.");
}

void BasePlan::require_precision() const {
    const spec::PrecisionMap& precision = request_.held.precision;
    precision.check(file_->spec);
    if (request_.unties_head && (precision.names_embeddings() || precision.names_head()))
        throw Error("model.precision",
                    "model.precision names the embeddings or lm_head, which are one matrix in this model, and "
                    "lora.modules_to_save trains a copy of it",
                    "Leave them out of one of the two.");
}

/// Of a base that adapters are folded into: all of it is on the device, in matrices that the grid divides.
void BasePlan::require_grid() const {
    UNSLOTH_CHECK(!request_.masters && !layout_.dora && !any(request_.coded) && layout_.tp.alone(), "no folded base");
    const auto refuse = [&](ErrorId id, const std::string& what, const char* advice) {
        throw Error(id, cat("lora.serve_grid ", name_of(request_.grid), " ", what), advice);
    };
    if (!streamed_.empty())
        refuse("model.device-map", "needs the layers on the device; model.device_map puts some elsewhere",
               "Leave device_map out, or train without serve_grid.");
    for (const MatrixGroup& group : layout_.groups)
        for (const Slice& slice : group.slices)
            if (slice.r > spec::largest_fixed_rank)
                refuse("option.unsupported", cat("needs ranks of at most ", spec::largest_fixed_rank),
                       "Take a lower lora.r or rank_pattern, or train without serve_grid.");
    for (const formats::TensorSource& source : file_->tensors.all())
        if (source.rule.role == spec::TensorRole::linear && source.cols() % spec::columns_of(request_.grid) != 0)
            refuse("option.unsupported",
                   cat("needs rows of a multiple of ", spec::columns_of(request_.grid), " values; those of ",
                       source.rule.hf_name, " have ", source.cols()),
                   "Take nf4 or fp8, which need a multiple of 8.");
}

/// MXFP4 is what the model was trained in: other codes would lose for nothing.
void BasePlan::require_quantised_once() const {
    for (const formats::TensorSource& source : file_->tensors.all()) {
        const spec::WeightType type = type_of(source);
        if (source.mxfp4() == nullptr || in_mxfp4(source) || !spec::is_quantised(type)) continue;
        throw Error(
            "model.precision",
            cat("model.precision makes ", name_of(type), " of ", source.rule.hf_name,
                ", which is in mxfp4: that would quantise it twice"),
            "Leave its module out of model.precision; bf16, fp16 and fp32 hold its values exactly or nearly so.");
    }
}

/// 4-bit codes are cut where a block of them ends, and images are read from files in one piece.
void BasePlan::require_slices() const {
    const auto refuse = [&](ErrorId id, const std::string& what, const std::string& advice) {
        throw Error(id, cat("distributed.tp_size ", layout_.tp.size, ": ", what), advice);
    };
    if (!recordable())
        refuse("model.device-map", "layers on the disk (model.device_map) are read as whole matrices",
               "Keep them on the device or in host memory.");
    for (const formats::TensorSource& source : file_->tensors.all()) {
        if (source.rule.role != spec::TensorRole::linear || !spec::is_4bit(type_of(source))) continue;
        const spec::MatrixSlice part = part_of(source);
        for (const int64_t columns : {source.cols(), part.columns.begin, part.columns.size})
            if (columns % block_of(source) != 0)
                refuse("parallel.model-does-not-divide",
                       cat("a rank's columns ", part.columns.begin, " to ", part.columns.begin + part.columns.size,
                           " of ", source.rule.hf_name, ", which is held in 4 bit, do not end where its blocks of ",
                           block_of(source), " do"),
                       "Take a smaller tp_size, or hold that matrix in bf16 or int8 (model.precision).");
    }
}

void BasePlan::require_dequantized() const {
    if (request_.mantissa_bits == 0) return;
    for (int layer = 0; layer < static_cast<int>(file_->spec.num_layers); ++layer)
        if (has(layer) && !is_ready(layer))
            throw Error(
                "option.no-effect",
                cat("hardware.weight_mantissa_bits rounds 4 and 16-bit weights that are dequantized once on a GPU; "
                    "those of layer ",
                    layer, " do not"),
                "Leave weight_mantissa_bits out.");
}

/// Some forms are made on the device, or change there.
void BasePlan::require_resident() const {
    if (!any(request_.coded) && !request_.masters) return;
    throw Error("model.device-map",
                cat("model.device_map: ", streamed_.size(), " layers are not on the device, but ",
                    any(request_.coded)
                        ? cat("model.compute_dtype ", name_of(request_.coded), " holds all of them there in 8 bit")
                        : "lora.finetuning_type full trains all of them there"),
                any(request_.coded)
                    ? "Leave compute_dtype out: layers that are elsewhere are multiplied in model.dtype."
                    : "Train adapters (lora.finetuning_type lora), or leave device_map out.");
}

/// What is made while loading has no place on the disk yet.
void BasePlan::require_offload_folder() const {
    if (request_.offload_folder) return;
    for (const int layer : streamed_) {
        if (!on_disk(layer)) continue;
        for (const formats::TensorSource* linear : linears(layer)) {
            const formats::TensorSource& source = *linear;
            if (read_in_place(source)) continue;
            throw Error("model.device-map",
                        cat("model.device_map leaves layers on the disk, but ", source.rule.hf_name,
                            in_mxfp4(source)                      ? " is put into another order"
                            : spec::is_quantised(type_of(source)) ? " is quantised"
                                                                  : cat(" becomes ", name_of(type_of(source))),
                            " while loading: it is not there as it is used"),
                        "Set model.offload_folder to a folder for it, or use a checkpoint in these types "
                        "(unsloth-train quantize makes one), which is read in place.");
        }
    }
}

}  // namespace unsloth::weights
