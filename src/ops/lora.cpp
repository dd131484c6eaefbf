// The LoRA GEMMs: checks, the choice between our kernels and library products, and the latter.
#include "unsloth/ops/lora.h"

#include "ops/checks.h"
#include "ops/code_values.h"
#include "ops/lora_cuda.h"
#include "unsloth/ops/gemm.h"
#include "unsloth/ops/rows.h"

namespace unsloth::ops {
namespace {

/// Slices stand in their group one after another; gradients are there where `gradient` says, [rows of a slice,
/// columns].
void check_slices(const Context& ctx, const std::vector<LoraSlice>& slices, int64_t n, int64_t k, int64_t r,
                  bool of_b) {
    for (const LoraSlice& slice : slices) {
        UNSLOTH_CHECK(slice.r % 8 == 0 && slice.r_begin % 8 == 0 && slice.r_begin >= 0 && slice.r >= 0 &&
                          slice.r_begin + slice.r <= r,
                      "lora: rank columns ", slice.r_begin, " + ", slice.r, " of ", r);
        UNSLOTH_CHECK(slice.rank >= 0 && slice.rank <= slice.r, "lora: rank ", slice.rank, " in ", slice.r, " columns");
        if (of_b)
            UNSLOTH_CHECK(slice.n_begin >= 0 && slice.n > 0 && slice.n_begin + slice.n <= n, "lora: outputs ",
                          slice.n_begin, " + ", slice.n, " of ", n);
        if (slice.rank == 0) continue;
        if (of_b) {
            check_contiguous(ctx, "dB", slice.db, {slice.n, slice.rank}, at::kFloat);
        } else {
            check_matrix(ctx, "dA", slice.da, slice.rank, k, at::kFloat);
        }
    }
}

/// The A gradients of all slices as one [R, K] matrix when they are adjacent without padding; else
/// undefined.
at::Tensor stacked_da(const std::vector<LoraSlice>& slices, int64_t r, int64_t k) {
    const at::Tensor* first = nullptr;
    int64_t rows = 0, stride = 0;
    for (const LoraSlice& slice : slices) {
        if (slice.r == 0) continue;
        if (slice.rank != slice.r || slice.r_begin != rows) return {};
        if (first == nullptr) first = &slice.da, stride = slice.da.stride(0);
        if (slice.da.storage().unsafeGetStorageImpl() != first->storage().unsafeGetStorageImpl() ||
            slice.da.stride(0) != stride || slice.da.storage_offset() != first->storage_offset() + rows * stride)
            return {};
        rows += slice.r;
    }
    return first != nullptr && rows == r ? first->as_strided({r, k}, {stride, 1}) : at::Tensor();
}

/// x, or dy: as values or as codes.
void check_input(const Context& ctx, const char* name, const at::Tensor& x, const CodedMatrix& codes, int64_t tokens,
                 int64_t columns, at::ScalarType dtype) {
    if (codes.codes.defined())
        check_coded(ctx, name, codes, tokens, columns);
    else
        check_matrix(ctx, name, x, tokens, columns, dtype);
}

template <class Args>
bool may_read_codes(const Context& ctx, const Args& args) {
    if (!args.codes.codes.defined() || args.choice == LoraChoice::library) return false;
#if UNSLOTH_CUDA
    if (ctx.is_cuda()) return lora_reads_codes_cuda(ctx, args);
#endif
    return !ctx.is_cuda();
}

/// The products of codes' values, in fp32 and rounded once.
void lora_u_of_codes_cpu(const LoraU& args) {
    args.u_TR.copy_(at::mm(values_of(args.codes), args.a_RK.to(at::kFloat).t()));
    if (args.copy_TR.defined()) args.copy_TR.copy_(args.u_TR);
}

void lora_dy_of_codes_cpu(const LoraDy& args) {
    const at::Tensor dy = values_of(args.codes);
    args.v_TR.copy_(at::mm(dy, args.b_NR.to(at::kFloat)));
    for (const LoraSlice& slice : args.slices)
        if (slice.rank > 0)
            slice.db.addmm_(dy.narrow(1, slice.n_begin, slice.n).t(),
                            args.u_TR.narrow(1, slice.r_begin, slice.rank).to(at::kFloat), 1, slice.scale);
}

}  // namespace

void lora_u(Context& ctx, const LoraU& args) {
    UNSLOTH_CHECK(args.u_TR.defined() && args.u_TR.dim() == 2 && args.a_RK.defined() && args.a_RK.dim() == 2,
                  "lora: u and A must be matrices");
    const int64_t tokens = args.u_TR.size(0), k = args.a_RK.size(1), r = args.a_RK.size(0);
    const at::ScalarType dtype = args.u_TR.scalar_type();
    check_input(ctx, "x", args.x_TK, args.codes, tokens, k, dtype);
    check_matrix(ctx, "A", args.a_RK, r, k, dtype);
    check_matrix(ctx, "u", args.u_TR, tokens, r, dtype);
    if (args.copy_TR.defined()) check_matrix(ctx, "the copy of u", args.copy_TR, tokens, r, dtype);
    const bool owned = args.owner_T.defined();
    UNSLOTH_CHECK(owned == args.owner_R.defined(), "lora: owners of tokens and of columns are both there, or none");
    UNSLOTH_CHECK(!owned || !args.codes.codes.defined(), "lora: owners with codes");
    if (tokens == 0 || r == 0) return;
#if UNSLOTH_CUDA
    if (ctx.is_cuda() && lora_u_cuda(ctx, args)) return;
#endif
    if (args.codes.codes.defined()) return lora_u_of_codes_cpu(args);
    gemm(ctx, {.a = args.x_TK, .b = args.a_RK, .out = args.u_TR, .transpose_b = true, .label = args.label});
    if (owned) zero_others(ctx, args.owner_T, args.owner_R, args.u_TR);
    if (args.copy_TR.defined()) copy_2d(ctx, args.u_TR, args.copy_TR);
}

void lora_dy(Context& ctx, const LoraDy& args) {
    UNSLOTH_CHECK(args.v_TR.defined() && args.v_TR.dim() == 2 && args.b_NR.defined() && args.b_NR.dim() == 2,
                  "lora: v and sB must be matrices");
    const int64_t tokens = args.v_TR.size(0), n = args.b_NR.size(0), r = args.b_NR.size(1);
    const at::ScalarType dtype = args.v_TR.scalar_type();
    check_input(ctx, "dy", args.dy_TN, args.codes, tokens, n, dtype);
    check_matrix(ctx, "sB", args.b_NR, n, r, dtype);
    check_matrix(ctx, "u", args.u_TR, tokens, r, dtype);
    check_matrix(ctx, "v", args.v_TR, tokens, r, dtype);
    check_slices(ctx, args.slices, n, 0, r, /*of_b=*/true);
    if (tokens == 0 || r == 0) return;
#if UNSLOTH_CUDA
    if (ctx.is_cuda() && lora_dy_cuda(ctx, args)) return;
#endif
    if (args.codes.codes.defined()) return lora_dy_of_codes_cpu(args);
    gemm(ctx, {.a = args.dy_TN, .b = args.b_NR, .out = args.v_TR, .label = args.label_v});
    for (const LoraSlice& slice : args.slices) {
        if (slice.rank == 0) continue;
        gemm(ctx, {.a = args.dy_TN.narrow(1, slice.n_begin, slice.n),
                   .b = args.u_TR.narrow(1, slice.r_begin, slice.rank),
                   .out = slice.db,
                   .transpose_a = true,
                   .alpha = slice.scale,
                   .beta = 1.0,
                   .label = args.label_db});
    }
}

bool reads_codes(const Context& ctx, const LoraU& args) {
    return may_read_codes(ctx, args);
}

bool reads_codes(const Context& ctx, const LoraDy& args) {
    return args.u_TR.is_contiguous() && may_read_codes(ctx, args);
}

void lora_da(Context& ctx, const LoraDa& args) {
    UNSLOTH_CHECK(args.v_TR.defined() && args.v_TR.dim() == 2 && args.x_TK.defined() && args.x_TK.dim() == 2,
                  "lora: v and x must be matrices");
    const int64_t tokens = args.x_TK.size(0), k = args.x_TK.size(1), r = args.v_TR.size(1);
    const at::ScalarType dtype = args.x_TK.scalar_type();
    check_matrix(ctx, "x", args.x_TK, tokens, k, dtype);
    check_matrix(ctx, "v", args.v_TR, tokens, r, dtype);
    check_slices(ctx, args.slices, 0, k, r, /*of_b=*/false);
    if (tokens == 0 || r == 0) return;
    if (const at::Tensor stacked = stacked_da(args.slices, r, k); stacked.defined()) {
        gemm(ctx,
             {.a = args.v_TR, .b = args.x_TK, .out = stacked, .transpose_a = true, .beta = 1.0, .label = args.label});
        return;
    }
    for (const LoraSlice& slice : args.slices) {
        if (slice.rank == 0) continue;
        gemm(ctx, {.a = args.v_TR.narrow(1, slice.r_begin, slice.rank),
                   .b = args.x_TK,
                   .out = slice.da,
                   .transpose_a = true,
                   .beta = 1.0,
                   .label = args.label});
    }
}

}  // namespace unsloth::ops
