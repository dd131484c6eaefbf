#include "unsloth/ops/rows.h"
#include "unsloth/ops/profiler.h"

#include "ops/checks.h"
#include "ops/rows_cpu.h"
#ifdef UNSLOTH_CUDA
#include "kernels/rows.h"
#include "ops/kernel_arguments.h"
#endif

namespace unsloth::ops {

namespace {

/// Host memory that the device reads at the host's address.
void check_pinned_matrix(const char* name, const at::Tensor& tensor) {
    UNSLOTH_CHECK(tensor.dim() == 2 && is_compute_dtype(tensor.scalar_type()), name,
                  " must be a matrix of fp32, bf16 or f16");
    UNSLOTH_CHECK(tensor.size(1) <= 1 || tensor.stride(1) == 1, name, " must have a contiguous last dimension");
    UNSLOTH_CHECK(tensor.numel() == 0 || tensor.is_pinned(), name,
                  " is in pageable host memory, which the device cannot read");
}

#ifdef UNSLOTH_CUDA

const int32_t* pointer(const at::Tensor& index) {
    return index.defined() ? index.const_data_ptr<int32_t>() : nullptr;
}

#endif

/// Copies, gathers and scatters: an index may be undefined. Both tensors and indices are checked.
void copy_rows(Context& ctx, const at::Tensor& source, const at::Tensor& source_index, const at::Tensor& out,
               const at::Tensor& out_index, int64_t rows, double scale) {
    if (!ctx.is_cuda()) {
        return cpu::copy_rows(source, source_index, out, out_index, rows, static_cast<float>(scale));
    }
#ifdef UNSLOTH_CUDA
    kernels::CopyRows params;
    params.rows = rows;
    params.columns = source.size(1);
    params.source_type = dtype_of(source);
    params.out_type = dtype_of(out);
    params.source = source_of(source);
    params.out = target_of(out);
    params.source_index = pointer(source_index);
    params.out_index = pointer(out_index);
    params.scale = static_cast<float>(scale);
    kernels::copy_rows(params, stream_of(ctx));
#endif
}

}  // namespace

void gather_rows(Context& ctx, const at::Tensor& table_VD, const at::Tensor& index_n, const at::Tensor& out_nD) {
    const Region region(ctx, "gather_rows");
    const int64_t rows = index_n.numel();
    if (ctx.is_cuda() && table_VD.is_cpu()) {
        check_pinned_matrix("table", table_VD);
    } else {
        check_matrix(ctx, "table", table_VD);
    }
    check_contiguous(ctx, "index", index_n, {rows}, at::kInt);
    check_compute_tensor(ctx, "out", out_nD, {rows, table_VD.size(1)});
    copy_rows(ctx, table_VD, index_n, out_nD, {}, rows, 1.0);
}

void scatter_rows(Context& ctx, const at::Tensor& rows_nD, const at::Tensor& index_n, const at::Tensor& out_TD) {
    const Region region(ctx, "scatter_rows");
    check_matrix(ctx, "rows", rows_nD);
    check_matrix(ctx, "out", out_TD);
    check_contiguous(ctx, "index", index_n, {rows_nD.size(0)}, at::kInt);
    UNSLOTH_CHECK(rows_nD.size(1) == out_TD.size(1), "rows have ", rows_nD.size(1), " columns, out has ",
                  out_TD.size(1));
    copy_rows(ctx, rows_nD, {}, out_TD, index_n, rows_nD.size(0), 1.0);
}

void sum_rows(Context& ctx, const at::Tensor& rows_nD, const at::Tensor& places_TP, const at::Tensor& out_TD,
              const at::Tensor& weight_n) {
    const Region region(ctx, "sum_rows");
    check_matrix(ctx, "rows", rows_nD);
    check_compute_tensor(ctx, "out", out_TD, {out_TD.size(0), rows_nD.size(1)});
    UNSLOTH_CHECK(out_TD.scalar_type() == rows_nD.scalar_type(), "rows are ", rows_nD.scalar_type(), ", out is ",
                  out_TD.scalar_type());
    check_contiguous(ctx, "places", places_TP, {out_TD.size(0), places_TP.size(-1)}, at::kInt);
    if (weight_n.defined()) check_contiguous(ctx, "weight", weight_n, {rows_nD.size(0)}, at::kFloat);
    if (!ctx.is_cuda()) return cpu::sum_rows(rows_nD, places_TP, out_TD, weight_n);
#ifdef UNSLOTH_CUDA
    kernels::SumRows params;
    params.rows = out_TD.size(0);
    params.columns = out_TD.size(1);
    params.type = dtype_of(out_TD);
    params.source = source_of(rows_nD);
    params.out = target_of(out_TD);
    params.places = places_TP.const_data_ptr<int32_t>();
    params.places_each = static_cast<int>(places_TP.size(1));
    params.weight = weight_n.defined() ? weight_n.const_data_ptr<float>() : nullptr;
    kernels::sum_rows(params, stream_of(ctx));
#endif
}

void copy_2d(Context& ctx, const at::Tensor& src_RC, const at::Tensor& out_RC, double scale) {
    const Region region(ctx, "copy");
    check_matrix(ctx, "src", src_RC);
    check_compute_tensor(ctx, "out", out_RC, src_RC.sizes());
    copy_rows(ctx, src_RC, {}, out_RC, {}, src_RC.size(0), scale);
}

void zero_2d(Context& ctx, const at::Tensor& out_RC) {
    const Region region(ctx, "zero");
    check_matrix(ctx, "out", out_RC);
    if (!ctx.is_cuda()) {
        out_RC.zero_();
        return;
    }
#ifdef UNSLOTH_CUDA
    kernels::zero_rows(target_of(out_RC), out_RC.size(0), out_RC.size(1), dtype_of(out_RC), stream_of(ctx));
#endif
}

void zero_others(Context& ctx, const at::Tensor& owner_T, const at::Tensor& owner_C, const at::Tensor& x_nC,
                 const at::Tensor& index_n) {
    const Region region(ctx, "zero");
    check_matrix(ctx, "x", x_nC);
    const bool indexed = index_n.defined();
    check_contiguous(ctx, "owner of rows", owner_T, {indexed ? owner_T.numel() : x_nC.size(0)}, at::kInt);
    check_contiguous(ctx, "owner of columns", owner_C, {x_nC.size(1)}, at::kInt);
    if (indexed) check_contiguous(ctx, "tokens of rows", index_n, {x_nC.size(0)}, at::kInt);
    if (!ctx.is_cuda()) {
        const at::Tensor owner_n = indexed ? owner_T.index_select(0, index_n) : owner_T;
        x_nC.masked_fill_(owner_n.unsqueeze(1) != owner_C, 0);
        return;
    }
#ifdef UNSLOTH_CUDA
    kernels::ZeroOthers params;
    params.rows = x_nC.size(0);
    params.columns = x_nC.size(1);
    params.type = dtype_of(x_nC);
    params.x = target_of(x_nC);
    params.row_owner = owner_T.const_data_ptr<int32_t>();
    if (indexed) params.index = index_n.const_data_ptr<int32_t>();
    params.column_owner = owner_C.const_data_ptr<int32_t>();
    kernels::zero_others(params, stream_of(ctx));
#endif
}

void embedding_backward(Context& ctx, const at::Tensor& dy_TD, const at::Tensor& order_T, const at::Tensor& unique_u,
                        const at::Tensor& starts_u1, const at::Tensor& dtable_VD) {
    const Region region(ctx, "embedding_backward");
    check_matrix(ctx, "dy", dy_TD);
    check_contiguous(ctx, "order", order_T, {dy_TD.size(0)}, at::kInt);
    check_contiguous(ctx, "unique", unique_u, {unique_u.numel()}, at::kInt);
    check_contiguous(ctx, "starts", starts_u1, {unique_u.numel() + 1}, at::kInt);
    UNSLOTH_CHECK(dtable_VD.defined() && dtable_VD.dim() == 2, "dtable must have two dimensions");
    check_tensor(ctx, "dtable", dtable_VD, {dtable_VD.size(0), dy_TD.size(1)}, at::kFloat);
    if (!ctx.is_cuda()) return cpu::embedding_backward(dy_TD, order_T, unique_u, starts_u1, dtable_VD);
#ifdef UNSLOTH_CUDA
    kernels::EmbeddingBackward params;
    params.unique_count = unique_u.numel();
    params.columns = dy_TD.size(1);
    params.type = dtype_of(dy_TD);
    params.dy = source_of(dy_TD);
    params.order = order_T.const_data_ptr<int32_t>();
    params.unique = unique_u.const_data_ptr<int32_t>();
    params.starts = starts_u1.const_data_ptr<int32_t>();
    params.dtable = target_of(dtable_VD);
    kernels::embedding_backward(params, stream_of(ctx));
#endif
}

void column_sums(Context& ctx, const at::Tensor& dy_TN, const at::Tensor& dbias_N) {
    const Region region(ctx, "column_sums");
    check_matrix(ctx, "dy", dy_TN);
    check_contiguous(ctx, "dbias", dbias_N, {dy_TN.size(1)}, at::kFloat);
    if (!ctx.is_cuda()) return cpu::column_sums(dy_TN, dbias_N);
#ifdef UNSLOTH_CUDA
    kernels::ColumnSums params;
    params.rows = dy_TN.size(0);
    params.columns = dy_TN.size(1);
    params.type = dtype_of(dy_TN);
    params.dy = source_of(dy_TN);
    params.sums = dbias_N.mutable_data_ptr<float>();
    kernels::column_sums(params, stream_of(ctx));
#endif
}

void dropout(Context& ctx, const at::Tensor& x_TK, const at::Tensor& row_T, const at::Tensor& offset_T, double p,
             DropoutKey key, const at::Tensor& out_TK, bool accumulate) {
    const Region region(ctx, "dropout");
    check_matrix(ctx, "x", x_TK);
    check_tensor(ctx, "out", out_TK, x_TK.sizes(), x_TK.scalar_type());
    check_contiguous(ctx, "row", row_T, {x_TK.size(0)}, at::kInt);
    check_contiguous(ctx, "offset", offset_T, {x_TK.size(0)}, at::kInt);
    UNSLOTH_CHECK(p >= 0 && p < 1, "dropout probability ", p, " is outside [0, 1)");
    UNSLOTH_CHECK(key.layer < (1u << 13) && key.projection < 8, "layer ", key.layer, ", projection ", key.projection,
                  " do not fit dropout_site");
    UNSLOTH_CHECK(key.first_channel % 4 == 0, "dropout from channel ", key.first_channel, " on");
    UNSLOTH_CHECK(ctx.scalars != nullptr, "dropout reads its seed and epoch from ctx.scalars");
    if (!ctx.is_cuda()) {
        return cpu::dropout(*ctx.scalars, x_TK, row_T, offset_T, static_cast<float>(p), key, out_TK, accumulate);
    }
#ifdef UNSLOTH_CUDA
    kernels::Dropout params;
    params.tokens = x_TK.size(0);
    params.columns = x_TK.size(1);
    params.type = dtype_of(x_TK);
    params.x = source_of(x_TK);
    params.out = target_of(out_TK);
    params.row = row_T.const_data_ptr<int32_t>();
    params.offset = offset_T.const_data_ptr<int32_t>();
    params.scalars = ctx.scalars;
    params.probability = static_cast<float>(p);
    params.layer = key.layer;
    params.projection = key.projection;
    params.first_channel = key.first_channel;
    params.accumulate = accumulate;
    kernels::dropout(params, stream_of(ctx));
#endif
}

void add_noise(Context& ctx, const at::Tensor& x_TK, const at::Tensor& row_T, const at::Tensor& offset_T,
               const at::Tensor& magnitude_T) {
    const Region region(ctx, "noise");
    check_matrix(ctx, "x", x_TK);
    check_contiguous(ctx, "row", row_T, {x_TK.size(0)}, at::kInt);
    check_contiguous(ctx, "offset", offset_T, {x_TK.size(0)}, at::kInt);
    check_contiguous(ctx, "magnitude", magnitude_T, {x_TK.size(0)}, at::kFloat);
    UNSLOTH_CHECK(ctx.scalars != nullptr, "noise reads its seed and epoch from ctx.scalars");
    if (!ctx.is_cuda()) return cpu::add_noise(*ctx.scalars, x_TK, row_T, offset_T, magnitude_T);
#ifdef UNSLOTH_CUDA
    kernels::AddNoise params;
    params.tokens = x_TK.size(0);
    params.columns = x_TK.size(1);
    params.type = dtype_of(x_TK);
    params.x = target_of(x_TK);
    params.row = row_T.const_data_ptr<int32_t>();
    params.offset = offset_T.const_data_ptr<int32_t>();
    params.magnitude = magnitude_T.const_data_ptr<float>();
    params.scalars = ctx.scalars;
    kernels::add_noise(params, stream_of(ctx));
#endif
}

}  // namespace unsloth::ops
