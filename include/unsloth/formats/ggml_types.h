// The element types of GGUF files: sizes, quantising and dequantising.
//
// Layouts and rounding are those of ggml (ggml-common.h, ggml-quants.c and the Python package `gguf`): the bytes equal
// what `gguf.quants.quantize` gives (Q8_0, Q4_0, Q5_0, Q5_1, MXFP4 of values that it can hold) and ggml's reference
// quantisers without an importance matrix give (Q4_K, Q5_K, Q6_K).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace unsloth::formats {

/// The types that this program writes; the values are ggml's.
enum class GgmlType : uint32_t {
    f32 = 0,
    f16 = 1,
    q4_0 = 2,
    q5_0 = 6,
    q5_1 = 7,
    q8_0 = 8,
    q4_k = 12,
    q5_k = 13,
    q6_k = 14,
    bf16 = 30,
    mxfp4 = 39,
};

/// `block` consecutive elements of a row are stored in `bytes` bytes.
struct GgmlTypeInfo {
    uint32_t id;
    std::string_view name;  ///< "F32", "Q4_K", …
    int64_t block;
    int64_t bytes;
};

/// Every type that a file may hold, those too that this program neither writes nor reads values of; nullptr: unknown.
const GgmlTypeInfo* find_ggml_type(uint32_t id);
const GgmlTypeInfo& info_of(GgmlType type);

/// Bytes of `n` elements; n must be a multiple of the block.
std::size_t ggml_bytes(GgmlType type, int64_t n);

/// Quantises (or rounds to nearest even) the `n` values at `x`, a multiple of the block, into ggml_bytes(type, n) bytes
/// at `out`. Values must be finite. Single-threaded; the result does not depend on how the work is divided by blocks.
void quantize_ggml(GgmlType type, const float* x, int64_t n, std::byte* out);

/// The inverse: what a reader computes from the bytes, in fp32.
void dequantize_ggml(GgmlType type, const std::byte* in, int64_t n, float* out);

}  // namespace unsloth::formats
