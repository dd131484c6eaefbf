// MXFP4 weights on disk, as gpt-oss stores its experts: reading them as stored, and the order that kernels read.
//
// Source: OCP, "Microscaling Formats (MX) Specification" (2023), and transformers' integrations/mxfp4.py. The matrices
// of all experts are one parameter P, [E, N, K] with K the input: P_blocks (U8 [E, N, K / 32, 16]: 32 codes a block, an
// even column in the low nibble) and P_scales (U8 [E, N, K / 32]: exponent + 127). w = code · 2^(scale - 127), which
// bf16 holds exactly (spec/quant4.h); a scale of 255 is a NaN.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "unsloth/formats/checkpoint.h"

namespace unsloth::formats {

inline constexpr std::string_view mxfp4_blocks_suffix = "_blocks", mxfp4_scales_suffix = "_scales";

/// One matrix [rows, cols] of such a parameter. Copyable; valid as long as the views.
struct Mxfp4Weight {
    const TensorView* blocks = nullptr;   ///< U8, a row cols / 2 bytes
    const TensorView* scales = nullptr;   ///< U8, a row cols / 32 bytes
    int64_t first_row = 0, row_step = 1;  ///< row r of the weight is row first_row + r · row_step of theirs
    int64_t rows = 0, cols = 0;           ///< cols: a multiple of 32

    std::size_t stored_bytes() const { return static_cast<std::size_t>(rows * (cols / 2 + cols / 32)); }
    /// See TensorView::drop. Rows that are between another weight's are left to the last of them.
    void drop() const noexcept;
};

/// The tensors of a parameter [experts, rows, cols]: blocks and scales. `cols`: a multiple of 32.
std::vector<TensorDecl> mxfp4_declarations(const std::string& parameter, int64_t experts, int64_t rows, int64_t cols);

/// The parameter of that name as one matrix [E · N, K], if its blocks and scales are there and fit each other.
std::optional<Mxfp4Weight> find_mxfp4(const Checkpoint& checkpoint, const std::string& parameter);

/// The rows [row_begin, row_end) as spec::Quant4View has them: packed [rows · cols / 2], an even column in the high
/// nibble, and exponents [rows · cols / 32]. Input Error, naming the tensor and the place, for a value that is not
/// finite in bf16. Single-threaded; call it for disjoint rows from several threads.
void copy_rows(const Mxfp4Weight& weight, int64_t row_begin, int64_t row_end, uint8_t* packed, uint8_t* exponents);

/// out[(row_end - row_begin) · cols] = the rows in fp32, exactly. Otherwise as copy_rows.
void dequantize_rows(const Mxfp4Weight& weight, int64_t row_begin, int64_t row_end, float* out);

/// A block whose largest value is a NaN or not below a limit.
struct Mxfp4Place {
    int64_t row = 0, column = 0;  ///< of the block's first value
    float value = 0;              ///< the largest magnitude, or a NaN
};
/// The first one; `limit` positive. Reads all scales, and codes of few blocks, on all cores.
std::optional<Mxfp4Place> first_not_below(const Mxfp4Weight& weight, float limit);

}  // namespace unsloth::formats
