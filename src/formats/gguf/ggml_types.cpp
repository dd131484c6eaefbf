#include "unsloth/formats/ggml_types.h"

#include <array>

#include "formats/gguf/quantizers.h"
#include "unsloth/core/error.h"
#include "unsloth/spec/convert.h"

namespace unsloth::formats {
namespace {

constexpr std::array<GgmlTypeInfo, 34> types = {{
    {0, "F32", 1, 4},         {1, "F16", 1, 2},         {2, "Q4_0", 32, 18},      {3, "Q4_1", 32, 20},
    {6, "Q5_0", 32, 22},      {7, "Q5_1", 32, 24},      {8, "Q8_0", 32, 34},      {9, "Q8_1", 32, 40},
    {10, "Q2_K", 256, 84},    {11, "Q3_K", 256, 110},   {12, "Q4_K", 256, 144},   {13, "Q5_K", 256, 176},
    {14, "Q6_K", 256, 210},   {15, "Q8_K", 256, 292},   {16, "IQ2_XXS", 256, 66}, {17, "IQ2_XS", 256, 74},
    {18, "IQ3_XXS", 256, 98}, {19, "IQ1_S", 256, 50},   {20, "IQ4_NL", 32, 18},   {21, "IQ3_S", 256, 110},
    {22, "IQ2_S", 256, 82},   {23, "IQ4_XS", 256, 136}, {24, "I8", 1, 1},         {25, "I16", 1, 2},
    {26, "I32", 1, 4},        {27, "I64", 1, 8},        {28, "F64", 1, 8},        {29, "IQ1_M", 256, 56},
    {30, "BF16", 1, 2},       {34, "TQ1_0", 256, 54},   {35, "TQ2_0", 256, 66},   {39, "MXFP4", 32, 17},
    {40, "NVFP4", 64, 36},    {41, "Q1_0", 128, 18},
}};

spec::DType plain_type(GgmlType type) {
    switch (type) {
        case GgmlType::f32:
            return spec::DType::f32;
        case GgmlType::f16:
            return spec::DType::f16;
        default:
            UNSLOTH_CHECK(type == GgmlType::bf16, "type ", static_cast<uint32_t>(type));
            return spec::DType::bf16;
    }
}

int64_t blocks_of(GgmlType type, int64_t n) {
    const GgmlTypeInfo& info = info_of(type);
    UNSLOTH_CHECK(n >= 0 && n % info.block == 0, n, " elements in blocks of ", info.block);
    return n / info.block;
}

}  // namespace

const GgmlTypeInfo* find_ggml_type(uint32_t id) {
    for (const GgmlTypeInfo& info : types)
        if (info.id == id) return &info;
    return nullptr;
}

const GgmlTypeInfo& info_of(GgmlType type) {
    const GgmlTypeInfo* const info = find_ggml_type(static_cast<uint32_t>(type));
    UNSLOTH_CHECK(info != nullptr, "type ", static_cast<uint32_t>(type));
    return *info;
}

std::size_t ggml_bytes(GgmlType type, int64_t n) {
    return static_cast<std::size_t>(blocks_of(type, n) * info_of(type).bytes);
}

void quantize_ggml(GgmlType type, const float* x, int64_t n, std::byte* out) {
    const int64_t blocks = blocks_of(type, n);
    auto* const bytes = reinterpret_cast<uint8_t*>(out);
    switch (type) {
        case GgmlType::q8_0:
            return gguf::quantize_q8_0(x, blocks, bytes);
        case GgmlType::q4_0:
            return gguf::quantize_q4_0(x, blocks, bytes);
        case GgmlType::mxfp4:
            return gguf::quantize_mxfp4(x, blocks, bytes);
        case GgmlType::q5_0:
            return gguf::quantize_q5_0(x, blocks, bytes);
        case GgmlType::q5_1:
            return gguf::quantize_q5_1(x, blocks, bytes);
        case GgmlType::q4_k:
            return gguf::quantize_q4_k(x, blocks, bytes);
        case GgmlType::q5_k:
            return gguf::quantize_q5_k(x, blocks, bytes);
        case GgmlType::q6_k:
            return gguf::quantize_q6_k(x, blocks, bytes);
        default:
            return spec::convert_from_f32(plain_type(type), x, n, out);
    }
}

void dequantize_ggml(GgmlType type, const std::byte* in, int64_t n, float* out) {
    const int64_t blocks = blocks_of(type, n);
    const auto* const bytes = reinterpret_cast<const uint8_t*>(in);
    switch (type) {
        case GgmlType::q8_0:
            return gguf::dequantize_q8_0(bytes, blocks, out);
        case GgmlType::q4_0:
            return gguf::dequantize_q4_0(bytes, blocks, out);
        case GgmlType::mxfp4:
            return gguf::dequantize_mxfp4(bytes, blocks, out);
        case GgmlType::q5_0:
            return gguf::dequantize_q5_0(bytes, blocks, out);
        case GgmlType::q5_1:
            return gguf::dequantize_q5_1(bytes, blocks, out);
        case GgmlType::q4_k:
            return gguf::dequantize_q4_k(bytes, blocks, out);
        case GgmlType::q5_k:
            return gguf::dequantize_q5_k(bytes, blocks, out);
        case GgmlType::q6_k:
            return gguf::dequantize_q6_k(bytes, blocks, out);
        default:
            return spec::convert_to_f32(plain_type(type), in, n, out);
    }
}

}  // namespace unsloth::formats
