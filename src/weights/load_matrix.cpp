// BasePlan's loading of single matrices: from the mapped file to the form that each is held in, and of those outside
// the layers.
#include <cstring>

#include "unsloth/core/error.h"
#include "unsloth/core/parallel.h"
#include "unsloth/formats/bnb4.h"
#include "unsloth/formats/bnb8.h"
#include "unsloth/formats/mxfp4.h"
#include "unsloth/ops/dtype.h"
#include "unsloth/ops/upload.h"
#include "unsloth/weights/base_plan.h"
#include "unsloth/weights/part.h"
#include "weights/base_buffers.h"
#include "weights/quant4_rows.h"

namespace unsloth::weights {
namespace {

/// The bytes of a mapped tensor as an ATen tensor on the CPU; a copy where they are not aligned for their type.
at::Tensor mapped_tensor(const formats::TensorView& view) {
    const at::ScalarType type = ops::scalar_type(view.dtype);
    void* const data = const_cast<std::byte*>(view.data.data());
    if (view.is_aligned(c10::elementSize(type))) return at::from_blob(data, view.shape, type);
    const at::Tensor copy = at::empty(view.shape, type);
    std::memcpy(copy.data_ptr(), data, view.data.size());
    return copy;
}

/// A weight's values as a matrix on the CPU: mapped where it is in `dtype`, else each value rounded once.
at::Tensor matrix_of(const formats::TensorSource& source, at::ScalarType dtype) {
    const formats::TensorView* const plain = source.plain();
    if (plain != nullptr && ops::scalar_type(plain->dtype) == dtype) return mapped_tensor(*plain);
    const at::Tensor matrix = at::empty(source.rule.shape, dtype);
    parallel_ranges(source.rows(), 64, [&](int64_t begin, int64_t end) {
        const at::Tensor values = at::empty({end - begin, source.cols()}, at::kFloat);
        source.read_f32(begin, end, values.data_ptr<float>());
        matrix.narrow(0, begin, end - begin).copy_(values);
    });
    return matrix;
}

/// The same in 8 bit: mapped where it is in that form, else quantised as `quantize` writes it. input Error, with its
/// name, for values that have no such form.
ops::Int8Tensor int8_of(const formats::TensorSource& source) {
    if (const formats::Int8Weight* const weight = source.int8())
        return {mapped_tensor(*weight->codes), mapped_tensor(*weight->maxima).view({source.rows()})};
    const ops::Int8Tensor made{at::empty(source.rule.shape, at::kChar), at::empty({source.rows()}, at::kFloat)};
    const int64_t cols = source.cols();
    parallel_ranges(source.rows(), 64, [&](int64_t begin, int64_t end) {
        std::vector<float> values(static_cast<std::size_t>((end - begin) * cols));
        source.read_f32(begin, end, values.data());
        formats::quantize_int8_rows(values.data(), end - begin, cols, made.codes.data_ptr<int8_t>() + begin * cols,
                                    made.maxima.data_ptr<float>() + begin);
    });
    if (!made.maxima.isfinite().all().item<bool>())
        throw Error("checkpoint.not-finite",
                    cat(source.rule.hf_name, " holds a value that is not finite, or too large for int8's scales"),
                    "Hold it in bf16 or fp32 (model.precision).");
    return made;
}

/// The same in 4 bit.
formats::Quant4Owned quantised_on_host(const formats::TensorSource& source, spec::WeightType type) {
    return formats::quantize_4bit(type == spec::WeightType::nf4 ? spec::Quant4Type::nf4 : spec::Quant4Type::fp4,
                                  source.rows(), source.cols(),
                                  [&](int64_t begin, int64_t end, float* out) { source.read_f32(begin, end, out); });
}

/// An MXFP4 weight on the host, as quant4_rows() makes others.
ops::Quant4Tensor mxfp4_rows(const formats::Mxfp4Weight& weight) {
    ops::Quant4Tensor made;
    made.rows = weight.rows;
    made.cols = weight.cols;
    const int64_t blocks = weight.cols / spec::mxfp4_block;
    made.packed = at::empty({weight.rows * weight.cols / 2}, at::kByte);
    made.absmax = at::empty({weight.rows * blocks}, at::kByte);
    made.tables = at::zeros({16 + 256}, at::kFloat);
    std::copy(std::begin(spec::mxfp4_code), std::end(spec::mxfp4_code), made.tables.data_ptr<float>());
    parallel_ranges(weight.rows, 64, [&](int64_t begin, int64_t end) {
        formats::copy_rows(weight, begin, end, made.packed.data_ptr<uint8_t>() + begin * weight.cols / 2,
                           made.absmax.data_ptr<uint8_t>() + begin * blocks);
    });
    return made;
}

ops::Quant4Tensor on_device(StoredWeight weight, at::Device device) {
    auto& rows = std::get<ops::Quant4Tensor>(weight);
    for (at::Tensor* tensor : {&rows.packed, &rows.absmax, &rows.nested_absmax, &rows.tables})
        if (tensor->defined()) *tensor = ops::to_device(*tensor, device);
    return std::move(rows);
}

}  // namespace

/// A frozen matrix with the values that the run trains on: quantised ones on the device, others as stored.
StoredWeight BasePlan::frozen_weight(ops::Context& ctx, const formats::TensorSource& linear) const {
    const spec::WeightType type = type_of(linear);
    const spec::MatrixSlice part = part_of(linear);
    if (type == spec::WeightType::int8) {
        const auto weight = std::get<ops::Int8Tensor>(slice(int8_of(linear), part));
        return ops::Int8Tensor{ops::to_device(weight.codes, ctx.device()), ops::to_device(weight.maxima, ctx.device())};
    }
    if (!spec::is_4bit(type)) return slice(matrix_of(linear, matrix_type(linear)), part);
    if (in_mxfp4(linear)) return on_device(slice(mxfp4_rows(*linear.mxfp4()), part), ctx.device());
    if (held_as_stored(linear)) {
        if (!is_cut(linear)) return ops::upload(ctx, linear.quant4()->view);
        const auto where_it_is = [](const char*, const at::Tensor& values) { return values; };
        return on_device(slice(quant4_rows(linear.quant4()->view, where_it_is), part), ctx.device());
    }
    // Nested maxima are of all of a matrix's blocks: it is quantised as a whole.
    if (type == spec::WeightType::nf4 && (linear.plain() != nullptr || linear.strided() != nullptr)) {
        const at::Tensor values = matrix_of(linear, ops::scalar_type(linear.tensor().dtype));
        return slice(ops::quantize_nf4(ctx, ops::to_device(values, ctx.device())), part);
    }
    const formats::Quant4Owned made = quantised_on_host(linear, type);
    const auto copied = [&](const char*, const at::Tensor& values) { return values.clone().to(ctx.device()); };
    return slice(quant4_rows(made.view(), copied), part);
}

/// The memory of a frozen matrix; with `reads` its values, too.
StoredWeight BasePlan::load_stored(ops::Context& ctx, const formats::TensorSource& source, bool reads,
                                   const PlacePart& place) const {
    const Held how = held(source);
    const auto where_it_is = [](const char*, const at::Tensor& values) { return values; };
    const auto place_offset = [&](float offset) { place(nested_offset_part, at::full({1}, offset)); };
    if (how == Held::file_map) {
        if (source.quantised()) return quant4_rows(source.quant4()->view, where_it_is);
        if (source.int8() != nullptr) return int8_of(source);
        return mapped_tensor(*source.plain());
    }
    const spec::MatrixSlice part = part_of(source);
    const int64_t rows = part.row_count(), cols = part.columns.size;
    StoredWeight stored;
    if (how == Held::packed) {
        stored = quant4_rows(source.quant4()->view, place);
    } else if (how == Held::matrix) {
        at::Tensor made;
        if (reads) made = std::get<at::Tensor>(slice(matrix_of(source, matrix_type(source)), part));
        stored = place("matrix", made).view({rows, cols});
    } else if (how == Held::int8) {
        ops::Int8Tensor made;
        if (reads) made = std::get<ops::Int8Tensor>(slice(int8_of(source), part));
        stored = ops::Int8Tensor{place("codes", made.codes).view({rows, cols}), place("maxima", made.maxima)};
    } else if (how == Held::tiles) {
        ops::Nf4Tiles made;
        if (reads) made = ops::make_nf4_tiles(ctx, std::get<ops::Quant4Tensor>(frozen_weight(ctx, source)));
        stored = ops::Nf4Tiles{place("tiles", made.tiles),
                               nested(source) ? place("nested absmax", made.nested_absmax) : at::Tensor(),
                               place("tables", made.tables),
                               made.nested_offset,
                               rows,
                               cols};
        if (nested(source)) place_offset(made.nested_offset);
    } else {
        ops::Quant4Tensor made;
        if (reads) made = std::get<ops::Quant4Tensor>(frozen_weight(ctx, source));
        stored = ops::Quant4Tensor{place("packed", made.packed),
                                   place("absmax", made.absmax),
                                   nested(source) ? place("nested absmax", made.nested_absmax) : at::Tensor(),
                                   place("tables", made.tables),
                                   made.nested_offset,
                                   rows,
                                   cols};
        if (nested(source)) place_offset(made.nested_offset);
    }
    if (reads) source.drop();
    return stored;
}

/// A frozen matrix outside of the layers, which is in its memory as an image; with `reads` its values are brought
/// there.
StoredWeight BasePlan::load_matrix(ops::Context& ctx, const at::Tensor& memory, const formats::TensorSource& source,
                                   bool reads) const {
    const PackedLayer image = image_of({&source});
    StoredWeight stored = load_stored(ctx, source, reads, [&](const char* what, const at::Tensor& values) {
        const at::Tensor part = image.part(memory, part_name(source.rule.hf_name, what));
        if (reads) ops::copy_from_host(values.view({-1}), part);
        return part;
    });
    if (!reads) read_offset(image, memory, source, stored);
    return stored;
}

EmbeddingAndHead BasePlan::load_embedding_and_head(ops::Context& ctx, const BaseMemory& memory,
                                                   const Parameters* masters, SharedLoading& shared) const {
    const memory::Arena& arena = memory.resident;
    const auto matrix = [&](const formats::TensorSource& source, const std::string& buffer,
                            bool trained) -> StoredWeight {
        if (masters != nullptr && (request_.reads_values || request_.dtype == at::kFloat))
            return masters->value(*masters->table().find(source.rule.role, {}, Parameter::Kind::base));
        shared.done();
        if (masters == nullptr && !trained && type_of(source) != weight_type_of(request_.dtype))
            return load_matrix(ctx, arena.tensor(arena.plan().find(buffer), {image_of({&source}).bytes()}, at::kByte),
                               source, /*reads=*/true);
        const at::Tensor out = arena.tensor(arena.plan().find(buffer), source.rule.shape, request_.dtype),
                         values = source.plain() ? mapped_tensor(*source.plain()) : matrix_of(source, request_.dtype);
        shared.read_rows(out, [&](int64_t begin, int64_t end) {
            out.narrow(0, begin, end - begin).copy_(values.narrow(0, begin, end - begin));
        });
        source.drop();
        return out;
    };
    const formats::TensorSource &embed = file_->tensors.of(spec::TensorRole::embed_tokens),
                                &head = file_->tensors.head();
    EmbeddingAndHead outer;
    const spec::Stage& stage = layout_.stage;
    if (stage.holds(spec::TensorRole::embed_tokens, -1, reads_embedding_as_head())) {
        if (request_.embedding_on_host) {
            shared.done();
            const memory::BufferId common = memory.common->plan().find(embed.rule.hf_name);
            outer.embed_VD = load_matrix(ctx, memory.common->tensor(common), embed, /*reads=*/false);
        } else {
            outer.embed_VD = matrix(embed, embed.rule.hf_name, request_.trains_embedding);
        }
    }
    if (stage.last()) {
        const bool tied = &embed == &head;
        outer.lm_head_VD = !tied                  ? matrix(head, head.rule.hf_name, request_.trains_head)
                           : request_.unties_head ? matrix(embed, untied_head_name, /*trained=*/true)
                                                  : outer.embed_VD;
        outer.final_norm_D = norm(arena, spec::TensorRole::final_norm, -1, masters);
    }
    shared.finish();
    make_head_codes(ctx, arena, outer);
    return outer;
}

}  // namespace unsloth::weights
