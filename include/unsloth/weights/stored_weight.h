// A projection as stored in memory.
#pragma once

#include <functional>
#include <span>
#include <variant>

#include "unsloth/ops/nf4_gemm.h"
#include "unsloth/ops/quant.h"
#include "unsloth/spec/slice.h"

namespace unsloth::weights {

/// 4-bit in rows or in tiles, 8-bit, or a 16/32-bit matrix [N, K].
using StoredWeight = std::variant<ops::Quant4Tensor, ops::Nf4Tiles, ops::Int8Tensor, at::Tensor>;

/// outs[i] = weights[i]'s values in out's type: 4 and 8-bit ones (on the context's device) are dequantized, those in
/// rows with one launch; matrices (on any device) are copied.
void expand(ops::Context& ctx, std::span<const StoredWeight* const> weights, std::span<const at::Tensor> outs_NK);
void expand(ops::Context& ctx, const StoredWeight& weight, const at::Tensor& out_NK);

/// out_nD[i] = row index_n[i] (int32) of the weight, which is not in tiles; as ops::gather_rows.
void gather_rows(ops::Context& ctx, const StoredWeight& weight, const at::Tensor& index_n, const at::Tensor& out_nD);

/// A part of a weight that is not in tiles, on the same device and with the same values; may share its memory. Of 4-bit
/// weights the columns, and the part's, begin and end at borders of blocks; their block maxima become fp32 where the
/// part has not whole nested blocks (keeps_nested_maxima).
StoredWeight slice(const StoredWeight& whole, const spec::MatrixSlice& part);
/// Whether a part of a 4-bit weight [.., cols] begins where a nested block does, and is whole rows.
bool keeps_nested_maxima(const spec::MatrixSlice& part, int64_t cols);

/// Where a 4-bit weight keeps its one number on the host; nullptr: it has none.
float* nested_offset(StoredWeight& weight);

}  // namespace unsloth::weights
