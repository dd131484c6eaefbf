#include "unsloth/weights/operand.h"

#include "unsloth/core/check.h"
#include "unsloth/ops/coded_rows.h"
#include "unsloth/ops/gemm.h"
#include "unsloth/ops/profiler.h"

namespace unsloth::weights {
namespace {

/// `input` without the adapters' columns where they take no part. `margin`: what these are multiplied by.
at::Tensor columns(const Product& p, int64_t base, const at::Tensor& margin, int64_t ranks_at, bool folded = false) {
    return p.input.narrow(1, 0, base + (p.adapters && !folded ? margin.size(ranks_at) : 0));
}

void forward(ops::Context& ctx, const Operand& o, const DenseBase& base, const Product& p) {
    ops::Gemm product{.a = columns(p, base.w_NK.size(1), o.b_NR, 1, o.folded),
                      .b = p.adapters && !o.folded ? base.forward_NKR : base.w_NK,
                      .out = p.out,
                      .transpose_b = true,
                      .label = p.label};
    if (p.residual.defined()) {
        product.beta = 1.0;
        product.c = p.residual;
    }
    if (p.bias && o.bias_N.defined()) product.bias = o.bias_N;
    ops::gemm(ctx, product);
}

void backward(ops::Context& ctx, const Operand& o, const DenseBase& base, const Product& p) {
    ops::Gemm product{.a = columns(p, base.w_NK.size(0), o.a_RK, 0, o.folded),
                      .b = p.adapters && !o.folded ? base.backward_NRK : base.w_NK,
                      .out = p.out,
                      .label = p.label};
    if (p.residual.defined()) {
        product.beta = 1.0;
        product.c = p.residual;
    }
    ops::gemm(ctx, product);
}

void forward(ops::Context& ctx, const Operand& o, const TiledBase& base, const Product& p) {
    const ops::Region region(ctx, p.label);
    ops::Nf4Gemm product{.weights = base.tiles, .x = columns(p, base.tiles.front().cols, o.b_NR, 1), .out = p.out};
    if (p.adapters) product.tail_weight = o.b_NR, product.tail_columns = base.tail_columns;
    if (p.residual.defined()) product.residual = p.residual;
    if (p.bias && o.bias_N.defined()) product.bias = o.bias_N;
    ops::nf4_gemm(ctx, product, base.forward);
}

void backward(ops::Context& ctx, const Operand& o, const TiledBase& base, const Product& p) {
    const ops::Region region(ctx, p.label);
    ops::Nf4Gemm product{
        .weights = base.tiles, .transposed = true, .x = columns(p, o.b_NR.size(0), o.a_RK, 0), .out = p.out};
    if (p.adapters) product.tail_weight = o.a_RK;
    if (p.residual.defined()) product.residual = p.residual;
    ops::nf4_gemm(ctx, product, base.backward);
}

void forward(ops::Context& ctx, const Operand& o, const CodedBase& base, const Product& p) {
    ops::GemmCoded product{.x = p.codes, .w = base.w_NK, .out = p.out};
    product.label = p.label;
    if (p.adapters) {
        product.u = p.input.narrow(1, base.w_NK.codes.size(1), o.b_NR.size(1));
        product.b = o.b_NR;
    }
    if (p.residual.defined()) product.residual = p.residual;
    if (p.bias && o.bias_N.defined()) product.bias = o.bias_N;
    ops::gemm_coded(ctx, product);
}

void backward(ops::Context& ctx, const Operand&, const CodedBase& base, const Product& p) {
    UNSLOTH_CHECK(!p.residual.defined(), p.label, ": nothing is added to it");
    ops::gemm(ctx, {.a = p.input, .b = base.values_NK, .out = p.out, .label = p.label});
}

void forward(ops::Context&, const Operand&, const ExpertTiles&, const Product& p) {
    UNSLOTH_CHECK(false, p.label, ": experts have grouped products");
}
void backward(ops::Context&, const Operand&, const ExpertTiles&, const Product& p) {
    UNSLOTH_CHECK(false, p.label, ": experts have grouped products");
}

void backward(ops::Context& ctx, const CodedTranspose& transpose, const Product& p) {
    UNSLOTH_CHECK(!p.residual.defined(), p.label, ": nothing is added to it");
    ops::GemmCoded product{.x = p.codes, .w = transpose.w_KN, .out = p.out};
    product.label = p.label;
    if (p.adapters) {
        product.u = p.input.narrow(1, transpose.w_KN.codes.size(1), transpose.a_KR.size(1));
        product.b = transpose.a_KR;
    }
    ops::gemm_coded(ctx, product);
}

}  // namespace

Operand dense_operand(const MatrixGroup& layout, at::Tensor buffer) {
    if (layout.r > 0) buffer.zero_();
    DenseBase base;
    base.forward_NKR = buffer.narrow(0, 0, layout.n).narrow(1, 0, layout.inputs());
    base.w_NK = base.forward_NKR.narrow(1, 0, layout.k);
    base.backward_NRK = buffer.narrow(1, 0, layout.k);
    Operand operand;
    operand.a_RK = base.backward_NRK.narrow(0, layout.n, layout.a_rows());
    operand.b_NR = base.forward_NKR.narrow(1, layout.k, layout.r);
    base.buffer = std::move(buffer);
    operand.base = std::move(base);
    return operand;
}

GroupMargins Operand::margins() const {
    return {a_RK, b_NR, transpose ? transpose->a_KR : at::Tensor()};
}

ops::CodedMatrix Operand::input_codes(const ops::CodedMatrix& scratch, int64_t rows, int64_t columns) const {
    const auto* const coded = std::get_if<CodedBase>(&base);
    return coded ? ops::codes_for(coded->w_NK, scratch, rows, columns) : ops::CodedMatrix{};
}

ops::CodedMatrix Operand::gradient_codes(const ops::CodedMatrix& scratch, int64_t rows, int64_t columns) const {
    return transpose ? ops::codes_for(transpose->w_KN, scratch, rows, columns) : ops::CodedMatrix{};
}

ExpertMatrices experts_of(const Operand& operand, int64_t experts, int64_t r) {
    const auto by_expert = [&](const at::Tensor& first, int64_t rows, int64_t columns) {
        const int64_t stride = first.stride(0);
        return first.as_strided({experts, rows, columns}, {rows * stride, stride, 1});
    };
    ExpertMatrices of;
    if (const auto* tiles = std::get_if<ExpertTiles>(&operand.base)) {
        of.tiles = tiles->parts;
    } else {
        const at::Tensor w_NK = std::get<DenseBase>(operand.base).w_NK;
        const int64_t n = w_NK.size(0) / experts, k = w_NK.size(1);
        of.w_ENK = by_expert(w_NK, n, k);
        of.forward_ENKr = by_expert(w_NK, n, k + r);
    }
    if (r == 0) return of;
    of.a_ErK = by_expert(operand.a_RK, r, operand.a_RK.size(1));
    of.b_ENr = by_expert(operand.b_NR, operand.b_NR.size(0) / experts, r);
    return of;
}

void multiply_forward(ops::Context& ctx, const Operand& operand, const Product& product) {
    std::visit([&](const auto& base) { forward(ctx, operand, base, product); }, operand.base);
}

void multiply_backward(ops::Context& ctx, const Operand& operand, const Product& product) {
    if (operand.transpose) return backward(ctx, *operand.transpose, product);
    std::visit([&](const auto& base) { backward(ctx, operand, base, product); }, operand.base);
}

}  // namespace unsloth::weights
