// bitsandbytes' 8-bit weights on disk (LLM.int8): reading, dequantising on the host, quantising, declaring.
//
// Source: Dettmers et al., "LLM.int8()" (2022), and the files that bitsandbytes writes for load_in_8bit. A weight W [N,
// K] of the module P is stored as its codes under its own name (I8 [N, K]), the largest magnitude of each row P.SCB
// (F32 [N]) and P.weight_format (U8, a scalar 0: row-major). w = q · SCB / 127.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "unsloth/formats/checkpoint.h"

namespace unsloth::formats {

/// An 8-bit weight as a checkpoint stores it. Copyable; valid as long as the checkpoint.
struct Int8Weight {
    const TensorView* codes = nullptr;   ///< I8 [rows, cols]
    const TensorView* maxima = nullptr;  ///< F32 [rows]
    const TensorView* format = nullptr;  ///< may be absent
    int64_t rows = 0, cols = 0;

    std::size_t stored_bytes() const;
    std::vector<const TensorView*> parts() const;
    void drop() const noexcept;
};

/// The weight under `weight_name` ("….weight") if it is an 8-bit one (I8, with its SCB), else nullopt. Input Error,
/// naming the tensor, for an SCB of another type or shape or with a value that is not finite, and for another format
/// than row-major (early versions of bitsandbytes wrote such).
std::optional<Int8Weight> find_int8(const Checkpoint& checkpoint, const std::string& weight_name);

/// "….SCB" and "….weight_format" of "….weight".
std::string int8_maxima_name(const std::string& weight_name);
std::string int8_format_name(const std::string& weight_name);

/// out[(row_end - row_begin) * cols] = the rows in fp32: (q · SCB) · (1 / 127), each product rounded, as bitsandbytes
/// does. Single-threaded; call it for disjoint rows from several threads.
void dequantize_rows(const Int8Weight& weight, int64_t row_begin, int64_t row_end, float* out);

/// Quantises rows [rows, cols] as bitsandbytes does: values are rounded to fp16 first; SCB is a row's largest
/// magnitude, a code the nearest integer to w · (1 / SCB · 127), each operation rounded, ties to even: bit-exact with
/// bitsandbytes on a CPU (its CUDA kernel divides approximately, so a value next to a tie may differ there). A row of
/// zeros has zero codes. Values must be finite in fp16.
void quantize_int8_rows(const float* w, int64_t rows, int64_t cols, int8_t* codes, float* maxima);

/// The values that such a weight would have instead of these.
void round_to_int8_rows(float* w, int64_t rows, int64_t cols);

/// What a checkpoint stores for such a weight: codes, maxima, format.
std::vector<TensorDecl> int8_declarations(const std::string& weight_name, int64_t rows, int64_t cols);

}  // namespace unsloth::formats
