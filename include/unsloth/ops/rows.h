// Moving rows: embedding and its gradient, gathers, strided copies with a change of dtype, dropout, noise.
#pragma once

#include "unsloth/ops/context.h"

namespace unsloth::ops {

/// out_nD[i] = table_VD[index_n[i]]; index int32; dtypes may differ (rounded once). Index outside the table:
/// undefined on CUDA, CheckError on the CPU (the data module checks ids against the vocabulary before). CUDA: the
/// table may be in pinned host memory, which the device then reads over the bus row by row; it must stay until the
/// work is done.
void gather_rows(Context& ctx, const at::Tensor& table_VD, const at::Tensor& index_n, const at::Tensor& out_nD);

/// out_TD[index_n[i]] = rows_nD[i]; indices are distinct; other rows of out are left alone.
void scatter_rows(Context& ctx, const at::Tensor& rows_nD, const at::Tensor& index_n, const at::Tensor& out_TD);

/// A gather's gradient, of rows that it took up to P times: out_TD[t] = the sum of rows_nD[places_TP[t][j]] over the
/// places that are not negative (int32, j < P), in their order, each times weight_n[place] (fp32) where that is given;
/// zeros where all are. fp32, rounded once.
void sum_rows(Context& ctx, const at::Tensor& rows_nD, const at::Tensor& places_TP, const at::Tensor& out_TD,
              const at::Tensor& weight_n = {});

/// dtable_VD (fp32) += sum of dy_TD rows by token id, in a fixed order: order_T (int32) lists tokens sorted by id
/// (stable), unique_u (int32) the distinct ids, starts_u1 (int32, [u + 1]) where each id's run begins in order_T.
void embedding_backward(Context& ctx, const at::Tensor& dy_TD, const at::Tensor& order_T, const at::Tensor& unique_u,
                        const at::Tensor& starts_u1, const at::Tensor& dtable_VD);

/// out_RC = src_RC * scale (fp32, bf16 or f16 on either side; row strides free; rounded once).
void copy_2d(Context& ctx, const at::Tensor& src_RC, const at::Tensor& out_RC, double scale = 1.0);

/// out_RC = 0 (row strides free).
void zero_2d(Context& ctx, const at::Tensor& out_RC);

/// x_nC[i][c] = 0 wherever owner_T[t] and owner_C[c] (int32, contiguous) differ (row strides free). Row i is of token
/// t = index_n[i] (int32), or undefined: i.
void zero_others(Context& ctx, const at::Tensor& owner_T, const at::Tensor& owner_C, const at::Tensor& x_nC,
                 const at::Tensor& index_n = {});

/// bias gradient: dbias_N (fp32) += column sums of dy_TN, in a fixed order.
void column_sums(Context& ctx, const at::Tensor& dy_TN, const at::Tensor& dbias_N);

/// Names the random elements of a dropout: see core/philox.h. Epoch and seed come from ctx.scalars on the device.
struct DropoutKey {
    uint32_t layer = 0;
    uint32_t projection = 0;
    uint32_t first_channel = 0;  ///< which channel x's first column is; a multiple of 4
};

/// out_TK = x_TK * mask / (1 - p); with `accumulate` out += instead. mask of (row_T[t], offset_T[t], channel) from the
/// counter, so that forward, recompute and backward draw the same one: kept where the unit float >= p. row_T and
/// offset_T are int32, p in [0, 1). x and out may be the same without accumulate.
void dropout(Context& ctx, const at::Tensor& x_TK, const at::Tensor& row_T, const at::Tensor& offset_T, double p,
             DropoutKey key, const at::Tensor& out_TK, bool accumulate = false);

/// x_TK[t] += magnitude_T[t] * u, u uniform in [-1, 1) for every element, drawn from the counter of (row_T[t],
/// offset_T[t], channel) as dropout's masks are, under a site of its own; seed and epoch from ctx.scalars. magnitude_T
/// is fp32, row_T and offset_T int32; rounded once. Source: Jain et al., "NEFTune: Noisy Embeddings Improve Instruction
/// Finetuning".
void add_noise(Context& ctx, const at::Tensor& x_TK, const at::Tensor& row_T, const at::Tensor& offset_T,
               const at::Tensor& magnitude_T);

}  // namespace unsloth::ops
