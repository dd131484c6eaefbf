#include "unsloth/formats/finite.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <set>

#include "unsloth/core/error.h"
#include "unsloth/core/half.h"
#include "unsloth/core/parallel.h"
#include "unsloth/spec/convert.h"

namespace unsloth::formats {
namespace {

constexpr int64_t piece = 1 << 16;  // elements looked at together
constexpr const char* advice = "The file is damaged, or the training that wrote it diverged: take an earlier one.";

/// Whether any of `count` elements of unsigned type U is at or above `limit`, apart from its sign, the highest bit.
template <class U>
bool any_from(const std::byte* data, int64_t count, U limit) {
    constexpr U sign = static_cast<U>(U{1} << (8 * sizeof(U) - 1));
    bool any = false;
    for (int64_t i = 0; i < count; ++i) {
        U value;
        std::memcpy(&value, data + static_cast<std::size_t>(i) * sizeof(U), sizeof(U));
        any |= static_cast<U>(value & ~sign) >= limit;
    }
    return any;
}

/// Bits of positive floats are ordered as the floats are, with what is not finite above the rest; e4m3 has only NaN.
bool any_not_finite(spec::DType type, spec::DType held, const std::byte* data, int64_t count) {
    switch (type) {
        case spec::DType::f64:
            return any_from<uint64_t>(data, count, 0x7FF0000000000000U);
        case spec::DType::f32:
            return any_from<uint32_t>(data, count, spec::first_infinite(held));
        case spec::DType::bf16:
            return any_from<uint16_t>(data, count, static_cast<uint16_t>((spec::first_infinite(held) + 0xFFFFU) >> 16));
        case spec::DType::f16:
            return any_from<uint16_t>(data, count, 0x7C00U);
        case spec::DType::f8_e5m2:
            return any_from<uint8_t>(data, count, 0x7CU);
        case spec::DType::f8_e4m3:
            return any_from<uint8_t>(data, count, 0x7FU);
        default:
            return false;
    }
}

[[noreturn]] void refuse(const std::string& tensor, float value, const std::string& place, spec::DType held) {
    if (std::isfinite(value))
        throw Error("checkpoint.too-large-value",
                    cat(tensor, " holds ", value, " at ", place, ", which is too large for ", name_of(held)),
                    "Set model.dtype to bfloat16 or float32.");
    throw Error("checkpoint.not-finite", cat(tensor, " holds a value that is not finite: ", value, " at ", place),
                advice);
}

/// "row 3, column 7", or the element's number in a vector.
std::string place_of(const TensorView& tensor, int64_t element) {
    if (tensor.shape.size() < 2) return cat("element ", element);
    const int64_t columns = tensor.elements() / tensor.shape[0];
    return cat("row ", element / columns, ", column ", element % columns);
}

}  // namespace

std::optional<int64_t> first_not_finite(const TensorView& tensor, spec::DType held) {
    const int64_t count = tensor.elements();
    const std::size_t item = spec::size_of(tensor.dtype);
    if (item == 0) return std::nullopt;  // types of less than a byte have neither
    const auto bad = [&](int64_t begin, int64_t end) {
        return any_not_finite(tensor.dtype, held, tensor.data.data() + static_cast<std::size_t>(begin) * item,
                              end - begin);
    };
    std::atomic<int64_t> first_bad_piece = count;
    parallel_ranges((count + piece - 1) / piece, 16, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end && i < first_bad_piece; ++i) {
            if (!bad(i * piece, std::min(count, (i + 1) * piece))) continue;
            for (int64_t seen = first_bad_piece; i < seen && !first_bad_piece.compare_exchange_weak(seen, i);) continue;
            return;
        }
    });
    if (first_bad_piece == count) return std::nullopt;
    int64_t element = first_bad_piece * piece;
    while (!bad(element, element + 1)) ++element;
    return element;
}

void require_finite(const TensorView& tensor, spec::DType held) {
    const std::optional<int64_t> element = first_not_finite(tensor, held);
    tensor.drop();
    if (!element) return;
    float value = 0;
    spec::convert_to_f32(
        tensor.dtype, tensor.data.data() + static_cast<std::size_t>(*element) * spec::size_of(tensor.dtype), 1, &value);
    refuse(cat(tensor.file->path().string(), ": tensor '", tensor.name, "'"), value, place_of(tensor, *element), held);
}

void require_finite(const std::string& name, const Quant4Weight& weight, spec::DType held) {
    std::vector<float> absmax(static_cast<std::size_t>(weight.view.blocks()));
    dequantize_absmax(weight.view, absmax.data());
    weight.drop();
    const float limit = float_from_bits(spec::first_infinite(held));
    for (std::size_t block = 0; block < absmax.size(); ++block)
        if (!(std::abs(absmax[block]) < limit))
            refuse(cat("tensor '", name, "'"), absmax[block], cat("block ", block, " (its absmax)"), held);
}

void require_finite(const std::string& name, const Mxfp4Weight& weight, spec::DType held) {
    const auto bad = first_not_below(weight, float_from_bits(spec::first_infinite(held)));
    weight.drop();
    if (bad)
        refuse(cat("tensor '", name, "'"), bad->value, cat("row ", bad->row, ", in the block at column ", bad->column),
               held);
}

void require_finite(const WeightFile& model, spec::DType held) {
    std::set<const TensorView*> seen;  // tied matrices
    for (const TensorSource& source : model.tensors.all()) {
        if (!seen.insert(&source.tensor()).second) continue;
        const bool in_fp32 = spec::is_vector(source.rule.role);
        if (const Quant4Weight* const weight = source.quant4())
            require_finite(source.rule.hf_name, *weight, held);
        else if (const Mxfp4Weight* const blocks = source.mxfp4())
            require_finite(source.rule.hf_name, *blocks, held);
        else
            require_finite(source.int8() ? *source.int8()->maxima : source.tensor(), in_fp32 ? spec::DType::f32 : held);
    }
}

void require_finite(const Adapter& adapter) {
    for (const TensorView& tensor : adapter.file.tensors()) require_finite(tensor);
}

}  // namespace unsloth::formats
