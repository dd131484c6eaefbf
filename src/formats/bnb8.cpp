#include "unsloth/formats/bnb8.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "unsloth/core/error.h"
#include "unsloth/core/half.h"
#include "unsloth/spec/int8.h"

namespace unsloth::formats {
namespace {

float maximum_of_row(const TensorView& maxima, int64_t row) {
    float value;
    std::memcpy(&value, maxima.data.data() + static_cast<std::size_t>(row) * sizeof value, sizeof value);
    return value;
}

std::string companion(const std::string& weight_name, const char* name) {
    return weight_name.substr(0, weight_name.rfind('.') + 1) + name;
}

std::string where(const TensorView& tensor) {
    return cat(tensor.file->path().string(), ": tensor '", tensor.name, "'");
}

void check_maxima(const TensorView& maxima, int64_t rows) {
    if (maxima.dtype != spec::DType::f32 || maxima.elements() != rows || maxima.shape.size() > 2)
        throw Error("checkpoint.bad-quantization", cat(where(maxima), ": expected F32 [", rows, "], found ",
                                                       safetensors_name(maxima.dtype), " ", shape_text(maxima.shape)));
    for (int64_t row = 0; row < rows; ++row)
        if (!std::isfinite(maximum_of_row(maxima, row)))
            throw Error("checkpoint.not-finite", cat(where(maxima), ": the value of row ", row, " is not finite"));
}

void check_format(const TensorView& format) {
    const bool is_byte = format.dtype == spec::DType::u8 && format.elements() == 1;
    if (is_byte && format.data[0] == std::byte{0}) return;
    throw Error("checkpoint.bad-quantization",
                cat(where(format), ": only row-major INT8 weights (0) are read, found ",
                    is_byte ? std::to_string(static_cast<int>(format.data[0])) : std::string("no single byte")),
                "Save the model again with a current version of bitsandbytes.");
}

}  // namespace

std::string int8_maxima_name(const std::string& weight_name) {
    return companion(weight_name, "SCB");
}

std::string int8_format_name(const std::string& weight_name) {
    return companion(weight_name, "weight_format");
}

std::vector<const TensorView*> Int8Weight::parts() const {
    std::vector<const TensorView*> all = {codes, maxima};
    if (format != nullptr) all.push_back(format);
    return all;
}

std::size_t Int8Weight::stored_bytes() const {
    return codes->data.size() + maxima->data.size() + (format != nullptr ? format->data.size() : 0);
}

void Int8Weight::drop() const noexcept {
    codes->drop();
    maxima->drop();
}

std::optional<Int8Weight> find_int8(const Checkpoint& checkpoint, const std::string& weight_name) {
    const TensorView* const codes = checkpoint.find(weight_name);
    const TensorView* const maxima = checkpoint.find(int8_maxima_name(weight_name));
    if (codes == nullptr || maxima == nullptr || codes->dtype != spec::DType::i8 || codes->shape.size() != 2)
        return std::nullopt;
    Int8Weight weight{codes, maxima, checkpoint.find(int8_format_name(weight_name)), codes->shape[0], codes->shape[1]};
    check_maxima(*maxima, weight.rows);
    if (weight.format != nullptr) check_format(*weight.format);
    return weight;
}

void dequantize_rows(const Int8Weight& weight, int64_t row_begin, int64_t row_end, float* out) {
    UNSLOTH_CHECK(0 <= row_begin && row_begin <= row_end && row_end <= weight.rows, "rows ", row_begin, " to ",
                  row_end);
    const auto* code = reinterpret_cast<const int8_t*>(weight.codes->data.data()) + row_begin * weight.cols;
    for (int64_t row = row_begin; row < row_end; ++row) {
        const float maximum = maximum_of_row(*weight.maxima, row);
        for (int64_t i = 0; i < weight.cols; ++i)
            *out++ = static_cast<float>(*code++) * maximum * spec::int8_inverse_127;
    }
}

void quantize_int8_rows(const float* w, int64_t rows, int64_t cols, int8_t* codes, float* maxima) {
    for (int64_t row = 0; row < rows; ++row, w += cols, codes += cols) {
        float largest = 0;
        for (int64_t i = 0; i < cols; ++i) largest = std::max(largest, std::fabs(f16_to_f32(f32_to_f16(w[i]))));
        maxima[row] = largest;
        const float scale = largest > 0 ? 1.0F / largest * 127.0F : 0.0F;  // two roundings, as bitsandbytes on a CPU
        for (int64_t i = 0; i < cols; ++i)
            codes[i] = static_cast<int8_t>(std::nearbyint(f16_to_f32(f32_to_f16(w[i])) * scale));
    }
}

void round_to_int8_rows(float* w, int64_t rows, int64_t cols) {
    std::vector<int8_t> codes(static_cast<std::size_t>(cols));
    for (int64_t row = 0; row < rows; ++row, w += cols) {
        float maximum = 0;
        quantize_int8_rows(w, 1, cols, codes.data(), &maximum);
        for (int64_t i = 0; i < cols; ++i)
            w[i] = static_cast<float>(codes[static_cast<std::size_t>(i)]) * maximum * spec::int8_inverse_127;
    }
}

std::vector<TensorDecl> int8_declarations(const std::string& weight_name, int64_t rows, int64_t cols) {
    return {{weight_name, spec::DType::i8, {rows, cols}},
            {int8_maxima_name(weight_name), spec::DType::f32, {rows}},
            {int8_format_name(weight_name), spec::DType::u8, {}}};
}

}  // namespace unsloth::formats
